package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
)

// settleWait is for how long a memory checkpoint may take that an earlier process
// of ours has begun.
const settleWait = 30 * time.Second

// settleSleep brings a sandbox that has gone to sleep, or was about to, into
// agreement with its container, as settle does with the others.
func (m *Manager) settleSleep(ctx context.Context, e *entry, have Endpoint, st Status) (keep bool, err error) {
	switch e.rec.Sleep {
	case pausedNow:
		return m.settlePaused(ctx, e, have, st)
	case resuming:
		return m.settleResuming(ctx, e, have, st)
	case hibernating:
		return m.settleHibernating(ctx, e, have, st)
	}
	// hibernated, or waking: its memory is on the disk.
	switch {
	case st.Running && e.rec.Sleep == waking:
		// It woke, and only the record of it is missing.
		keep, err := m.identify(ctx, e, have, st)
		if err != nil {
			return keep, err
		}
		return keep, m.wakened(e)
	case st.Running:
		return false, m.lose(ctx, e, "it was started behind Sallyport's back")
	case e.rec.Sleep == waking && !st.Started.Equal(e.rec.Began):
		return false, m.lose(ctx, e, "it ended as it woke")
	}
	if err := m.unspent(ctx, e); err != nil {
		if !errors.Is(err, ErrRan) {
			return false, err
		}
		return false, m.lose(ctx, e, "it may have woken before the daemon, or the host, ended: "+err.Error())
	}
	if _, err := os.Stat(m.checkpointPath(e)); errors.Is(err, os.ErrNotExist) {
		return false, m.lose(ctx, e, "its memory checkpoint is gone")
	}
	if e.state == Hibernated && have.Link == 0 {
		return false, nil
	}
	err = e.drop(m.ram(e))
	if e.rec.Sleep != hibernated {
		err = errors.Join(err, m.tell(ctx, e, detailed(e.rec, "hibernated", "it was woken as the daemon ended, and is as before"), func(r *record) { r.Sleep = hibernated }))
	}
	m.enter(e, Hibernated)
	return false, err
}

// unspent is ErrRan where the memory of a sandbox that was waking may have been gone
// on with, so that its disk may be ahead. The record has that it wakes, for good,
// before anything can begin; what takes that back is the runtime's word that nothing
// has, or will, which does not outlive the host.
func (m *Manager) unspent(ctx context.Context, e *entry) error {
	if e.rec.Sleep != waking {
		return nil
	}
	now, err := m.boot()
	if err != nil {
		return err
	}
	if e.rec.Boot != now {
		return fmt.Errorf("%w: in another boot of the host, or one that is not on record", ErrRan)
	}
	known, err := m.opt.Runtime.Forgo(ctx, e.rec.ID)
	if err == nil && !known {
		err = ErrRan
	}
	return err
}

// boot names the time from one start of the host to the next.
func (m *Manager) boot() (string, error) {
	if m.opt.boot != "" {
		return m.opt.boot, nil
	}
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id)), err
}

// settlePaused: a paused sandbox is in the engine's hands.
func (m *Manager) settlePaused(ctx context.Context, e *entry, have Endpoint, st Status) (keep bool, err error) {
	if !st.Running {
		return false, m.lose(ctx, e, "it ended while it was paused")
	}
	keep, err = m.identify(ctx, e, have, st)
	if err != nil {
		return keep, err
	}
	if st.Paused {
		m.enter(e, Paused)
		return keep, nil
	}
	return keep, m.resumed(ctx, e, "behind Sallyport's back")
}

// settleResuming: that it goes on is on record, and only has to be so.
func (m *Manager) settleResuming(ctx context.Context, e *entry, have Endpoint, st Status) (keep bool, err error) {
	if !st.Running {
		return false, m.lose(ctx, e, "it ended while it was paused")
	}
	if st.Paused {
		if err := m.opt.Runtime.Resume(ctx, e.rec.ID); err != nil {
			return true, err
		}
	}
	if keep, err = m.identify(ctx, e, have, st); err != nil {
		return keep, err
	}
	return keep, m.wakened(e)
}

// resumed is wakened of one that is paused by what is on record.
func (m *Manager) resumed(ctx context.Context, e *entry, why string) error {
	return errors.Join(m.tell(ctx, e, detailed(e.rec, "resumed", why), func(r *record) { r.Sleep = resuming }), m.wakened(e))
}

// settleHibernating: what writes the memory lives on without us, and ends the
// container when it is whole.
func (m *Manager) settleHibernating(ctx context.Context, e *entry, have Endpoint, st Status) (keep bool, err error) {
	for deadline := time.Now().Add(settleWait); st.Running; {
		_, whole := os.Stat(m.ram(e))
		_, part := os.Stat(m.ram(e) + ".part")
		if whole != nil && part != nil || time.Now().After(deadline) {
			break // it was not begun, or will not end
		}
		select {
		case <-ctx.Done():
			return true, ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
		if st, err = m.opt.Runtime.Status(ctx, e.rec.ID); err != nil {
			return true, err
		}
	}
	if st.Running {
		keep, err = m.identify(ctx, e, have, st)
		if err != nil {
			return keep, err
		}
		defer m.confine(e) // once what was written is gone
		if e.rec.Dozed {
			return keep, m.resumed(ctx, e, "the daemon ended as it was being hibernated")
		}
		return keep, m.wakened(e)
	}
	if !st.Started.Equal(e.rec.Began) {
		return false, m.lose(ctx, e, "it ended as it went on from what was written")
	}
	// Where its memory could not be kept it was to go on: see again.
	if _, err := m.opt.Runtime.Forgo(ctx, e.rec.ID); errors.Is(err, ErrRan) {
		return false, m.lose(ctx, e, "it could not be hibernated, and may have gone on before the daemon ended: "+err.Error())
	} else if err != nil {
		return false, err
	}
	if _, err := os.Stat(m.checkpointPath(e)); err == nil { // sealed, and not recorded
		return false, m.settled(ctx, e)
	}
	if _, err := os.Stat(m.ram(e)); err == nil {
		build, err := m.opt.Runtime.Build(ctx)
		if err != nil {
			return false, err
		}
		return false, m.settleHibernated(ctx, e, m.sealMemory(e.rec, build, m.ram(e), m.checkpointPath(e)))
	}
	return false, m.lose(ctx, e, "it ended before its memory was written")
}

// settled is for a checkpoint that is on the disk, of which nothing else is.
func (m *Manager) settled(ctx context.Context, e *entry) error {
	err := m.tell(ctx, e, detailed(e.rec, "hibernated", "recorded after a restart of the daemon"), func(r *record) {
		r.Sleep, r.Lost, r.Wakes, r.Dozed = hibernated, "", 0, false
	})
	if err != nil {
		return err
	}
	m.enter(e, Hibernated)
	return e.drop(m.ram(e))
}
