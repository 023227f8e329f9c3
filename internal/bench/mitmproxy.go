package main

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
)

// findMitmproxy looks for mitmproxy's program without a terminal.
func findMitmproxy(context.Context) error {
	if _, err := exec.LookPath("mitmdump"); err != nil {
		return errors.New("not installed")
	}
	return nil
}

// startMitmproxy starts it with one header set, and large bodies streamed: by
// default it has each in memory before it sends the first of it on.
func startMitmproxy(ctx context.Context, o options) (*process, error) {
	address, err := vacant()
	if err != nil {
		return nil, err
	}
	host, number, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(o.dir, "mitmproxy")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	if err := keyPair(o, "mitmproxy", filepath.Join(dir, "mitmproxy-ca.pem")); err != nil {
		return nil, err
	}
	return foreign(ctx, o, "mitmproxy", address, exec.CommandContext(ctx, "mitmdump",
		"--quiet", "--listen-host", host, "--listen-port", number,
		"--set", "confdir="+dir,
		"--set", "ssl_verify_upstream_trusted_ca="+filepath.Join(o.dir, "upstream.pem"),
		"--set", "stream_large_bodies=1m",
		"--modify-headers", "/~q/Authorization/Bearer "+secret))
}
