package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"

	"sallyport/internal/bench/contender"
)

// column is a proxy that further kinds of load are measured through, which has a column of
// their table.
type column struct {
	name    string
	program *contender.Program // nil: it is part of this program, and the role of that name
	ours    bool               // says what it did when it ends
	// host is what the upstreams are called to it. Default: their address.
	host string
}

// columns are all of them. Another way to run the gateway, to be measured beside the one
// that there is, is a role (see main) and a line here.
var columns = []column{
	{name: "goproxy"},
	{name: "squid", program: &contender.Squid, host: "localhost"}, // it makes no certificates for addresses
	{name: "mitmproxy", program: &contender.Mitmproxy},
	{name: "iron-proxy", program: &contender.IronProxy, host: "localhost"}, // for the same reason
	{name: "sallyport", ours: true},
}

const baseline = "goproxy" // that ratios are to

// address is that of an upstream as the proxy knows it.
func (c column) address(target string) string {
	_, port, err := net.SplitHostPort(target)
	if c.host == "" || err != nil {
		return target
	}
	return net.JoinHostPort(c.host, port)
}

// begin starts it. The root of its authority then is in NAME.pem in the run's folder.
func (c column) begin(ctx context.Context, o options) (*process, error) {
	if c.program != nil {
		cmd, url, err := c.program.Start(ctx, o.contender())
		return &process{cmd: cmd, ready: url}, err
	}
	var err error
	if o.program, err = copyOf(o, c.name); err != nil {
		return nil, err
	}
	return start(ctx, o, c.name)
}

func (o options) contender() contender.Options {
	return contender.Options{Dir: o.dir, Listen: o.listen, Secret: secret}
}

// copyOf is this program in a file of a proxy's own, made once: else load and
// upstream would bear a part of its pages, and a proportional share of memory
// would be too small.
func copyOf(o options, name string) (string, error) {
	if o.copies == "" {
		return "", nil
	}
	path := filepath.Join(o.copies, name)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	whole, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return "", err
	}
	return path, os.WriteFile(path, whole, 0o755)
}

// goproxyRole is goproxy, with a connection to the upstream for each of the load's.
func goproxyRole(ctx context.Context, o options) error {
	proxy, err := contender.Goproxy(o.contender(), o.connections)
	if err != nil {
		return err
	}
	ln, err := net.Listen("tcp", net.JoinHostPort(o.listen, "0"))
	if err != nil {
		return err
	}
	s := &http.Server{Handler: proxy}
	fmt.Printf("http://%s\n", ln.Addr())
	return serve(ctx, s, s.Serve, ln)
}
