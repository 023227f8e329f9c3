package manager

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"sallyport/sandbox"
	"sallyport/sandbox/agent/channel"
	"sallyport/sandbox/agent/wire"
)

// Bounds within which nothing is going on in a sandbox, for one look at it.
const (
	idleTick = 5 * time.Second
	// idleCPU is what gVisor and a few timers take; 2 % of a processor.
	idleCPU = idleTick / 50
	// idleBytes is what a dozen quiet connections answer to keep-alives. One
	// request in TLS is more.
	idleBytes = 1 << 10
)

// use notes that somebody uses a sandbox, until the function is called.
func (e *entry) use() (done func()) {
	e.busy.Add(1)
	return func() { e.used.Store(time.Now().UnixNano()); e.busy.Add(-1) }
}

// idleWatch is what was seen of a sandbox last.
type idleWatch struct {
	looking atomic.Bool // who looks has the rest
	session string
	usage   sandbox.Usage
	active  time.Time // when something went on last
}

// WatchIdle does to sandboxes that are idle what their specs want, until ctx is
// done. It is not only requests that count: a sandbox works while a command or a
// terminal is open, while it sends, and while it takes processor time. One that
// takes long to answer or to sleep keeps none of the others waiting.
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

// idleGrace is for how long the end of WatchIdle waits for what it has begun.
const idleGrace = 10 * time.Second

// checkIdle sees to one sandbox.
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
		// Each try costs it connections, and the host what it takes: not at each look.
		p.active = time.Now()
	}
	return err
}

// active tells whether something goes on in a sandbox. What cannot be told does.
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
	// state.Counters of another run begin anew.
	return u.CPU < last.CPU || u.CPU-last.CPU > idleCPU ||
		u.Sent < last.Sent || u.Sent-last.Sent > idleBytes, u
}

// busy asks the sandbox's agent how many commands' streams and terminals somebody
// reads; ok is false where that cannot be told, and the sandbox is not idle then. A
// command that nobody reads counts by what it takes and sends: one that waits sleeps
// along.
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
		// A sandbox that broke its own agent is no more awake for that.
		return 0, ctx.Err() == nil || errors.Is(err, channel.ErrSilent)
	}
	return a.Attached, true
}

const askTimeout = 2 * time.Second

// sleepIdle does to an idle sandbox what its spec wants.
func (m *Manager) sleepIdle(ctx context.Context, i sandbox.Info, why string) error {
	// Somebody may have come, and gone, while we waited for room, or for the lock.
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
