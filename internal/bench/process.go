package main

import (
	"bufio"
	"bytes"
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

// tick is the unit of times in proc_pid_stat(5) on every Linux that Go runs on.
const tick = 10 * time.Millisecond

// pids are the process's and its descendants'.
func (p *process) pids() ([]int, error) {
	entries, err := os.ReadDir("/proc")
	children := map[string][]int{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		// The second field after the name is the parent's.
		if fields, err := statFields(pid); err == nil {
			children[string(fields[1])] = append(children[string(fields[1])], pid)
		}
	}
	all := []int{p.cmd.Process.Pid}
	for i := 0; i < len(all); i++ {
		all = append(all, children[strconv.Itoa(all[i])]...)
	}
	return all, err
}

// statFields are those of proc_pid_stat(5) after the name, which may hold
// anything but ends at the last parenthesis.
func statFields(pid int) ([][]byte, error) {
	path := fmt.Sprintf("/proc/%d/stat", pid)
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	fields := bytes.Fields(raw[bytes.LastIndexByte(raw, ')')+1:])
	if len(fields) < 13 {
		return nil, fmt.Errorf("%s has %d fields", path, len(fields))
	}
	return fields, nil
}

// cpu is what the process and its children have used so far, user and system.
func (p *process) cpu() (time.Duration, error) {
	pids, err := p.pids()
	if err != nil {
		return 0, err
	}
	return cpuOf(pids...)
}

// cpuOf is what processes have used so far, user and system.
func cpuOf(pids ...int) (total time.Duration, err error) {
	for _, pid := range pids {
		fields, err := statFields(pid)
		if err != nil {
			return 0, err
		}
		for _, f := range fields[11:13] {
			n, err := strconv.ParseUint(string(f), 10, 63)
			if err != nil {
				return 0, fmt.Errorf("the times of process %d: %w", pid, err)
			}
			total += time.Duration(n) * tick
		}
	}
	return total, nil
}

// peak is the most memory that each has had resident, in bytes.
func (p *process) peak() (total int64, err error) {
	pids, err := p.pids()
	if err != nil {
		return 0, err
	}
	for _, pid := range pids {
		n, err := peakOf(pid)
		if err != nil {
			return 0, err
		}
		total += n
	}
	return total, nil
}

// memory is what they have now.
func (p *process) memory() (env.Memory, error) {
	pids, err := p.pids()
	if err != nil {
		return env.Memory{}, err
	}
	return env.MemoryOf(pids...)
}

// peakOf is VmHWM of proc_pid_status(5), in bytes.
func peakOf(pid int) (int64, error) {
	path := fmt.Sprintf("/proc/%d/status", pid)
	raw, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(raw) {
		if kb, ok := bytes.CutPrefix(line, []byte("VmHWM:")); ok {
			n, err := strconv.ParseInt(string(bytes.TrimSpace(bytes.TrimSuffix(bytes.TrimSpace(kb), []byte("kB")))), 10, 64)
			return n << 10, err
		}
	}
	return 0, fmt.Errorf("%s does not say", path)
}
