package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

// order is what a sender is told, a line of JSON each.
type order struct {
	Connections int
	Duration    time.Duration
}

// sendRole is the process in the sandbox: for each order it sends as fast as it
// can, and says "sent" when all is acknowledged.
func sendRole(options) error {
	orders := json.NewDecoder(os.Stdin)
	fmt.Println("ready")
	for {
		var o order
		if err := orders.Decode(&o); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := send(o); err != nil {
			return err
		}
		fmt.Println("sent")
	}
}

func send(o order) error {
	var connections []*net.TCPConn
	for range o.Connections {
		c, err := net.DialTimeout("tcp4", net.JoinHostPort(target, bulkPort), 5*time.Second)
		if err != nil {
			return err
		}
		defer c.Close()
		connections = append(connections, c.(*net.TCPConn))
	}
	end := time.Now().Add(o.Duration)
	var group errgroup.Group
	for _, c := range connections {
		group.Go(func() error {
			b := make([]byte, 256<<10)
			for time.Now().Before(end) {
				if _, err := c.Write(b); err != nil {
					return err
				}
			}
			if err := c.CloseWrite(); err != nil {
				return err
			}
			_, err := io.Copy(io.Discard, c) // the gateway closes when it has all
			return err
		})
	}
	return group.Wait()
}

// sender is such a process, seen from here.
type sender struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// startPlain starts it in the box's namespace.
func startPlain(ctx context.Context, _ options, _ string, b *box) (*sender, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return start(exec.CommandContext(ctx, self, "-role", "send"), b.do)
}

// startGVisor starts it in a gVisor sandbox that has the box's interface, with
// the settings of the daemon's engine.
func startGVisor(ctx context.Context, o options, dir string, b *box) (*sender, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	program, err := os.ReadFile(self)
	if err != nil {
		return nil, err
	}
	root := filepath.Join(dir, "bundle", "root")
	if err := os.MkdirAll(root, 0o755); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(root, "bench"), program, 0o755); err != nil {
		return nil, err
	}
	type object = map[string]any
	spec, err := json.Marshal(object{
		"ociVersion": "1.0.2",
		"root":       object{"path": "root", "readonly": true},
		"process":    object{"args": []string{"/bench", "-role", "send"}, "cwd": "/", "user": object{"uid": 0, "gid": 0}},
		"mounts":     []object{{"destination": "/proc", "type": "proc", "source": "proc"}},
		"linux": object{"namespaces": []object{
			{"type": "pid"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"},
			{"type": "network", "path": fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), int(b.ns))},
		}},
	})
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "bundle", "config.json"), spec, 0o644); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, o.runsc,
		"--root", filepath.Join(dir, "state"), "--platform=systrap", "--overlay2=none", "--file-access=shared", "--ignore-cgroups",
		"run", "--bundle", filepath.Join(dir, "bundle"), "bench")
	s, err := start(cmd, func(f func() error) error { return f() })
	if err != nil {
		return nil, fmt.Errorf("starting gVisor (bin/runsc is made by make setup; the program must be static, CGO_ENABLED=0): %w", err)
	}
	return s, nil
}

// start runs the command by do and waits until it is ready.
func start(cmd *exec.Cmd, do func(func() error) error) (*sender, error) {
	s := &sender{cmd: cmd}
	cmd.Stderr = os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	var err error
	if s.in, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	s.out = bufio.NewReader(out)
	if err := do(cmd.Start); err != nil {
		return nil, err
	}
	if err := s.hear("ready"); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	return s, nil
}

func (s *sender) hear(want string) error {
	line, err := s.out.ReadString('\n')
	if err != nil || line != want+"\n" {
		return fmt.Errorf("the sender said %q, %w", line, err)
	}
	return nil
}

// send has it send, and returns when it is done.
func (s *sender) send(o order) error {
	if err := json.NewEncoder(s.in).Encode(o); err != nil {
		return err
	}
	return s.hear("sent")
}

func (s *sender) stop() error {
	return errors.Join(s.in.Close(), s.cmd.Wait())
}
