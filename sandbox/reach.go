package sandbox

import (
	"context"
	"fmt"
	"maps"
	"slices"

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

// Close ends every connection to the agents. Sandboxes and what runs in them go
// on.
func (m *Manager) Close() error {
	m.mu.Lock()
	entries := slices.Collect(maps.Values(m.entries))
	m.mu.Unlock()
	for _, e := range entries {
		e.mu.Lock()
		e.hangUp()
		e.mu.Unlock()
	}
	return nil
}

// reach runs a sandbox, if it does not run, and returns the way to its agent.
func (m *Manager) reach(ctx context.Context, name string) (*channel.Channel, Spec, error) {
	e, err := m.existing(ctx, name)
	if err != nil {
		return nil, Spec{}, err
	}
	defer m.release(e)
	if err := m.start(ctx, e); err != nil {
		return nil, Spec{}, fmt.Errorf("starting sandbox %s: %w", name, err)
	}
	e.use()()
	return m.agent(e), e.rec.Spec, nil
}
