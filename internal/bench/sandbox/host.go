package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sallyport/internal/test/env"
	"sallyport/sandbox"
	"sallyport/sandbox/client"
)

const (
	bridge = "spbench0"
	image  = "sallyport/base:bookworm-1"
	config = `
dataDir: %[1]s/data
runDir: %[1]s/run
keyFile: %[1]s/key/key
network: {bridge: ` + bridge + `, subnet: 10.233.0.0/24}
metrics: {listen: "127.0.0.1:9465"}
engine: {runsc: %[2]s}
sandbox: {tarball: %[3]s, pool: {size: 1}}
`
	// settling is how long a step may take to be seen.
	settling = time.Minute
)

// host is one daemon and its engine.
type host struct {
	dir    string
	daemon *env.Daemon
	api    *client.Client
}

func newHost(tools *env.Programs) (_ *host, err error) {
	dir, err := os.MkdirTemp("", "sallyport-bench-")
	if err != nil {
		return nil, err
	}
	h := &host{dir: dir, daemon: env.NewDaemon(tools, dir)}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.close())
		}
	}()
	if err := h.daemon.Write("sallyport.yaml", fmt.Sprintf(config, dir, tools.Runsc, tools.Image)); err != nil {
		return nil, err
	}
	if err := h.daemon.Start(); err != nil {
		return nil, fmt.Errorf("starting the daemon: %w\n%s", err, h.daemon.Log())
	}
	h.api = client.Unix(filepath.Join(dir, "run", "sallyport.sock"))
	return h, nil
}

func (h *host) close() error {
	var err error
	if h.daemon.PID() != 0 {
		err = h.daemon.Down()
	}
	return errors.Join(err, os.RemoveAll(h.dir))
}

// sallyport runs our command line.
func (h *host) sallyport(args ...string) error {
	res, err := h.daemon.Run("", args...)
	if err == nil && res.Code != 0 {
		err = fmt.Errorf("sallyport %s: %s", strings.Join(args, " "), res)
	}
	return err
}

// docker runs Docker's command line on the same engine.
func (h *host) docker(ctx context.Context, args ...string) (string, error) {
	c := exec.CommandContext(ctx, "docker", append([]string{"-H", "unix://" + filepath.Join(h.dir, "run/engine/docker.sock")}, args...)...)
	out, err := c.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("docker %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out)), nil
}

// plain starts a container that is none of ours, as `docker run` does.
func (h *host) plain(ctx context.Context, name string, args ...string) error {
	_, err := h.docker(ctx, append([]string{"run", "-d", "--name", name, "--network", bridge, "--runtime=runsc", image}, args...)...)
	return err
}

// settled waits until so many containers run, those of the pool included.
func (h *host) settled(ctx context.Context, n int) error {
	return await(ctx, fmt.Sprintf("%d containers that run", n), func() (bool, error) {
		out, err := h.docker(ctx, "ps", "-q")
		return len(strings.Fields(out)) == n, err
	})
}

// think has a sandbox hold so many MiB of its own.
func (h *host) think(ctx context.Context, name string, megabytes int) error {
	if err := h.sallyport("sandbox", "exec", "-d", name, "--", "python3", "-c", thought(megabytes)); err != nil {
		return err
	}
	return await(ctx, "memory that is taken", func() (bool, error) {
		code, err := h.api.Exec(ctx, name, sandbox.CommandSpec{Args: []string{"test", "-e", "/tmp/ready"}}, sandbox.Streams{})
		return code == 0, err
	})
}

// thought is a program of Python's that holds memory that nothing makes smaller.
func thought(megabytes int) string {
	return fmt.Sprintf("import os, time\nx = os.urandom(%d << 20)\nopen('/tmp/ready', 'w').close()\ntime.sleep(1e6)", megabytes)
}

func await(ctx context.Context, what string, there func() (bool, error)) error {
	for deadline := time.Now().Add(settling); ; time.Sleep(20 * time.Millisecond) {
		ok, err := there()
		if err != nil || ok {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("no %s within %v", what, settling)
		}
	}
}

// timed is how long f took.
func timed(f func() error) (time.Duration, error) {
	began := time.Now()
	err := f()
	return time.Since(began), err
}

// times are of one thing that was done in turns.
type times []time.Duration

func (t *times) add(f func() error) error {
	d, err := timed(f)
	*t = append(*t, d)
	return err
}

// at is the quantile q, of 0 to 1.
func (t times) at(q float64) time.Duration {
	s := slices.Sorted(slices.Values(t))
	return s[min(int(q*float64(len(s))), len(s)-1)]
}

func (t times) median() time.Duration { return t.at(0.5) }
