package sandbox

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"sallyport/sandbox/agent/channel"
	"sallyport/sandbox/agent/wire"
)

// What becomes of a sandbox that has been idle for as long as its spec says.
const (
	IdlePause     = "pause"
	IdleHibernate = "hibernate"
	IdleStop      = "stop"
)

// Bounds within which nothing is going on in a sandbox, for one look at it.
const (
	idleTick = 5 * time.Second
	// idleCPU is what gVisor and a few timers take; 2 % of a processor.
	idleCPU = idleTick / 50
	// idleBytes is what a dozen quiet connections answer to keep-alives. One
	// request in TLS is more.
	idleBytes = 1 << 10
	// minIdle is several looks.
	minIdle = 4 * idleTick
)

// Usage is what a sandbox has used since it was started.
type Usage struct {
	CPU  time.Duration
	Sent uint64 // bytes, with headers
}

// Meter tells what sandboxes use. It is a Runtime's.
type Meter interface {
	Usage(ctx context.Context, id string) (Usage, error)
	// Resident is how much RAM a sandbox takes now, in bytes: what would be in its
	// memory, were it written down.
	Resident(ctx context.Context, id string) (int64, error)
}

// use notes that somebody uses a sandbox, until the function is called.
func (e *entry) use() (done func()) {
	e.busy.Add(1)
	return func() { e.used.Store(time.Now().UnixNano()); e.busy.Add(-1) }
}

// pulse is what was seen of a sandbox last.
type pulse struct {
	looking atomic.Bool // who looks has the rest
	session string
	usage   Usage
	active  time.Time // when something went on last
}

// WatchIdle does to sandboxes that are idle what their specs want, until ctx is
// done. It is not only requests that count: a sandbox works while a command or a
// terminal is open, while it sends, and while it takes processor time. One that
// takes long to answer or to sleep keeps none of the others waiting.
func (m *Manager) WatchIdle(ctx context.Context) error {
	tick := time.NewTicker(idleTick)
	defer tick.Stop()
	seen := map[string]*pulse{} // by ID
	var looks sync.WaitGroup
	for {
		select {
		case <-ctx.Done():
			over := make(chan struct{})
			go func() { looks.Wait(); close(over) }()
			select {
			case <-over:
			case <-time.After(lookGrace): // a step that is cut short is known to the next start
			}
			return nil
		case <-tick.C:
		}
		next := make(map[string]*pulse, len(seen))
		for _, i := range m.List() {
			p := seen[i.ID]
			if p == nil {
				p = new(pulse)
			}
			next[i.ID] = p
			if !p.looking.CompareAndSwap(false, true) {
				continue
			}
			looks.Go(func() {
				defer p.looking.Store(false)
				if err := m.look(ctx, i, p); err != nil && ctx.Err() == nil {
					m.opt.Logger.Warn("an idle sandbox goes on", "sandbox", i.Name, "error", err)
				}
			})
		}
		seen = next
	}
}

// lookGrace is for how long the end of WatchIdle waits for what it has begun.
const lookGrace = 10 * time.Second

// look sees to one sandbox.
func (m *Manager) look(ctx context.Context, i Info, p *pulse) error {
	idle := time.Duration(i.Spec.Idle)
	if i.State != Running || idle == 0 {
		return nil
	}
	e := m.known(i.Name)
	if e == nil {
		return nil
	}
	if p.session != i.Session || p.active.IsZero() {
		p.session, p.usage, p.active = i.Session, Usage{}, time.Now()
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
	err := m.lull(ctx, i, fmt.Sprintf("it was idle for %v", idle))
	if err != nil {
		// Each try costs it connections, and the host what it takes: not at each look.
		p.active = time.Now()
	}
	return err
}

// active tells whether something goes on in a sandbox. What cannot be told does.
func (m *Manager) active(ctx context.Context, e *entry, i Info, last Usage) (bool, Usage) {
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
	// Counters of another run begin anew.
	return u.CPU < last.CPU || u.CPU-last.CPU > idleCPU ||
		u.Sent < last.Sent || u.Sent-last.Sent > idleBytes, u
}

// busy asks the sandbox's agent how many commands' streams and terminals somebody
// reads; ok is false where that cannot be told, and the sandbox is not idle then. A
// command that nobody reads counts by what it takes and sends: one that waits sleeps
// along.
func (m *Manager) busy(ctx context.Context, e *entry, i Info) (n int, ok bool) {
	if m.opt.busy != nil {
		return m.opt.busy(ctx, i.ID)
	}
	if !e.mu.TryLock() {
		return 0, false // something is being done to it
	}
	if !e.exists || e.state != Running {
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

// lull does to an idle sandbox what its spec wants.
func (m *Manager) lull(ctx context.Context, i Info, why string) error {
	// Somebody may have come, and gone, while we waited for room, or for the lock.
	began := time.Now().UnixNano()
	gone := func(e *entry) bool {
		return e.rec.ID != i.ID || e.state != Running || e.rec.Session != i.Session || e.busy.Load() > 0 || e.used.Load() > began
	}
	need := func(e *entry) int64 {
		if gone(e) || i.Spec.OnIdle != IdleHibernate {
			return 0
		}
		return m.memorySize(ctx, e)
	}
	_, err := m.doing(ctx, i.Name, "putting to sleep", need, func(e *entry) error {
		if gone(e) {
			return nil
		}
		m.opt.Logger.Info("a sandbox is idle", "sandbox", i.Name, "for", i.Spec.Idle, "then", i.Spec.OnIdle)
		switch i.Spec.OnIdle {
		case IdlePause:
			return m.pause(ctx, e)
		case IdleHibernate:
			return m.hibernate(ctx, e)
		}
		return m.end(ctx, e, why)
	})
	if errors.Is(err, ErrNotFound) || errors.Is(err, errEnded) {
		return nil
	}
	return err
}
