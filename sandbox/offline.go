package sandbox

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"sallyport/memory"
	"sallyport/sandbox/agent/channel"
	"sallyport/sandbox/fsjail"
)

// Jail connects to an agent that has the files of a tree for its own and answers whoever
// has the key, until the connection is closed: see [fsjail.Open].
type Jail func(t fsjail.Tree, key ed25519.PublicKey) (net.Conn, error)

// reachFiles returns the way to what serves a sandbox's files, the user whose rights count
// there where nobody else is named, and what is to be called when the caller has done.
//
// That is the agent of the sandbox, which is started for it. Whatever root inside has made
// of the files, an operator can look at them and mend them: where the sandbox cannot be
// started, it is an agent of the host's in a jail, as root, and the sandbox stays locked
// until done.
func (m *Manager) reachFiles(ctx context.Context, name string, write bool) (agent *channel.Channel, user string, done func(), err error) {
	e, err := m.spacious(ctx, name, "starting", m.toWake)
	if err != nil {
		return nil, "", nil, err
	}
	cause := m.start(ctx, e)
	if cause == nil {
		defer m.release(e)
		e.use()()
		return m.agent(e), e.rec.Spec.User, func() {}, m.meet(ctx, e)
	}
	cause = fmt.Errorf("starting sandbox %s: %w", name, cause)
	if e.state.live() || e.rec.Restoring != "" || ctx.Err() != nil || m.opt.Jail == nil || m.opt.Layers == nil {
		m.release(e)
		return nil, "", nil, cause
	}
	agent, shut, err := m.openFiles(ctx, e, write)
	if err != nil {
		m.release(e)
		return nil, "", nil, errors.Join(cause, fmt.Errorf("looking at its disk instead: %w", err))
	}
	m.opt.Logger.Warn("a sandbox cannot be started; its files are read and written on its disk", "sandbox", name, "error", cause)
	done = sync.OnceFunc(func() {
		e.files.Store(nil)
		shut()
		m.release(e)
	})
	e.files.Store(&done)
	return agent, "", done, nil
}

// closeFiles ends what serves the files of a sandbox that cannot be started: whoever is
// in the middle of them holds its lock, for as long as they like.
func (m *Manager) closeFiles(ctx context.Context, name string) {
	e := m.known(name)
	if e == nil {
		return
	}
	if i := e.shown.Load(); i == nil || !i.Spec.visible(ctx) {
		return
	}
	if done := e.files.Load(); done != nil {
		(*done)()
	}
}

// openFiles serves the files of a sandbox that does not run from a jail.
func (m *Manager) openFiles(ctx context.Context, e *entry, write bool) (agent *channel.Channel, done func(), err error) {
	booked := func() {}
	if write {
		// Its own disk bounds what is written. The host has to have room for it.
		if err := m.roomy(); err != nil {
			return nil, nil, err
		}
		if booked, err = m.book(e.rec.Spec.Owner, e.rec.ID, 0); err != nil {
			return nil, nil, err
		}
	}
	undo := func() {
		m.letGo(ctx, e)
		booked()
	}
	if err := m.attachDisk(e.rec); err != nil {
		undo()
		return nil, nil, err
	}
	upper, lower, err := m.opt.Layers.Layers(ctx, e.rec.ID)
	if err != nil {
		undo()
		return nil, nil, err
	}
	key, _ := m.opt.Agent.Key.Public().(ed25519.PublicKey)
	conn, err := m.opt.Jail(fsjail.Tree{Upper: upper, Lower: lower, Memory: memory.Dir(m.dir(e.rec.Name))}, key)
	if err != nil {
		undo()
		return nil, nil, err
	}
	m.settleDisk(e.rec) // the next start stays possible, whatever is written
	agent = channel.New(e.rec.Address, channel.Options{
		Key: m.opt.Agent.Key, Dial: func(context.Context, netip.AddrPort) (net.Conn, error) { return conn, nil },
	})
	unwatch := func() {}
	if write {
		roomy, stop := m.whileRoomy(context.WithoutCancel(ctx))
		unhook := context.AfterFunc(roomy, agent.Close)
		unwatch = func() { unhook(); stop() }
	}
	return agent, func() {
		unwatch()
		agent.Close()
		_ = conn.Close()
		undo()
	}, nil
}
