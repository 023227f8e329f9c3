package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"sallyport/internal/test/env"
)

// process is this program in a role, or another proxy.
type process struct {
	cmd   *exec.Cmd
	out   *bufio.Reader // nil of another
	ready string        // its first line
	ended bool
}

// start runs a role and waits until it says that it is ready.
func start(ctx context.Context, o options, role string) (*process, error) {
	p := &process{cmd: command(ctx, o, role)}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	p.out = bufio.NewReader(out)
	line, err := p.out.ReadString('\n')
	if err != nil {
		return nil, errors.Join(fmt.Errorf("starting %s: no sign of life", role), p.stop(nil))
	}
	p.ready = line[:len(line)-1]
	return p, nil
}

func command(ctx context.Context, o options, role string) *exec.Cmd {
	self := o.program
	if self == "" {
		var err error
		if self, err = os.Executable(); err != nil {
			self = os.Args[0]
		}
	}
	cmd := exec.CommandContext(ctx, self,
		"-role", role, "-dir", o.dir, "-upstreams", o.upstreams.String(), "-target", o.target, "-kind", o.kind, "-proxy", o.proxy, "-roots", o.roots, "-profile", o.profile,
		"-listen", o.listen, "-bin", o.bin, "-rounds", strconv.Itoa(o.rounds), "-rules", strconv.Itoa(o.rules), "-connections", strconv.Itoa(o.connections), "-duration", o.duration.String())
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	cmd.Stderr = os.Stderr
	return cmd
}

// stop ends a process and reads what it says last, if wanted.
func (p *process) stop(last any) error {
	if p.ended {
		return nil
	}
	p.ended = true
	if p.out == nil { // of somebody else: how it ends says nothing
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		_ = p.cmd.Wait()
		return nil
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	raw, err := io.ReadAll(p.out)
	if err := errors.Join(err, p.cmd.Wait()); err != nil {
		return err
	}
	if last == nil {
		return nil
	}
	return json.Unmarshal(raw, last)
}

// pids are the process's and its descendants'.
func (p *process) pids() ([]int, error) { return env.Family(p.cmd.Process.Pid) }

// cpu is what the process and its children have used so far, user and system.
func (p *process) cpu() (time.Duration, error) {
	pids, err := p.pids()
	if err != nil {
		return 0, err
	}
	return env.CPUOf(pids...)
}

// peak is the most memory that each has had resident, in bytes.
func (p *process) peak() (int64, error) {
	pids, err := p.pids()
	if err != nil {
		return 0, err
	}
	return env.PeakOf(pids...)
}

// memory is what they have now.
func (p *process) memory() (env.Memory, error) {
	pids, err := p.pids()
	if err != nil {
		return env.Memory{}, err
	}
	return env.MemoryOf(pids...)
}
