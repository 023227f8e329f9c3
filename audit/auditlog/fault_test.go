package auditlog_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/internal/test/must"
)

// disk opens real files whose operations fail as told.
type disk struct {
	mu     sync.Mutex
	opened []string
	faults
}

type faults struct {
	open     error
	write    error
	short    int // bytes that fit before write fails
	sync     error
	truncate error
	hang     chan struct{} // Sync waits for it
	random   float64       // chance that any operation fails
	lose     bool          // a failed sync loses what was written, as on fsync(2)
}

func (d *disk) set(f func(*disk)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f(d)
}

func (d *disk) fail(err error) error {
	if err == nil && d.random > 0 && rand.Float64() < d.random {
		return []error{syscall.EIO, syscall.ENOSPC}[rand.IntN(2)]
	}
	return err
}

func (d *disk) Open(path string, flag int) (auditlog.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.fail(d.open); err != nil {
		return nil, err
	}
	f, err := auditlog.OpenFile(path, flag)
	if err != nil {
		return nil, err
	}
	d.opened = append(d.opened, path)
	return &faulty{f, d, path}, nil
}

type faulty struct {
	auditlog.File
	d    *disk
	path string
}

func (f *faulty) Write(b []byte) (int, error) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if err := f.d.fail(f.d.write); err != nil {
		short := f.d.short
		if f.d.random > 0 {
			short = rand.IntN(len(b))
		}
		n, _ := f.File.Write(b[:min(short, len(b))])
		return n, err
	}
	return f.File.Write(b)
}

func (f *faulty) Sync() error {
	f.d.mu.Lock()
	hang, err, lose := f.d.hang, f.d.fail(f.d.sync), f.d.lose
	f.d.mu.Unlock()
	if hang != nil {
		<-hang
	}
	if err == nil {
		return f.File.Sync()
	}
	if lose {
		if raw, rerr := os.ReadFile(f.path); rerr == nil && len(raw) > 100 {
			os.WriteFile(f.path, append(raw[:len(raw)-100], make([]byte, 100)...), 0o600)
		}
	}
	return err
}

func (f *faulty) Truncate(n int64) error {
	f.d.mu.Lock()
	err := f.d.fail(f.d.truncate)
	f.d.mu.Unlock()
	if err != nil {
		return err
	}
	return f.File.Truncate(n)
}

// readAll reads the log with this package and fails on damage.
func readAll(t *testing.T, dir string) []audit.Event {
	t.Helper()
	var all []audit.Event
	for e, err := range auditlog.Read(context.Background(), dir, auditlog.Query{}) {
		must.OK(t, err)
		all = append(all, *e)
	}
	consecutive(t, all)
	return all
}

func TestFaults(t *testing.T) {
	tests := []struct {
		name  string
		fault func(*disk)
		cause error
	}{
		{"disk full", func(d *disk) { d.write = syscall.ENOSPC }, syscall.ENOSPC},
		{"disk full half way", func(d *disk) { d.write, d.short = syscall.ENOSPC, 300 }, syscall.ENOSPC},
		{"over quota", func(d *disk) { d.write, d.short = syscall.EDQUOT, 1 }, syscall.EDQUOT},
		{"write error", func(d *disk) { d.write, d.short = syscall.EIO, 300 }, syscall.EIO},
		{"write and truncate error", func(d *disk) { d.write, d.short, d.truncate = syscall.EIO, 300, syscall.EIO }, syscall.EIO},
		{"failed sync", func(d *disk) { d.sync = syscall.EIO }, syscall.EIO},
		{"failed sync that loses data", func(d *disk) { d.sync, d.lose = syscall.EIO, true }, syscall.EIO},
		{"failed sync and truncate", func(d *disk) { d.sync, d.lose, d.truncate = syscall.EIO, true, syscall.EIO }, syscall.EIO},
		{"read-only", func(d *disk) {
			d.open, d.write, d.sync, d.truncate = syscall.EROFS, syscall.EROFS, syscall.EROFS, syscall.EROFS
		}, syscall.EROFS},
		{"failed sync, then no new file", func(d *disk) { d.sync, d.open = syscall.EIO, syscall.ENOSPC }, syscall.EIO},
	}
	for _, tt := range tests {
		for _, before := range []int{0, 2} { // durable events in the segment
			t.Run(fmt.Sprintf("%s after %d", tt.name, before), func(t *testing.T) {
				dir := t.TempDir()
				d := new(disk)
				var said bytes.Buffer
				l := open(t, dir, auditlog.Options{Logger: slog.New(slog.NewTextHandler(&said, nil))}.WithFiles(d.Open))
				var want []string
				for i := range before {
					want = append(want, fmt.Sprint("before-", i))
				}
				appendAll(t, l, want...)
				d.set(tt.fault)
				for i := range 3 {
					err := l.Append(context.Background(), event(fmt.Sprint("refused-", i)))
					if !errors.Is(err, auditlog.ErrUnwritable) || i == 0 && before > 0 && !errors.Is(err, tt.cause) {
						t.Fatalf("Append = %v, want ErrUnwritable for %v", err, tt.cause)
					}
				}
				must.OK(t, l.Enqueue(event("queued")))
				d.set(func(d *disk) { d.faults = faults{} })
				appendAll(t, l, "after")
				must.OK(t, l.Close())
				var got []string
				for _, e := range readAll(t, dir) {
					if e.Unmapped.Sallyport.State == "audit-refused" {
						if e.Count != 3 {
							t.Errorf("count of refused events = %d, want 3", e.Count)
						}
						continue
					}
					got = append(got, e.Message)
				}
				if w := strings.Join(append(want, "queued", "after"), " "); strings.Join(got, " ") != w {
					t.Errorf("messages = %q, want %q", got, w)
				}
				for _, want := range []string{"cannot be written", "can be written again"} {
					if strings.Count(said.String(), want) != 1 {
						t.Errorf("operational log does not say %q once:\n%s", want, &said)
					}
				}
				// And the next process reads the same.
				l = open(t, dir, auditlog.Options{})
				appendAll(t, l, "restarted")
				readAll(t, dir)
			})
		}
	}
}

// TestFailedSyncIsNotTrusted looks at the files: after a failed sync nothing
// goes to the same file any more.
func TestFailedSyncIsNotTrusted(t *testing.T) {
	dir := t.TempDir()
	d := new(disk)
	l := open(t, dir, auditlog.Options{}.WithFiles(d.Open))
	appendAll(t, l, "a")
	d.set(func(d *disk) { d.sync = syscall.EIO })
	if err := l.Append(context.Background(), event("refused")); err == nil {
		t.Fatal("no error")
	}
	d.set(func(d *disk) { d.sync = nil })
	appendAll(t, l, "b")
	if len(d.opened) != 2 || d.opened[0] == d.opened[1] {
		t.Errorf("segments = %q, want a second one", d.opened)
	}
}

// TestOpenTrustsWhatIsSynced: a killed process may have left events that are
// not on the disk yet; nothing may be built on them.
func TestOpenTrustsWhatIsSynced(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, auditlog.Options{})
	appendAll(t, l, "a")
	l.Close()
	d := new(disk)
	d.sync = syscall.EIO
	if _, err := auditlog.Open(dir, auditlog.Options{}.WithFiles(d.Open)); !errors.Is(err, syscall.EIO) {
		t.Fatalf("Open = %v, want EIO", err)
	}
	l = open(t, dir, auditlog.Options{}) // and the failed Open left no lock
	appendAll(t, l, "b")
	if got := messages(readAll(t, dir)); got != "a b" {
		t.Errorf("messages = %q", got)
	}
}

func TestRecoversByItself(t *testing.T) {
	dir := t.TempDir()
	d := new(disk)
	l := open(t, dir, auditlog.Options{Queue: 5}.WithFiles(d.Open))
	d.set(func(d *disk) { d.write = syscall.ENOSPC })
	refused := 0
	for i := range 9 {
		switch err := l.Enqueue(event(fmt.Sprint(i))); {
		case errors.Is(err, auditlog.ErrFull):
			refused++
		case err != nil:
			t.Fatal(err)
		}
	}
	if refused != 4 {
		t.Errorf("%d were refused, want 4", refused)
	}
	must.Soon(t, "a failure", func() bool { return l.Stats().Failures > 0 })
	d.set(func(d *disk) { d.write = nil })
	must.Soon(t, "the queue to be written", func() bool { return l.Stats().Events == 6 })
	got := readAll(t, dir)
	if got[0].Unmapped.Sallyport.State != "audit-dropped" || got[0].Count != 4 || messages(got[1:]) != "0 1 2 3 4" {
		t.Errorf("got %q with count %d", messages(got), got[0].Count)
	}
	if s := l.Stats(); s.Dropped != 4 {
		t.Errorf("stats = %+v", s)
	}
}

// TestQueueIsBoundedInBytes: few large events must not take what many small
// ones may not.
func TestQueueIsBoundedInBytes(t *testing.T) {
	d := new(disk)
	l := open(t, t.TempDir(), auditlog.Options{}.WithFiles(d.Open))
	d.set(func(d *disk) { d.write = syscall.ENOSPC })
	large, held := strings.Repeat("x", 200<<10), 0
	for range 2 { // the second time after the first were written
		n := 0
		for ; n < 1000; n++ {
			if err := l.Enqueue(event(large)); errors.Is(err, auditlog.ErrFull) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
		}
		if n < 100 || n > 200 {
			t.Errorf("%d events of 200 KiB wait, want what 32 MiB hold", n)
		}
		held += n
		d.set(func(d *disk) { d.write = nil })
		must.Soon(t, "the queue to be written", func() bool { return l.Stats().Events >= uint64(held) })
		d.set(func(d *disk) { d.write = syscall.ENOSPC })
	}
}

func TestCloseSaysWhatIsLost(t *testing.T) {
	d := new(disk)
	l := open(t, t.TempDir(), auditlog.Options{}.WithFiles(d.Open))
	d.set(func(d *disk) { d.sync = syscall.EIO })
	must.OK(t, l.Enqueue(event("lost")))
	if err := l.Close(); !errors.Is(err, auditlog.ErrUnwritable) || !strings.Contains(err.Error(), "1 queued") {
		t.Errorf("Close = %v", err)
	}
}

// TestHangingDisk: those who wait can leave, and what they leave behind does
// not pile up.
func TestHangingDisk(t *testing.T) {
	dir := t.TempDir()
	d := new(disk)
	l := open(t, dir, auditlog.Options{}.WithFiles(d.Open))
	hang := make(chan struct{})
	d.set(func(d *disk) { d.hang = hang })
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	var wg sync.WaitGroup
	var withdrawn sync.Map
	for i := range 20 {
		wg.Go(func() {
			time.Sleep(time.Duration(i) * time.Millisecond)
			text := fmt.Sprint("abandoned ", i)
			err := l.Append(ctx, event(text))
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Append = %v", err)
			}
			if errors.Is(err, auditlog.ErrWithdrawn) {
				withdrawn.Store(text, true)
			}
		})
	}
	wg.Wait()
	if err := l.Append(ctx, event("late")); !errors.Is(err, auditlog.ErrWithdrawn) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Append of who is gone = %v", err)
	}
	close(hang)
	d.set(func(d *disk) { d.hang = nil })
	appendAll(t, l, "b")
	got := readAll(t, dir)
	if len(got) > 3 || got[len(got)-1].Message != "b" {
		t.Errorf("%d events: withdrawn ones were written", len(got))
	}
	// Each is either in the log, or its caller was told that it is not.
	there := 0
	for _, e := range got[:len(got)-1] {
		there++
		if _, ok := withdrawn.Load(e.Message); ok || e.Message == "late" {
			t.Errorf("%s is in the log", e.Message)
		}
	}
	told := 0
	withdrawn.Range(func(any, any) bool { told++; return true })
	if there+told != 20 {
		t.Errorf("%d in the log, %d withdrawn, of 20", there, told)
	}
}

// TestRandomFaults: whatever fails, what was acknowledged is there, once, in
// order, and the log reads without a gap.
func TestRandomFaults(t *testing.T) {
	dir := t.TempDir()
	acknowledged := map[uint64]string{}
	var mu sync.Mutex
	for range 5 {
		d := new(disk)
		l := open(t, dir, auditlog.Options{SegmentSize: 5000}.WithFiles(d.Open))
		d.set(func(d *disk) { d.random, d.lose = 0.15, true })
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for range 100 {
					e := event("x")
					if err := l.Append(context.Background(), e); err == nil {
						mu.Lock()
						acknowledged[e.Metadata.Sequence] = e.ID()
						mu.Unlock()
					} else if !errors.Is(err, auditlog.ErrUnwritable) {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		d.set(func(d *disk) { d.faults = faults{} })
		l.Close()
	}
	for _, e := range readAll(t, dir) {
		if id, ok := acknowledged[e.Metadata.Sequence]; ok && id != e.ID() {
			t.Fatalf("number %d is %s, acknowledged as %s", e.Metadata.Sequence, e.ID(), id)
		}
		delete(acknowledged, e.Metadata.Sequence)
	}
	if len(acknowledged) > 0 {
		t.Errorf("%d acknowledged events are missing", len(acknowledged))
	}
}

// TestGroupIsBounded: what waits for a disk that hangs is written in groups of
// bounded size, whatever becomes of one, and all of it before the log ends.
func TestGroupIsBounded(t *testing.T) {
	dir, d, hang := t.TempDir(), new(disk), make(chan struct{})
	d.set(func(d *disk) { d.hang = hang })
	l := open(t, dir, auditlog.Options{}.WithFiles(d.Open).WithGroup(16<<10))
	const n = 100
	got := make(chan error, n)
	for range n {
		go func() { got <- l.Append(context.Background(), event(strings.Repeat("x", 1000))) }()
	}
	for i := range n {
		must.OK(t, l.Enqueue(event(fmt.Sprint("queued ", i))))
	}
	time.Sleep(50 * time.Millisecond) // for those who append to wait
	d.set(func(d *disk) { d.hang = nil })
	close(hang)
	for range n {
		if err := <-got; err != nil {
			t.Error(err)
		}
	}
	must.OK(t, l.Close())
	if got := len(readAll(t, dir)); got != 2*n {
		t.Errorf("%d events, want %d", got, 2*n)
	}
	if s := l.Stats(); s.Groups < 2*n*300/(16<<10) {
		t.Errorf("%d groups", s.Groups)
	}
}
