package manager

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sallyport/internal/test/must"
	"sallyport/sandbox"
)

// space is a disk that the test fills.
type space struct {
	mu     sync.Mutex
	free   int64
	used   map[string]int64 // by sandbox
	capped map[string]bool
	leaks  bool // what is capped grows all the same
	err    error
}

func (s *space) Cap(folder string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.capped == nil {
		s.capped = map[string]bool{}
	}
	s.capped[filepath.Base(folder)] = true
	return nil
}

func (s *space) Uncap(folder string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.capped, filepath.Base(folder))
	return nil
}

func (s *space) Free() (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.free, s.err
}

func (s *space) Used(folder string) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used[filepath.Base(folder)], nil
}

func (s *space) Yield() error  { return nil }
func (s *space) Settle() error { return nil }

func (s *space) write(name string, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.capped[name] && !s.leaks {
		return
	}
	s.used[name] += n
	s.free -= n
}

const testReserve = 100 << 20

func reserved(t *testing.T, free int64) (*faultHost, *space, *Manager) {
	t.Helper()
	h, s := newFaultHost(), &space{free: free, used: map[string]int64{}}
	m := open(t, h, t.TempDir())
	m.opt.Space, m.opt.Reserve = s, testReserve
	return h, s, m
}

// Below the reserve nothing is made or started, and what is there stays as it is;
// so it is where nobody knows what is left.
func TestReserveRefuses(t *testing.T) {
	h, s, m := reserved(t, 2*testReserve)
	if _, _, err := m.GetOrCreate(t.Context(), "a", sandbox.Spec{}); err != nil {
		t.Fatal(err)
	}
	failed := errors.New("the disk is gone")
	for _, c := range []struct {
		free int64
		err  error
		want error
	}{{testReserve - 1, nil, sandbox.ErrDiskFull}, {testReserve, failed, failed}, {testReserve, nil, nil}} {
		s.free, s.err = c.free, c.err
		_, _, err := m.GetOrCreate(t.Context(), "b", sandbox.Spec{})
		if !errors.Is(err, c.want) {
			t.Errorf("creating with %d left, %v: %v", c.free, c.err, err)
		}
		if c.want == sandbox.ErrDiskFull && !strings.Contains(err.Error(), "99.99MiB are left, and 100MiB are kept") {
			t.Errorf("it says %q", err)
		}
		if _, err := m.Start(t.Context(), "a"); !errors.Is(err, c.want) {
			t.Errorf("starting with %d left, %v: %v", c.free, c.err, err)
		}
		if c.want != nil && (h.starts != 0 || len(m.List()) != 1) {
			t.Errorf("%d starts, %d sandboxes", h.starts, len(m.List()))
		}
	}
}

// running makes sandboxes that run.
func running(t *testing.T, m *Manager, ctx context.Context, names ...string) {
	t.Helper()
	for _, name := range names {
		if _, _, err := m.GetOrCreate(ctx, name, sandbox.Spec{}); err != nil {
			t.Fatal(err)
		}
		if _, err := m.Start(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
}

// watching has the space watched until the test ends.
func watching(t *testing.T, m *Manager) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- m.WatchSpace(ctx) }()
	return func() {
		t.Helper()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// While little is left, whoever has most takes no more of it; while there is too little,
// whoever grows most does not either. Nobody is stopped who does not grow all the same,
// and those that do not write do not notice.
func TestReserveRefusesWritesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, s, m := reserved(t, 3*testReserve)
		running(t, m, t.Context(), "idle", "slow", "fast")
		stop := watching(t, m)
		time.Sleep(time.Minute)
		s.write("slow", 20<<20)
		s.write("fast", 79<<20) // 201 MiB are left
		time.Sleep(time.Second)
		capped(t, m)
		s.write("fast", 2<<20)
		time.Sleep(time.Second)
		capped(t, m, "fast")
		s.write("fast", 50<<20) // in vain
		s.write("slow", 90<<20) // 109 MiB are left: fast had most as it began
		time.Sleep(time.Second)
		capped(t, m, "fast", "slow")
		states(t, m, "fast running, idle running, slow running")
		if i, err := m.Get("fast"); err != nil || !strings.Contains(i.Capped, "has most of it") || i.Storage.Disk != 81<<20 {
			t.Errorf("it says %q, %+v, %v", i.Capped, i.Storage, err)
		}
		s.write("idle", 10<<20) // 99 MiB are left
		time.Sleep(time.Second)
		capped(t, m, "fast", "idle", "slow")
		s.write("idle", 50<<20)
		time.Sleep(time.Minute)
		states(t, m, "fast running, idle running, slow running")
		// Room again, and then nobody is refused any more, whatever there was.
		s.write("", -3*testReserve)
		time.Sleep(time.Second)
		capped(t, m)
		if n := strings.Count(strings.Join(h.events, "\n"), "uncapped"); n != 3 || len(s.capped) > 0 {
			t.Errorf("%d are told that there is room: %v, %v", n, h.events, s.capped)
		}
		stop()
	})
}

func capped(t *testing.T, m *Manager, want ...string) {
	t.Helper()
	var got []string
	for _, i := range m.List() {
		if i.Capped != "" {
			got = append(got, i.Name)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("capped are %v, want %v", got, want)
	}
}

// A sandbox that grows though it is refused is stopped, once, at once, and says why until it
// is started again; those that do not grow run on.
func TestReserveHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, s, m := reserved(t, 2*testReserve)
		s.leaks = true
		running(t, m, t.Context(), "idle", "slow", "fast")
		stop := watching(t, m)
		time.Sleep(time.Minute + spaceEvery/2) // between two looks at the disk
		s.write("slow", 20<<20)
		s.write("fast", 79<<20) // 101 MiB are left
		time.Sleep(time.Minute) // what grew until now is forgotten
		states(t, m, "fast running, idle running, slow running")
		s.write("fast", 2<<20)
		time.Sleep(time.Second)
		states(t, m, "fast stopped, idle running, slow running")
		i, err := m.Get("fast")
		if err != nil || !strings.Contains(i.Reason, "99MiB left, less than its reserve of 100MiB") {
			t.Errorf("it says %q, %v", i.Reason, err)
		}
		time.Sleep(time.Minute)
		states(t, m, "fast stopped, idle running, slow running")
		s.write("slow", leastGrowth/2) // and no more than the journal's
		time.Sleep(time.Minute)
		states(t, m, "fast stopped, idle running, slow running")
		s.write("slow", leastGrowth/2) // it is refused
		time.Sleep(time.Second)
		states(t, m, "fast stopped, idle running, slow running")
		s.write("slow", leastGrowth)
		time.Sleep(time.Second)
		states(t, m, "fast stopped, idle running, slow stopped")
		s.write("", -testReserve)
		if i, err := m.Start(t.Context(), "fast"); err != nil || i.State != sandbox.Running || i.Reason != "" {
			t.Errorf("started again: %v %q, %v", i.State, i.Reason, err)
		}
		time.Sleep(time.Minute)
		states(t, m, "fast running, idle running, slow stopped")
		stop()
		if n := strings.Count(strings.Join(h.events, "\n"), "stopped"); n != 2 {
			t.Errorf("%d events of an end, want 2: %v", n, h.events)
		}
	})
}

func states(t *testing.T, m *Manager, want string) {
	t.Helper()
	var got []string
	for _, i := range m.List() {
		got = append(got, i.Name+" "+string(i.State))
	}
	if g := strings.Join(got, ", "); g != want {
		t.Errorf("got %s, want %s", g, want)
	}
}

// measured is a disk that has what is left of total bytes beside a folder's files.
type measured struct {
	space
	dir   string
	total int64
}

func (s *measured) Free() (int64, error) {
	left := s.total
	err := filepath.Walk(s.dir, func(_ string, info os.FileInfo, err error) error {
		if err == nil && info.Mode().IsRegular() {
			left -= info.Size()
		}
		return nil // it may be gone
	})
	return left, err
}

// The host's writes for a sandbox do not take the host's reserve either: they are not begun
// below it, and given up when it is reached, with nothing left of them.
func TestReserveOfWhatIsKept(t *testing.T) {
	big := strings.Repeat("thinking of ", 3<<20) // 36 MiB
	for name, do := range map[string]func(*bed) error{
		"snapshot": func(b *bed) error { _, err := b.Snapshot(t.Context(), "a", sandbox.SnapshotSpec{}); return err },
		"memory": func(b *bed) error {
			_, err := b.Snapshot(t.Context(), "a", sandbox.SnapshotSpec{Memory: true})
			return err
		},
		"fork":      func(b *bed) error { _, err := b.Fork(t.Context(), "a", sandbox.ForkSpec{Count: 2}); return err },
		"hibernate": func(b *bed) error { _, err := b.Hibernate(t.Context(), "a"); return err },
		"restore": func(b *bed) error {
			_, err := b.Restore(t.Context(), "a", sandbox.RestoreSpec{Snapshot: "before"})
			return err
		},
	} {
		for _, left := range []int64{testReserve - 1, testReserve + 20<<20} {
			t.Run(fmt.Sprintf("%s with %d MiB", name, left>>20), func(t *testing.T) {
				b := newBed(t)
				i := b.live(t, "a")
				b.put(t, i, "before")
				b.keeps(t, "a", sandbox.SnapshotSpec{Name: "before"})
				b.put(t, i, "now")
				if name == "memory" || name == "hibernate" {
					b.h.memory[i.ID] = big
				} else if err := os.WriteFile(filepath.Join(b.h.layers, i.ID, "big"), []byte(big), 0o600); err != nil {
					t.Fatal(err)
				}
				// A child's files are in the layers of the test's engine.
				s := &measured{dir: filepath.Dir(b.dir)}
				free, err := s.Free()
				must.OK(t, err)
				s.total = left - free
				b.opt.Space, b.opt.Reserve = s, testReserve
				err = do(b)
				if name == "restore" && left > testReserve {
					// The sandbox as it is now is kept all the same: see
					// TestRestoreIsNotDenied.
					if err != nil {
						t.Error(err)
					}
					return
				}
				if !errors.Is(err, sandbox.ErrDiskFull) {
					t.Errorf("got %v, want %v", err, sandbox.ErrDiskFull)
				}
				if i := b.must(t)(b.Get("a")); i.State != sandbox.Running || b.h.memory[i.ID] == "" || b.h.paused[i.ID] {
					t.Errorf("it is %s, with %.20q, paused: %v", i.State, b.h.memory[i.ID], b.h.paused[i.ID])
				}
				b.has(t, i, "now")
				if list, err := b.Snapshots(t.Context(), "a"); err != nil || len(list) != 1 || len(b.List()) != 1 {
					t.Errorf("%d snapshots, %v, %d sandboxes", len(list), err, len(b.List()))
				}
				if now, _ := s.Free(); now < left-1<<20 {
					t.Errorf("%d bytes are left behind", left-now)
				}
			})
		}
	}
}
