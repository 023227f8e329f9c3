// Package footprint makes a process small when it has nothing to do.
package footprint

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/internal/periodic"
)

// Program is where the running program's code and constants are in memory.
type Program []span

type span struct{ from, to uintptr }

// Find finds the running program's by /proc, and nothing where there is none. Parts that
// differ from the program's file are not among them.
func Find() Program {
	path, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return nil
	}
	maps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return nil
	}
	return parse(string(maps), path)
}

// parse reads the kernel's list of mappings (proc(5), /proc/pid/smaps).
func parse(maps, path string) (p Program) {
	var last span
	constant := false
	for line := range strings.Lines(maps) {
		f := strings.Fields(line)
		switch {
		case len(f) < 2:
		case !strings.HasSuffix(f[0], ":"): // 00400000-01a02000 r-xp 00000000 fe:00 1234  /usr/bin/sallyport
			_, err := fmt.Sscanf(f[0], "%x-%x", &last.from, &last.to)
			constant = err == nil && (f[1] == "r-xp" || f[1] == "r--p") && strings.HasSuffix(strings.TrimSuffix(line, "\n"), " "+path)
		case constant && f[0] == "Anonymous:" && f[1] == "0":
			p = append(p, last)
		}
	}
	return p
}

// Watch gives memory back to the kernel each time the process has come to rest, until ctx
// is done: what is free, and the program's pages, of which a start or a burst of work needs
// many that nothing needs later. Those that are needed come back from the kernel's cache of
// the program's file, at a page fault each.
func (p Program) Watch(ctx context.Context) {
	allocated := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	before, released := uint64(0), uint64(0)
	_ = periodic.Run(ctx, every, func(time.Time) {
		metrics.Read(allocated)
		now := allocated[0].Value.Uint64()
		if now-before < calm && now-released > worth {
			p.release()
			released = now
		}
		before = now
	})
}

const (
	every = 2 * time.Second
	calm  = 256 << 10 // bytes that a process at rest allocates meanwhile, at most
	worth = 1 << 20   // bytes that were allocated since the last time
)

func (p Program) release() {
	debug.FreeOSMemory()
	for _, s := range p {
		// A kernel that does not do it leaves the pages.
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, s.from, s.to-s.from, unix.MADV_DONTNEED)
	}
}
