package sandbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/internal/size"
)

// ErrFull refuses to create or start a sandbox on a host whose disk is nearly full.
var ErrFull = errors.New("the host's disk is nearly full")

// Space is the host's file system that sandboxes' disks take from. Both are in
// bytes, and count what was written and is not on the disk yet.
type Space interface {
	Free() (int64, error)
	Used(folder string) (int64, error) // by the disk in a sandbox's own folder
	// Yield gives up what Settle keeps back for the moment in which nothing is left.
	// Settle takes it again, or what there is of it. Both may be called again.
	Yield() error
	Settle() error
}

const (
	// spaceEvery is how often the space that is left is looked at: what can be
	// written meanwhile is what a reserve is overshot by.
	spaceEvery = 250 * time.Millisecond
	// growthOver is how far back the growth of disks is compared.
	growthOver = 10 * time.Second
	// leastGrowth is what a disk must have grown by to be held: the journal and
	// the times of files take a little even where nothing is written.
	leastGrowth = 1 << 20
)

// roomy refuses where less is left than the host's reserve. Nobody knows whether
// there is room where that cannot be asked.
func (m *Manager) roomy() error { return m.roomyFor(0) }

// roomyFor is roomy once so many bytes more are written.
func (m *Manager) roomyFor(n int64) error {
	if m.opt.Space == nil {
		return nil
	}
	free, err := m.opt.Space.Free()
	if err != nil {
		return err
	}
	if free-n < m.opt.Reserve {
		return fmt.Errorf("%w: %s are left, and %s are kept for the host (sandbox.reserve): remove sandboxes or files, or use a larger disk",
			ErrFull, size.About(free), size.About(m.opt.Reserve))
	}
	return nil
}

// whileRoomy is a context that is done, with ErrFull as its cause, when less than
// the reserve is left: what the host writes for a sandbox counts as what that writes.
func (m *Manager) whileRoomy(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	if m.opt.Space != nil {
		go func() {
			tick := time.NewTicker(spaceEvery)
			defer tick.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				if err := m.roomy(); err != nil {
					cancel(err)
				}
			}
		}()
	}
	return ctx, func() { cancel(nil) }
}

// lastRoom is what is left of the host's disk when ends of sessions and sandboxes are
// given what Space keeps back for them, in bytes.
const lastRoom = 32 << 20

// endings counts what is being ended.
type endings struct {
	mu    sync.Mutex
	under int
}

// ending makes room for an end, which has to be written down, on a disk that is full:
// without that the sandbox that fills it could not be removed. done takes it back.
func (m *Manager) ending() (done func()) {
	if m.opt.Space == nil {
		return func() {}
	}
	m.ends.mu.Lock()
	defer m.ends.mu.Unlock()
	m.ends.under++
	if free, err := m.opt.Space.Free(); err != nil || free < lastRoom {
		m.cannotKeep(m.opt.Space.Yield())
	}
	return func() {
		m.ends.mu.Lock()
		defer m.ends.mu.Unlock()
		if m.ends.under--; m.ends.under == 0 {
			m.cannotKeep(m.opt.Space.Settle())
		}
	}
}

func (m *Manager) cannotKeep(err error) {
	if err != nil {
		m.opt.Logger.Warn("room for the end of sandboxes on a full disk cannot be kept", "error", err)
	}
}

// WatchSpace keeps the reserve for the host until ctx is done: while less is
// left, the running sandbox whose disk has grown most is held, then the next one
// that goes on growing.
func (m *Manager) WatchSpace(ctx context.Context) error {
	if m.opt.Space == nil {
		return nil
	}
	m.ending()() // which keeps room back from here on
	tick := time.NewTicker(spaceEvery)
	defer tick.Stop()
	var w spaceWatch
	for {
		if err := w.look(ctx, m); err != nil && ctx.Err() == nil {
			m.opt.Logger.Error("the reserve of the host's disk cannot be kept", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// spaceWatch compares the disks of what runs with how they were.
type spaceWatch struct {
	before map[string]int64 // bytes by the sandbox's ID, of those that ran
	taken  time.Time        // of before
}

func (w *spaceWatch) look(ctx context.Context, m *Manager) error {
	free, err := m.opt.Space.Free()
	if err != nil {
		return err
	}
	used := map[string]int64{}
	var errs []error
	var most Info
	var grown int64
	for _, i := range m.List() {
		if i.State != Running {
			continue
		}
		n, err := m.opt.Space.Used(m.dir(i.Name))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		used[i.ID] = n
		before, known := w.before[i.ID]
		if g := n - before; known && g >= leastGrowth && g > grown {
			most, grown = i, g
		}
	}
	enough := free >= m.opt.Reserve
	// Where there is too little, growth counts from before that was so: one that
	// writes slowly is found too.
	if w.before == nil || enough && time.Since(w.taken) >= growthOver {
		w.before, w.taken = used, time.Now()
	}
	for id, n := range used {
		if _, known := w.before[id]; !known {
			w.before[id] = n
		}
	}
	if !enough && grown > 0 {
		errs = append(errs, m.hold(ctx, most, fmt.Sprintf("the host's disk has %s left, less than its reserve of %s, and this sandbox's grew most, by %s",
			size.About(free), size.About(m.opt.Reserve), size.About(grown))))
		w.before, w.taken = used, time.Now() // the others have until now what they have
	}
	return errors.Join(errs...)
}

// hold keeps a sandbox from writing more: its session ends at once, its files stay.
func (m *Manager) hold(ctx context.Context, i Info, why string) error {
	// It gets no time to end in, not even what an engine takes to start a program
	// that kills it, nor what something takes that is being done to it: it could go on
	// writing.
	killed := m.slay(ctx, i.ID)
	e := m.entry(i.Name)
	defer m.release(e)
	if !e.exists {
		m.drop(i.Name, e)
	}
	if !e.exists || e.rec.ID != i.ID || e.state != Running || e.rec.Session != i.Session {
		return nil
	}
	m.opt.Logger.Warn("a sandbox is stopped to keep room for the host", "sandbox", i.Name, "reason", why)
	e.rec.Held = why // kept by the end of the session
	return errors.Join(killed, m.halt(context.WithoutCancel(ctx), e, why))
}

// slay kills what runs of a sandbox, without its lock.
func (m *Manager) slay(ctx context.Context, id string) error {
	st, err := m.opt.Runtime.Status(ctx, id)
	if err == nil && st.Running && st.PID > 1 {
		err = unix.Kill(st.PID, unix.SIGKILL)
	}
	if errors.Is(err, ErrNotFound) || errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}
