package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/internal/test/env"
	"sallyport/sandbox"
)

// crowd is what many sandboxes cost that hibernate.
func (h *host) crowd(ctx context.Context, o options, r *report) error {
	if err := h.settled(ctx, 1); err != nil {
		return err
	}
	before, err := h.holds()
	if err != nil {
		return err
	}
	for n := range o.crowd {
		name := fmt.Sprint("many", n)
		if _, err := h.api.Create(ctx, name, sandbox.Spec{}); err != nil {
			return err
		}
		for _, f := range []func(context.Context, string) (sandbox.Info, error){h.api.Start, h.api.Hibernate} {
			if _, err := f(ctx, name); err != nil {
				return err
			}
		}
	}
	if err := h.settled(ctx, 1); err != nil {
		return err
	}
	after, err := h.holds()
	if err != nil {
		return err
	}
	r.crowd = crowd{
		of:        o.crowd,
		processes: after.processes - before.processes, tmpfs: after.tmpfs - before.tmpfs,
		daemon: (after.daemon - before.daemon) / int64(o.crowd),
	}
	var list times
	for range 10 * o.turns {
		err := list.add(func() error {
			all, err := h.api.Sandboxes(ctx)
			if err == nil && len(all) != o.crowd {
				err = fmt.Errorf("%d sandboxes are listed of %d", len(all), o.crowd)
			}
			for _, i := range all {
				if i.State != sandbox.Hibernated {
					err = fmt.Errorf("%s is %s", i.Name, i.State)
				}
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	r.bounded(fmt.Sprintf("list of %d that hibernate, p50", o.crowd), list.median(), "", 0, 50*time.Millisecond)
	r.bounded("the same, slowest", list.at(1), "", 0, 50*time.Millisecond)
	return nil
}

// holding is what there is of sandboxes besides their files on disk.
type holding struct {
	processes int   // of the engine's sandboxes, those of the pool included
	tmpfs     int64 // bytes in the folder of memory that is written and read
	daemon    int64 // bytes, resident in the daemon's own process
}

func (h *host) holds() (s holding, err error) {
	list, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return s, err
	}
	for _, path := range list {
		line, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		text := string(line)
		if strings.Contains(text, h.dir) && (strings.Contains(text, "runsc") || strings.Contains(text, "shim")) {
			s.processes++
		}
	}
	err = filepath.WalkDir(filepath.Join(h.dir, "run"), func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil // it goes while we look, or takes no memory
		}
		var fs unix.Statfs_t
		if unix.Statfs(path, &fs) == nil && fs.Type == unix.TMPFS_MAGIC {
			if i, err := d.Info(); err == nil {
				s.tmpfs += i.Size()
			}
		}
		return nil
	})
	if err != nil {
		return s, err
	}
	m, err := env.MemoryOf(h.daemon.PID())
	s.daemon = m.Resident
	return s, err
}
