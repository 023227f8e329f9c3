package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"sallyport/internal/test/testnet"
)

// plain is a gVisor sandbox without Sallyport, with the settings that the
// daemon's engine gives to its own, at the other end of a host's cable.
type plain struct {
	runsc string
	state string
	in    io.Closer // which its first process waits for
	cmd   *exec.Cmd
}

// Where things are in it.
const (
	plainName    = "plain"
	plainProgram = "/bench"
	plainRoots   = "/goproxy.pem"
)

// startPlain starts it with this program, which waits, and goproxy's root.
func startPlain(o options, far *testnet.Host) (_ *plain, err error) {
	// Its cable is the one in the host's namespace.
	var ns *os.File
	if err := far.Do(func() (err error) { ns, err = os.Open("/proc/thread-self/ns/net"); return err }); err != nil {
		return nil, err
	}
	defer ns.Close()
	dir := filepath.Join(o.dir, plainName)
	root := filepath.Join(dir, "root")
	if err := os.MkdirAll(root, 0o755); err != nil {
		return nil, err
	}
	for to, from := range map[string]string{plainProgram: "/proc/self/exe", plainRoots: filepath.Join(o.dir, "goproxy.pem")} {
		content, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(filepath.Join(root, to), content, 0o755)
		}
		if err != nil {
			return nil, err
		}
	}
	type object = map[string]any
	spec, err := json.Marshal(object{
		"ociVersion": "1.0.2",
		"root":       object{"path": "root", "readonly": true},
		"process":    object{"args": []string{plainProgram, "-role", "wait"}, "cwd": "/", "user": object{"uid": 0, "gid": 0}},
		"mounts":     []object{{"destination": "/proc", "type": "proc", "source": "proc"}},
		"linux": object{"namespaces": []object{
			{"type": "pid"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"},
			{"type": "network", "path": fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), ns.Fd())},
		}},
	})
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), spec, 0o644); err != nil {
		return nil, err
	}
	p := &plain{runsc: filepath.Join(o.bin, "runsc"), state: filepath.Join(dir, "state")}
	p.cmd = p.call(context.Background(), "run", "--bundle", dir, plainName)
	p.cmd.Stderr = os.Stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	said := make([]byte, len(waiting))
	if _, err := io.ReadFull(out, said); err != nil {
		return nil, errors.Join(fmt.Errorf("starting gVisor (this program must be static, CGO_ENABLED=0): %w", err), p.close())
	}
	return p, nil
}

// call is runsc, with the flags of the daemon's engine.
func (p *plain) call(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, p.runsc, append([]string{
		"--root", p.state, "--platform=systrap", "--overlay2=none", "--file-access=shared", "--ignore-cgroups",
	}, args...)...)
}

// command is this program in the sandbox, not started.
func (p *plain) command(ctx context.Context, args ...string) *exec.Cmd {
	return p.call(ctx, append([]string{"exec", plainName, plainProgram}, args...)...)
}

// close ends it.
func (p *plain) close() error {
	_ = p.in.Close()
	end := time.AfterFunc(10*time.Second, func() { _ = p.cmd.Process.Kill() })
	defer end.Stop()
	err := p.cmd.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_ = p.call(ctx, "delete", "--force", plainName).Run() // it is gone as a rule
	return err
}

// waiting is what the first process of such a sandbox says.
const waiting = "waiting\n"

// waitRole is that process: it ends when its input does.
func waitRole(context.Context, options) error {
	fmt.Print(waiting)
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}
