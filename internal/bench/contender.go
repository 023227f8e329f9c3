package main

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// contender is a proxy that further kinds of load are measured through.
type contender struct {
	name string
	// find says why it cannot be measured here, which is printed with the table.
	// Default: it can, being part of this program.
	find func(context.Context) error
	// start is done when it takes requests. Default: the role of that name. Its
	// authority's root then is in NAME.pem in the run's folder.
	start func(context.Context, options) (*process, error)
	ours  bool // says what it did when it ends
	// host is what the upstreams are called to it. Default: their address.
	host string
}

// contenders have a column each. Another way to run the gateway, to be measured
// beside the one that there is, is a role (see main) and a line here.
var contenders = []contender{
	{name: "goproxy"},
	{name: "squid", find: findSquid, start: startSquid, host: "localhost"}, // it makes no certificates for addresses
	{name: "mitmproxy", find: findMitmproxy, start: startMitmproxy},
	{name: "iron-proxy", find: findIronProxy, start: startIronProxy, host: "localhost"}, // for the same reason
	{name: "sallyport", ours: true},
}

const baseline = "goproxy" // that ratios are to

// address is that of an upstream as the contender knows it.
func (c contender) address(target string) string {
	_, port, err := net.SplitHostPort(target)
	if c.host == "" || err != nil {
		return target
	}
	return net.JoinHostPort(c.host, port)
}

// begin starts it.
func (c contender) begin(ctx context.Context, o options) (*process, error) {
	if c.start != nil {
		return c.start(ctx, o)
	}
	var err error
	if o.program, err = copyOf(o, c.name); err != nil {
		return nil, err
	}
	return start(ctx, o, c.name)
}

// copyOf is this program in a file of a contender's own, made once: else load and
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

// foreign starts a program that is not of this repository, and waits until it
// listens on the address. Its output goes to NAME.log in the run's folder.
func foreign(ctx context.Context, o options, name, address string, cmd *exec.Cmd) (*process, error) {
	path := filepath.Join(o.dir, name+".log")
	said, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	defer said.Close()
	cmd.Stdout, cmd.Stderr = said, said
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, ready: "http://" + address}
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(50 * time.Millisecond) {
		if c, err := net.Dial("tcp", address); err == nil {
			return p, c.Close()
		}
	}
	_ = p.stop(nil)
	raw, _ := os.ReadFile(path)
	return nil, fmt.Errorf("%s does not listen: %s", name, raw[max(0, len(raw)-500):])
}

// vacant is an address on loopback that nothing listens on, for a moment.
func vacant() (string, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return ln.Addr().String(), ln.Close()
}

// keyPair writes a certificate authority of the contender's own, its key and
// certificate in one file, and its root where the load looks for it.
func keyPair(o options, name, path string) error {
	cert, root, err := certificate(name, o.listen)
	if err != nil {
		return err
	}
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		return err
	}
	both := append(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}), root...)
	return errors.Join(os.WriteFile(path, both, 0o600), os.WriteFile(filepath.Join(o.dir, name+".pem"), root, 0o600))
}
