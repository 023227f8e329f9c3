package sandbox

import (
	"context"
	"fmt"
	"slices"
	"time"

	"sallyport/sandbox/agent/channel"
)

// agent is the way to the agent of a sandbox that runs; the caller holds the
// entry's lock. It is good until the session ends or sleeps.
func (m *Manager) agent(e *entry) *channel.Channel {
	if e.agent == nil {
		o := m.opt.Agent
		o.Agent = e.rec.Agent
		e.agent = channel.New(e.rec.Address, o)
	}
	return e.agent
}

// meet has a session's agent known by its key, from before it is asked for anything
// on: then nothing else runs yet that could answer in its stead.
func (m *Manager) meet(ctx context.Context, e *entry) error {
	if e.rec.Agent != nil {
		return nil
	}
	key, err := e.agent.Meet(ctx)
	if err != nil || key == nil {
		return err
	}
	return m.note(e, func(r *record) { r.Agent = key })
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
		if err := m.startOrSay(ctx, e); err != nil {
			return err
		}
		e.use()()
		agent, spec = m.agent(e), e.rec.Spec
		return m.meet(ctx, e)
	})
	return agent, spec, err
}

// startOrSay is start that says how to get at the files of a sandbox that does not start.
func (m *Manager) startOrSay(ctx context.Context, e *entry) error {
	err := m.start(ctx, e)
	if err != nil && !e.state.live() && m.opt.Jail != nil {
		err = fmt.Errorf("%w: its files can be had, and mended, with `sallyport sandbox cp`", err)
	}
	return err
}
