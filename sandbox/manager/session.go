package manager

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"sallyport/internal/periodic"
	"sallyport/memory"
	"sallyport/sandbox"
	"sallyport/sandbox/agent/channel"
	"sallyport/sandbox/agent/wire"
	"sallyport/sandbox/state"
)

// stopGrace is how long a sandbox's processes have between SIGTERM and SIGKILL.
const stopGrace = 5 * time.Second

func (m *Manager) start(ctx context.Context, e *entry) error {
	if e.state == sandbox.Running {
		return nil
	}
	if err := e.Rec.CheckLifetime(); err != nil {
		return err
	}
	if e.failed() {
		return fmt.Errorf("%w: it is in error: %s: `sallyport sandbox recover %s` is the way out", sandbox.ErrState, e.Rec.Reason, e.Rec.Name)
	}
	if err := m.checkDisk(); err != nil {
		return err
	}
	switch e.state {
	case sandbox.Paused:
		return m.resume(ctx, e)
	case sandbox.Hibernated:
		return m.wake(ctx, e)
	}
	if err := m.finishRestore(ctx, e); err != nil {
		return err
	}
	if err := m.renewSpec(ctx, e); err != nil {
		return err
	}
	return m.begin(ctx, e, "", nil, func() (sandbox.Status, error) { return m.opt.Runtime.Start(ctx, e.Rec.ID) })
}

// begin starts a session, whose container run starts. agent is the key of the agent in the
// memory that the session begins with, or nil.
func (m *Manager) begin(ctx context.Context, e *entry, why string, agent []byte, run func() (sandbox.Status, error)) error {
	if err := m.renew(ctx, e, why, agent); err != nil {
		return err
	}
	e.fresh = false
	rec := e.Rec
	var st sandbox.Status
	err := m.attachDisk(rec)
	if err == nil {
		st, err = run()
	}
	if err == nil {
		m.settleDisk(rec)
	}
	if err == nil {
		err = m.attach(e, st)
	}
	if err != nil {
		ctx := context.WithoutCancel(ctx)
		return errors.Join(err, m.end(ctx, e, "failed to start: "+err.Error()), m.noteDamage(e, err))
	}
	return nil
}

// renew gives a sandbox a new session and records it.
func (m *Manager) renew(ctx context.Context, e *entry, why string, agent []byte) error {
	if err := e.Rec.CheckLifetime(); err != nil {
		return err
	}
	gen, err := m.newGeneration()
	if err != nil {
		return err
	}
	rec := e.Rec
	rec.Generation, rec.Session = gen, uuid.Must(uuid.NewV7()).String()
	return m.journal.Transact(ctx, &e.Stored, state.Lifecycle(rec, "started", why), func(r *state.Record) {
		r.Generation, r.Session, r.Reason, r.Held, r.Agent = rec.Generation, rec.Session, "", "", agent
	})
}

// attach publishes the sandbox's identity and lets its packets pass.
func (m *Manager) attach(e *entry, st sandbox.Status) error {
	if st.Link == 0 {
		return fmt.Errorf("the container has no network interface: is the engine Sallyport's own?")
	}
	e.state = sandbox.Running
	m.publish(e.Rec.Address, m.info(e))
	err := m.opt.Network.Attach(sandbox.Endpoint{
		Link: st.Link, Sandbox: e.Rec.Name, ID: e.Rec.ID,
		Generation: e.Rec.Generation, Address: e.Rec.Address, MAC: e.Rec.MAC,
		Offline: e.Rec.Spec.Offline,
	})
	if err != nil {
		return fmt.Errorf("attaching the sandbox's identity: %w", err)
	}
	return nil
}

// halt ends the session: first the sandbox's packets, then its identity, then its
// processes. It goes on after an error.
func (m *Manager) halt(ctx context.Context, e *entry, why string) error {
	defer m.yieldSpace()()
	var errs []error
	e.closeAgent() // while its end can still be told
	if e.Rec.Generation != 0 {
		errs = append(errs, m.opt.Network.Detach(e.Rec.Generation))
	}
	m.publish(e.Rec.Address, sandbox.Info{})
	m.opt.Gate.End(e.Rec.Address) // before another sandbox can have the address
	if e.Rec.Sleep != state.Awake {
		// A paused process does not notice that it is to end.
		_ = m.opt.Runtime.Resume(ctx, e.Rec.ID)
	}
	if err := m.opt.Runtime.Stop(ctx, e.Rec.ID, stopGrace); err != nil && !errors.Is(err, sandbox.ErrNotFound) {
		errs = append(errs, err)
	}
	errs = append(errs, m.detachDisk(e.Rec))
	e.state = sandbox.Stopped
	err := m.journal.CommitWithEvent(context.WithoutCancel(ctx), &e.Stored, state.Lifecycle(e.Rec, "stopped", why), func(r *state.Record) {
		r.Session = ""
		r.Wake()
	})
	if e.Rec.Sleep == state.Awake {
		err = errors.Join(err, m.removeMemory(e))
	}
	return errors.Join(append(errs, err)...)
}

// end is halt, and removes an ephemeral sandbox.
func (m *Manager) end(ctx context.Context, e *entry, why string) error {
	if !e.Rec.Spec.Ephemeral {
		m.recordMemory(ctx, e, memory.Cause{Operation: memory.Stopped})
	}
	if err := m.halt(ctx, e, why); err != nil || !e.Rec.Spec.Ephemeral {
		return err
	}
	return m.remove(ctx, e, "ephemeral")
}

// remove removes a sandbox that does not run.
func (m *Manager) remove(ctx context.Context, e *entry, why string) error {
	defer m.yieldSpace()()
	if err := m.journal.Transact(ctx, &e.Stored, state.Lifecycle(e.Rec, "removed", why), func(r *state.Record) { r.Ready = false }); err != nil {
		return err
	}
	// The next reconcile tries again what fails from here on.
	if err := m.discard(ctx, e.Rec); err != nil {
		return err
	}
	m.forget(e.Rec.Name, e)
	return nil
}

// How lifetimes are watched.
const (
	lifetimeTick  = time.Second
	lifetimeStops = 4 // at once
)

// expire ends sandboxes whose lifetime is over, until ctx is done. It tries again what
// fails.
func (m *Manager) expire(ctx context.Context) {
	for periodic.Sleep(ctx, lifetimeTick) {
		m.expireAll(ctx)
	}
}

func (m *Manager) expireAll(ctx context.Context) {
	var g errgroup.Group
	g.SetLimit(lifetimeStops)
	for _, i := range m.List() {
		over := state.Record{Spec: i.Spec, Created: i.Created}.Expired(time.Now())
		if !over || !i.State.Live() && !i.Spec.Ephemeral {
			continue
		}
		g.Go(func() error {
			if err := m.expireOne(ctx, i); err != nil && ctx.Err() == nil {
				m.opt.Logger.Warn("a sandbox that has outlived its lifetime cannot be ended", "sandbox", i.Name, "error", err)
			}
			return nil
		})
	}
	_ = g.Wait()
}

// expireOne ends the sandbox that was seen, if it is still that one.
func (m *Manager) expireOne(ctx context.Context, seen sandbox.Info) error {
	e := m.known(seen.Name)
	if e == nil || !e.mu.TryLock() {
		return nil // gone, or busy: the next look finds it, and others do not wait
	}
	defer m.release(e)
	if !e.exists || e.Rec.ID != seen.ID || !e.Rec.Expired(time.Now()) {
		return nil
	}
	why := fmt.Sprintf("its lifetime of %v has ended", e.Rec.Spec.Lifetime)
	if e.state != sandbox.Stopped {
		return m.end(ctx, e, why)
	}
	if e.Rec.Spec.Ephemeral {
		return m.remove(ctx, e, why)
	}
	return nil
}

// Bounds of what an idle sandbox uses between two looks.
const (
	idleTick = 5 * time.Second
	// idleCPU is what gVisor and a few timers use: 2 % of a processor.
	idleCPU = idleTick / 50
	// idleBytes is what a dozen quiet connections send for keep-alives. One TLS request is
	// more.
	idleBytes = 1 << 10
)

// use marks a sandbox as used until done is called.
func (e *entry) use() (done func()) {
	e.busy.Add(1)
	return func() { e.used.Store(time.Now().UnixNano()); e.busy.Add(-1) }
}

// idleWatch is what was last seen of a sandbox.
type idleWatch struct {
	looking atomic.Bool // who looks has the rest
	session string
	usage   sandbox.Usage
	active  time.Time // when something went on last
}

// WatchIdle puts idle sandboxes to sleep, or stops them, as their specs say, until ctx is
// done. A sandbox is busy while a command or a terminal is attached, while it sends, and
// while it uses the processor. A sandbox that answers or sleeps slowly delays no other.
func (m *Manager) WatchIdle(ctx context.Context) error {
	tick := time.NewTicker(idleTick)
	defer tick.Stop()
	seen := map[string]*idleWatch{} // by ID
	var looks sync.WaitGroup
	for {
		select {
		case <-ctx.Done():
			over := make(chan struct{})
			go func() { looks.Wait(); close(over) }()
			select {
			case <-over:
			case <-time.After(idleGrace): // a step that is cut short is known to the next start
			}
			return nil
		case <-tick.C:
		}
		next := make(map[string]*idleWatch, len(seen))
		for _, i := range m.List() {
			p := seen[i.ID]
			if p == nil {
				p = new(idleWatch)
			}
			next[i.ID] = p
			if !p.looking.CompareAndSwap(false, true) {
				continue
			}
			looks.Go(func() {
				defer p.looking.Store(false)
				if err := m.checkIdle(ctx, i, p); err != nil && ctx.Err() == nil {
					m.opt.Logger.Warn("an idle sandbox goes on", "sandbox", i.Name, "error", err)
				}
			})
		}
		seen = next
	}
}

// idleGrace is how long WatchIdle waits at its end for steps that it has begun.
const idleGrace = 10 * time.Second

// checkIdle looks at one sandbox.
func (m *Manager) checkIdle(ctx context.Context, i sandbox.Info, p *idleWatch) error {
	idle := time.Duration(i.Spec.Idle)
	if i.State != sandbox.Running || idle == 0 {
		return nil
	}
	e := m.known(i.Name)
	if e == nil {
		return nil
	}
	if p.session != i.Session || p.active.IsZero() {
		p.session, p.usage, p.active = i.Session, sandbox.Usage{}, time.Now()
	}
	active, usage := m.active(ctx, e, i, p.usage)
	p.usage = usage
	if used := time.Unix(0, e.used.Load()); active {
		p.active = time.Now()
	} else if used.After(p.active) {
		p.active = used
	}
	if time.Since(p.active) < idle {
		return nil
	}
	err := m.sleepIdle(ctx, i, fmt.Sprintf("it was idle for %v", idle))
	if err != nil {
		// Each try costs the sandbox connections, and the host work: wait before the next.
		p.active = time.Now()
	}
	return err
}

// active reports whether a sandbox is busy. A sandbox that cannot be asked is.
func (m *Manager) active(ctx context.Context, e *entry, i sandbox.Info, last sandbox.Usage) (bool, sandbox.Usage) {
	if e.busy.Load() > 0 {
		return true, last
	}
	if n, ok := m.busy(ctx, e, i); n > 0 || !ok {
		return true, last
	}
	if m.opt.Meter == nil {
		return false, last
	}
	u, err := m.opt.Meter.Usage(ctx, i.ID)
	if err != nil {
		return true, last
	}
	// The counters of another run begin at 0.
	return u.CPU < last.CPU || u.CPU-last.CPU > idleCPU ||
		u.Sent < last.Sent || u.Sent-last.Sent > idleBytes, u
}

// busy asks the sandbox's agent how many streams and terminals of commands have a reader.
// ok is false if the agent cannot be asked; then the sandbox is not idle. A command
// without a reader counts by what it uses and sends: one that waits may sleep with its
// sandbox.
func (m *Manager) busy(ctx context.Context, e *entry, i sandbox.Info) (n int, ok bool) {
	if m.opt.busy != nil {
		return m.opt.busy(ctx, i.ID)
	}
	if !e.mu.TryLock() {
		return 0, false // something is being done to it
	}
	if !e.exists || e.state != sandbox.Running {
		m.release(e)
		return 0, false
	}
	agent := m.agent(e)
	m.release(e)
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var a wire.Activity
	if err := agent.JSON(ctx, http.MethodGet, "/activity", nil, &a); err != nil {
		// A sandbox does not stay awake by breaking its own agent.
		return 0, ctx.Err() == nil || errors.Is(err, channel.ErrSilent)
	}
	return a.Attached, true
}

const askTimeout = 2 * time.Second

// sleepIdle does what the spec says to an idle sandbox.
func (m *Manager) sleepIdle(ctx context.Context, i sandbox.Info, why string) error {
	// It may have been used while this call waited for RAM or for the lock.
	began := time.Now().UnixNano()
	gone := func(e *entry) bool {
		return e.Rec.ID != i.ID || e.state != sandbox.Running || e.Rec.Session != i.Session || e.busy.Load() > 0 || e.used.Load() > began
	}
	need := func(e *entry) int64 {
		if gone(e) || i.Spec.OnIdle != sandbox.IdleHibernate {
			return 0
		}
		return m.memorySize(ctx, e)
	}
	_, err := m.withLocked(ctx, i.Name, "putting to sleep", need, func(e *entry) error {
		if gone(e) {
			return nil
		}
		m.opt.Logger.Info("a sandbox is idle", "sandbox", i.Name, "for", i.Spec.Idle, "then", i.Spec.OnIdle)
		switch i.Spec.OnIdle {
		case sandbox.IdlePause:
			return m.pause(ctx, e)
		case sandbox.IdleHibernate:
			return m.hibernate(ctx, e)
		}
		return m.end(ctx, e, why)
	})
	if errors.Is(err, sandbox.ErrNotFound) || errors.Is(err, errEnded) {
		return nil
	}
	return err
}

// MemoryOwner is the sandbox that a memory is of.
func MemoryOwner(i sandbox.Info) memory.Owner {
	return memory.Owner{ID: i.ID, Name: i.Name, Session: i.Session, Tenant: i.Spec.Owner}
}

func (e *entry) memoryOwner() memory.Owner {
	return memory.Owner{ID: e.Rec.ID, Name: e.Rec.Name, Session: e.Rec.Session, Tenant: e.Rec.Spec.Owner}
}

// memoryTimeout is for how long what is done to a sandbox waits for a version of its memory.
const memoryTimeout = 20 * time.Second

// recordMemory keeps what a sandbox's memory is now, before something is done to the
// sandbox or after it. That goes on where it fails: a version is missing then, and what the
// memory was busy with for all that time is ended, since it holds the disk.
func (m *Manager) recordMemory(ctx context.Context, e *entry, c memory.Cause) {
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), memoryTimeout)
	defer done()
	if m.recordMemoryWithin(ctx, e, c); ctx.Err() != nil {
		m.opt.Memories.Interrupt(e.Rec.ID)
	}
}

// recordMemoryWithin is recordMemory that waits until the end of ctx.
func (m *Manager) recordMemoryWithin(ctx context.Context, e *entry, c memory.Cause) {
	if err := m.opt.Memories.Record(ctx, e.memoryOwner(), c); err != nil {
		m.opt.Logger.Error("a version of a sandbox's memory is missing", "sandbox", e.Rec.Name, "operation", c.Operation, "error", err)
	}
}

// inheritMemory gives children the versions of their parent's memory.
func (m *Manager) inheritMemory(ctx context.Context, parent *entry, children []*entry) error {
	m.recordMemory(ctx, parent, memory.Cause{Operation: memory.Forked})
	for _, c := range children {
		if err := m.opt.Memories.Inherit(ctx, parent.memoryOwner(), c.memoryOwner()); err != nil {
			return err
		}
	}
	return nil
}
