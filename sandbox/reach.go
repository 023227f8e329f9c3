package sandbox

import (
	"context"
	"slices"
	"time"

	"sallyport/sandbox/agent/channel"
)

// agent is the way to the agent of a sandbox that runs; the caller holds the
// entry's lock. It is good until the session ends or sleeps.
func (m *Manager) agent(e *entry) *channel.Channel {
	if e.agent == nil {
		e.agent = channel.New(e.rec.Address, m.opt.Agent)
	}
	return e.agent
}

// hangUp ends every connection to the agent; the caller holds the entry's lock.
func (e *entry) hangUp() {
	if e.agent != nil {
		e.agent.Close()
		e.agent = nil
	}
}

// closeGrace is for how long Close waits for what is being done to sandboxes.
const closeGrace = 2 * time.Second

// Close ends every connection to the agents. Sandboxes and what runs in them go
// on. One that something is being done to, which may take minutes, is not waited for
// longer than a moment: its connections end with the process.
func (m *Manager) Close() error {
	entries := m.all()
	for deadline := time.Now().Add(closeGrace); ; time.Sleep(10 * time.Millisecond) {
		entries = slices.DeleteFunc(entries, func(e *entry) bool {
			if !e.mu.TryLock() {
				return false
			}
			defer e.mu.Unlock()
			e.hangUp()
			return true
		})
		if len(entries) == 0 || time.Now().After(deadline) {
			return nil
		}
	}
}

// reach runs a sandbox, if it does not run, and returns the way to its agent.
func (m *Manager) reach(ctx context.Context, name string) (agent *channel.Channel, spec Spec, err error) {
	_, err = m.doing(ctx, name, "starting", m.toWake, func(e *entry) error {
		if err := m.start(ctx, e); err != nil {
			return err
		}
		e.use()()
		agent, spec = m.agent(e), e.rec.Spec
		return nil
	})
	return agent, spec, err
}
