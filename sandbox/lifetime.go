package sandbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
)

// What is done about lifetimes.
const (
	lifetimeTick  = time.Second
	lifetimeStops = 4 // at once
)

// end is halt for a session that is over for good: an ephemeral sandbox ends with
// it.
func (m *Manager) end(ctx context.Context, e *entry, why string) error {
	if err := m.halt(ctx, e, why); err != nil || !e.rec.Spec.Ephemeral {
		return err
	}
	return m.remove(ctx, e, "ephemeral")
}

// remove removes a sandbox that does not run.
func (m *Manager) remove(ctx context.Context, e *entry, why string) error {
	defer m.ending()()
	ev := detailed(e.rec, "removed", why)
	err := m.tell(ctx, e, ev, func(r *record) { r.Ready = false })
	if err != nil {
		return errors.Join(err, m.untell(e, ev, func(r *record) { r.Ready = true }))
	}
	// What fails from here on is tried again by the next settle.
	if err := m.discard(ctx, e.rec); err != nil {
		return err
	}
	m.drop(e.rec.Name, e)
	return nil
}

// expired says whether a sandbox's lifetime has ended.
func (r record) expired(now time.Time) bool {
	return r.Spec.Lifetime != 0 && now.Sub(r.Created) >= time.Duration(r.Spec.Lifetime)
}

// outlived is the error of starting or waking a sandbox whose lifetime has ended.
func (r record) outlived() error {
	if !r.expired(time.Now()) {
		return nil
	}
	return fmt.Errorf("%w: it was %v from %s on: `sallyport sandbox set %s --lifetime` gives it more", ErrExpired, r.Spec.Lifetime, r.Created.Format(time.RFC3339), r.Name)
}

// expire ends what has outlived its lifetime, until ctx is done. What fails is
// tried again.
func (m *Manager) expire(ctx context.Context) {
	tick := time.NewTicker(lifetimeTick)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			m.expireAll(ctx)
		}
	}
}

func (m *Manager) expireAll(ctx context.Context) {
	var g errgroup.Group
	g.SetLimit(lifetimeStops)
	for _, i := range m.List() {
		over := record{Spec: i.Spec, Created: i.Created}.expired(time.Now())
		if !over || !i.State.live() && !i.Spec.Ephemeral {
			continue
		}
		g.Go(func() error {
			if err := m.outlive(ctx, i); err != nil && ctx.Err() == nil {
				m.opt.Logger.Warn("a sandbox that has outlived its lifetime cannot be ended", "sandbox", i.Name, "error", err)
			}
			return nil
		})
	}
	_ = g.Wait()
}

// outlive ends one, if it still is the one that was seen.
func (m *Manager) outlive(ctx context.Context, seen Info) error {
	e := m.known(seen.Name)
	if e == nil || !e.mu.TryLock() {
		return nil // gone, or busy: the next look finds it, and others do not wait
	}
	defer m.release(e)
	if !e.exists || e.rec.ID != seen.ID || !e.rec.expired(time.Now()) {
		return nil
	}
	why := fmt.Sprintf("its lifetime of %v has ended", e.rec.Spec.Lifetime)
	if e.state != Stopped {
		return m.end(ctx, e, why)
	}
	if e.rec.Spec.Ephemeral {
		return m.remove(ctx, e, why)
	}
	return nil
}
