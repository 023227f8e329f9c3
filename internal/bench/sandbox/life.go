package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"sallyport/sandbox"
)

// creation is from nothing to the end of a first command, by the command line.
func (h *host) creation(ctx context.Context, o options, r *report) error {
	var cold, pool, plain times
	for n := range o.turns {
		if err := h.settled(ctx, 1); err != nil { // that of the pool
			return err
		}
		// Limits of its own: none in the pool is like it.
		name := fmt.Sprint("cold", n)
		if err := cold.add(func() error { return h.sallyport("run", name, "--pids", "4000", "--", "true") }); err != nil {
			return err
		}
		if err := h.sallyport("sandbox", "rm", name); err != nil {
			return err
		}
		if err := h.settled(ctx, 1); err != nil {
			return err
		}
		name = fmt.Sprint("pool", n)
		if err := pool.add(func() error { return h.sallyport("run", name, "--", "true") }); err != nil {
			return err
		}
		if err := h.sallyport("sandbox", "rm", name); err != nil {
			return err
		}
		if err := h.settled(ctx, 1); err != nil {
			return err
		}
		err := plain.add(func() error {
			_, err := h.docker(ctx, "run", "--rm", "--network", bridge, "--runtime=runsc", image, "true")
			return err
		})
		if err != nil {
			return err
		}
	}
	r.beside("create to first command finished, cold", cold.median(), "docker run --rm --runtime=runsc", plain.median(), 1.3)
	r.beside("the same from the warm pool", pool.median(), "the same", plain.median(), 0.25)
	return nil
}

// spacing is between commands that come one at a time.
const spacing = 20 * time.Millisecond

// spawn is a program that starts one command at a time, as often as commands come,
// and prints what each took in microseconds. It looks for the program on the PATH, as
// the API does.
const spawn = `import os, time
for _ in range(%d):
    time.sleep(%f)
    began = time.perf_counter()
    os.waitpid(os.posix_spawnp("true", ["true"], os.environ), 0)
    print(int((time.perf_counter() - began) * 1e6))`

// commands are of a sandbox that runs.
func (h *host) commands(ctx context.Context, o options, r *report) error {
	if err := h.sallyport("run", "busy", "--", "true"); err != nil {
		return err
	}
	if err := h.plain(ctx, "plain", "sleep", "1000000"); err != nil {
		return err
	}
	run := func(args ...string) error {
		code, err := h.api.Exec(ctx, "busy", sandbox.CommandSpec{Args: args}, sandbox.Streams{})
		if err == nil && code != 0 {
			err = fmt.Errorf("%q ended with %d", args, code)
		}
		return err
	}
	var ours, line, theirs, spaced, floor times
	for range 10 * o.turns {
		if err := ours.add(func() error { return run("true") }); err != nil {
			return err
		}
		if err := line.add(func() error { return h.sallyport("sandbox", "exec", "busy", "--", "true") }); err != nil {
			return err
		}
		err := theirs.add(func() error {
			_, err := h.docker(ctx, "exec", "plain", "true")
			return err
		})
		if err != nil {
			return err
		}
	}
	for range o.turns {
		for range 10 {
			time.Sleep(spacing)
			if err := spaced.add(func() error { return run("true") }); err != nil {
				return err
			}
		}
		res, err := h.daemon.Run("", "sandbox", "exec", "busy", "--", "python3", "-c", fmt.Sprintf(spawn, 10, spacing.Seconds()))
		if err != nil {
			return err
		}
		for word := range strings.FieldsSeq(res.Stdout) {
			us, err := strconv.Atoi(word)
			if err != nil {
				return fmt.Errorf("what a start costs inside: %s", res)
			}
			floor = append(floor, time.Duration(us)*time.Microsecond)
		}
	}
	r.beside("command `true` through the API, p50", ours.median(), "docker exec", theirs.median(), 0.25)
	r.beside("command `true` by the command line", line.median(), "docker exec", theirs.median(), 0)
	r.beside(fmt.Sprintf("`true` through the API, one every %v", spacing), spaced.median(), "fork, exec and wait inside", floor.median(), 1.5)
	if _, err := h.docker(ctx, "rm", "-f", "plain"); err != nil {
		return err
	}
	return h.sallyport("sandbox", "rm", "busy")
}

// resident is what a sandbox holds that sleeps or is forked, in MiB.
const resident = 64

// sleep is through the API, of a sandbox with memory of its own.
func (h *host) sleep(ctx context.Context, o options, r *report) error {
	if err := h.sallyport("run", "sleeper", "--", "true"); err != nil {
		return err
	}
	if err := h.think(ctx, "sleeper", resident); err != nil {
		return err
	}
	if err := h.plain(ctx, "plain", "python3", "-c", thought(resident)); err != nil {
		return err
	}
	do := func(t *times, f func(context.Context, string) (sandbox.Info, error)) error {
		return t.add(func() error {
			_, err := f(ctx, "sleeper")
			return err
		})
	}
	theirs := func(t *times, verb string) error {
		return t.add(func() error {
			_, err := h.docker(ctx, verb, "plain")
			return err
		})
	}
	var pause, resume, hibernate, wake, dockerPause, dockerUnpause times
	for range o.turns {
		for _, err := range []error{
			do(&pause, h.api.Pause), do(&resume, h.api.Resume),
			theirs(&dockerPause, "pause"), theirs(&dockerUnpause, "unpause"),
			do(&hibernate, h.api.Hibernate), do(&wake, h.api.Wake),
		} {
			if err != nil {
				return err
			}
		}
	}
	r.bounded("pause", pause.median(), "docker pause", dockerPause.median(), 50*time.Millisecond)
	r.bounded("wake of what is paused", resume.median(), "docker unpause", dockerUnpause.median(), 50*time.Millisecond)
	r.bounded(fmt.Sprintf("hibernate, %d MB resident", resident), hibernate.median(), "", 0, 300*time.Millisecond)
	r.bounded("wake of what hibernates", wake.median(), "", 0, 500*time.Millisecond)
	if _, err := h.docker(ctx, "rm", "-f", "plain"); err != nil {
		return err
	}
	return h.sallyport("sandbox", "rm", "sleeper")
}

// forks are of a sandbox that runs, with what it holds in memory.
func (h *host) forks(ctx context.Context, o options, r *report) error {
	if err := h.sallyport("run", "parent", "--", "true"); err != nil {
		return err
	}
	if err := h.think(ctx, "parent", resident); err != nil {
		return err
	}
	var one, ten, stood times
	for _, of := range []struct {
		t     *times
		count int
		turns int
	}{{&one, 1, o.turns}, {&ten, 10, max(o.turns/3, 3)}} {
		for range of.turns {
			var list []sandbox.Info
			err := of.t.add(func() (err error) {
				list, err = h.api.Fork(ctx, "parent", sandbox.ForkSpec{Count: of.count})
				return err
			})
			if err != nil {
				return err
			}
			d, err := h.stood()
			if err != nil {
				return err
			}
			stood = append(stood, d)
			for _, i := range list {
				if i.State != sandbox.Running {
					return fmt.Errorf("fork %s is %s: %s", i.Name, i.State, i.Reason)
				}
				if err := h.api.Remove(ctx, i.Name); err != nil {
					return err
				}
			}
		}
	}
	r.bounded(fmt.Sprintf("fork of a running sandbox, %d MB resident", resident), one.median(), "", 0, 800*time.Millisecond)
	r.bounded("10 forks at once", ten.median(), "", 0, 4*time.Second)
	// 300 ms, and what a gigabyte a second takes for what it holds.
	r.bounded("for so long their parent stands, slowest", stood.at(1), "", 0, 300*time.Millisecond+resident*time.Second/1000)
	return h.sallyport("sandbox", "rm", "parent")
}

var stoodFor = regexp.MustCompile(`msg="forked a sandbox".* pausedFor=(\S+)`)

// stood is for how long the parent of the last forks was paused.
func (h *host) stood() (time.Duration, error) {
	all := stoodFor.FindAllStringSubmatch(h.daemon.Log(), -1)
	if len(all) == 0 {
		return 0, errors.New("the daemon does not log for how long the parent stood")
	}
	return time.ParseDuration(all[len(all)-1][1])
}
