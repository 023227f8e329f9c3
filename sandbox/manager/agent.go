package manager

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"sallyport/internal/terminal"
	"sallyport/memory"
	"sallyport/sandbox"
	"sallyport/sandbox/agent/channel"
	"sallyport/sandbox/fsjail"
	"sallyport/sandbox/state"
)

// agent is the way to the agent of a sandbox that runs; the caller holds the
// entry's lock. It is good until the session ends or sleeps.
func (m *Manager) agent(e *entry) *channel.Channel {
	if e.agent == nil {
		o := m.opt.Agent
		o.Agent = e.Rec.Agent
		e.agent = channel.New(e.Rec.Address, o)
	}
	return e.agent
}

// pinAgentKey has a session's agent known by its key, from before it is asked for anything
// on: then nothing else runs yet that could answer in its stead.
func (m *Manager) pinAgentKey(ctx context.Context, e *entry) error {
	if e.Rec.Agent != nil {
		return nil
	}
	key, err := e.agent.Meet(ctx)
	if err != nil || key == nil {
		return err
	}
	return m.journal.Commit(&e.Stored, func(r *state.Record) { r.Agent = key })
}

// closeAgent ends every connection to the agent; the caller holds the entry's lock.
func (e *entry) closeAgent() {
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
			e.closeAgent()
			return true
		})
		if len(entries) == 0 || time.Now().After(deadline) {
			return nil
		}
	}
}

// startAgent runs a sandbox, if it does not run, and returns the way to its agent.
func (m *Manager) startAgent(ctx context.Context, name string) (agent *channel.Channel, spec sandbox.Spec, err error) {
	_, err = m.withLocked(ctx, name, "starting", m.memoryToWake, func(e *entry) error {
		if err := m.startWithHint(ctx, e); err != nil {
			return err
		}
		e.use()()
		agent, spec = m.agent(e), e.Rec.Spec
		if spec.Env, err = m.environment(e); err != nil {
			return err
		}
		return m.pinAgentKey(ctx, e)
	})
	return agent, spec, err
}

// startWithHint is start that says how to get at the files of a sandbox that does not start.
func (m *Manager) startWithHint(ctx context.Context, e *entry) error {
	err := m.start(ctx, e)
	if err != nil && !e.state.Live() && m.opt.Jail != nil {
		err = fmt.Errorf("%w: its files can be had, and mended, with `sallyport sandbox cp`", err)
	}
	return err
}

// Connect connects to a TCP port of a sandbox, starting it if need be: host is
// localhost, 127.0.0.1 or ::1 as the sandbox has them, or empty for its own address.
// The sandbox's agent makes the connection, so that what listens for nobody but the
// sandbox is reached too. It ends when the sandbox stops or sleeps; what is carried
// counts as use of it.
func (m *Manager) Connect(ctx context.Context, name, host string, port uint16) (sandbox.Conn, error) {
	agent, _, err := m.startAgent(ctx, name)
	if err != nil {
		return nil, err
	}
	c, err := agent.Connect(ctx, host, port)
	if said := new(channel.Error); errors.As(err, &said) && said.Status == http.StatusBadGateway {
		err = fmt.Errorf("%w: %s", sandbox.ErrNoPort, terminal.Escape(said.Failure.Error))
	}
	if err != nil {
		return nil, fmt.Errorf("connecting to port %d of %s: %w", port, name, mapAgent(err))
	}
	return &used{c, m.known(name), func() {}}, nil
}

// SFTP connects to the SFTP server of a sandbox's agent, starting the sandbox if need be:
// it speaks version 3 of the protocol with the rights of the sandbox's user, and begins in
// the folder that commands begin in. The sandbox is in use until the connection is closed,
// which ends when the sandbox stops or sleeps.
func (m *Manager) SFTP(ctx context.Context, name string) (sandbox.Conn, error) {
	agent, spec, err := m.startAgent(ctx, name)
	if err != nil {
		return nil, err
	}
	c, err := agent.SFTP(ctx, spec.User, spec.Workdir)
	if err != nil {
		return nil, fmt.Errorf("files of %s: %w", name, mapAgent(err))
	}
	u := &used{c, m.known(name), func() {}}
	if u.e != nil {
		u.done = sync.OnceFunc(u.e.use())
	}
	return u, nil
}

// used is a connection whose traffic is use of the sandbox.
type used struct {
	*channel.Port
	e    *entry // nil of one that is gone
	done func()
}

func (u *used) Close() error {
	u.done()
	return u.Port.Close()
}

func (u *used) Read(b []byte) (int, error) {
	n, err := u.Port.Read(b)
	u.note(n)
	return n, err
}

func (u *used) Write(b []byte) (int, error) {
	u.note(len(b))
	return u.Port.Write(b)
}

func (u *used) note(n int) {
	if u.e != nil && n > 0 {
		u.e.use()()
	}
}

// agentForFiles returns the way to what serves a sandbox's files, the user whose rights count
// there where nobody else is named, and what is to be called when the caller has done.
//
// That is the agent of the sandbox, which is started for it. An operator can look at the
// files and mend them, whatever root inside has made of them: where the sandbox cannot be
// started, it is an agent of the host's in a jail, as root, and the sandbox stays locked
// until done.
func (m *Manager) agentForFiles(ctx context.Context, name string, write bool) (agent *channel.Channel, user string, done func(), err error) {
	e, err := m.lockWithMemory(ctx, name, "starting", m.memoryToWake)
	if err != nil {
		return nil, "", nil, err
	}
	cause := m.start(ctx, e)
	if cause == nil {
		defer m.release(e)
		e.use()()
		return m.agent(e), e.Rec.Spec.User, func() {}, m.pinAgentKey(ctx, e)
	}
	cause = fmt.Errorf("starting sandbox %s: %w", name, cause)
	if e.state.Live() || e.Rec.Restoring != "" || ctx.Err() != nil || m.opt.Jail == nil || m.opt.Layers == nil {
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
	if i := e.shown.Load(); i == nil || !visible(ctx, i.Spec) {
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
		if err := m.checkDisk(); err != nil {
			return nil, nil, err
		}
		if booked, err = m.reserveStorage(e.Rec.Spec.Owner, e.Rec.ID, 0); err != nil {
			return nil, nil, err
		}
	}
	undo := func() {
		m.releaseDisk(ctx, e)
		booked()
	}
	defer func() {
		if err != nil {
			undo()
		}
	}()
	if err := m.attachDisk(e.Rec); err != nil {
		return nil, nil, err
	}
	upper, lower, err := m.opt.Layers.Layers(ctx, e.Rec.ID)
	if err != nil {
		return nil, nil, err
	}
	key, _ := m.opt.Agent.Key.Public().(ed25519.PublicKey)
	conn, err := m.opt.Jail(fsjail.Tree{Upper: upper, Lower: lower, Memory: memory.Dir(m.dir(e.Rec.Name))}, key)
	if err != nil {
		return nil, nil, err
	}
	m.settleDisk(e.Rec) // the next start stays possible, whatever is written
	agent = channel.New(e.Rec.Address, channel.Options{
		Key: m.opt.Agent.Key, Dial: func(context.Context, netip.AddrPort) (net.Conn, error) { return conn, nil },
	})
	unwatch := func() {}
	if write {
		watched, stop := m.watchDisk(context.WithoutCancel(ctx), 0)
		unhook := context.AfterFunc(watched, agent.Close)
		unwatch = func() { unhook(); _ = stop(nil) }
	}
	return agent, func() {
		unwatch()
		agent.Close()
		_ = conn.Close()
		undo()
	}, nil
}

// maxPlaceholders bounds those that are remembered of a sandbox and those that it is a
// fork of. The oldest are forgotten: they are recognised no more, and worth as little.
const maxPlaceholders = 32

// environment is that of a sandbox's commands: the spec's, and the placeholders of the
// credentials that rules give the sandbox now. Those are on record, and known to the
// gateway, before a command has them. The caller holds the entry's lock.
func (m *Manager) environment(e *entry) (map[string]string, error) {
	if m.opt.Placeholders == nil {
		return e.Rec.Spec.Env, nil
	}
	given, env := m.opt.Placeholders(m.info(e))
	given = slices.DeleteFunc(given, func(p sandbox.Placeholder) bool { // which the user has set
		_, set := e.Rec.Spec.Env[p.Variable]
		return set || slices.Contains(e.Rec.Placeholders, p)
	})
	if len(given) > 0 {
		all := slices.Concat(e.Rec.Placeholders, given)
		all = all[max(0, len(all)-maxPlaceholders):]
		if err := m.journal.Commit(&e.Stored, func(r *state.Record) { r.Placeholders = all }); err != nil {
			return nil, fmt.Errorf("noting placeholders: %w", err)
		}
		m.publish(e.Rec.Address, m.info(e))
	}
	if len(env) == 0 {
		return e.Rec.Spec.Env, nil
	}
	env = maps.Clone(env)
	maps.Copy(env, e.Rec.Spec.Env)
	return env, nil
}
