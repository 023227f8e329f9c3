package contender

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
)

// startMitmproxy starts it with one header set, and large bodies streamed: by
// default it has each in memory before it sends the first of it on.
func startMitmproxy(ctx context.Context, o Options) (*exec.Cmd, string, error) {
	address, err := vacant()
	if err != nil {
		return nil, "", err
	}
	host, number, err := net.SplitHostPort(address)
	if err != nil {
		return nil, "", err
	}
	dir := filepath.Join(o.Dir, "mitmproxy")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, "", err
	}
	if err := authority(o, "mitmproxy", filepath.Join(dir, "mitmproxy-ca.pem")); err != nil {
		return nil, "", err
	}
	return start(ctx, o, "mitmproxy", address, exec.CommandContext(ctx, "mitmdump",
		"--quiet", "--listen-host", host, "--listen-port", number,
		"--set", "confdir="+dir,
		"--set", "ssl_verify_upstream_trusted_ca="+filepath.Join(o.Dir, "upstream.pem"),
		"--set", "stream_large_bodies=1m",
		"--modify-headers", "/~q/Authorization/Bearer "+o.Secret))
}
