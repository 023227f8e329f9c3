package manager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"sallyport/memory"
	"sallyport/sandbox"
	"sallyport/sandbox/state"
)

// Fork makes copies of a sandbox that goes on: each has its files, its memory store and,
// if it runs or sleeps, its processes. Each child is a sandbox of its own, with its own
// ID, address, and certificate authority below its parent's root. Either all are made or
// none. No packet of a child passes until its identity is attached, and it has no
// credential unless a rule says that forks inherit it.
//
// The children are stopped if the parent is, or if the snapshot's memory cannot be
// restored; Info.Lost says why.
func (m *Manager) Fork(ctx context.Context, name string, spec sandbox.ForkSpec) (list []sandbox.Info, err error) {
	// The RAM for the processes is reserved before the parent is locked.
	parent, err := m.lockWithMemory(ctx, name, "forking", func(e *entry) int64 { return m.forkMemory(ctx, e, spec.Snapshot) })
	if err != nil {
		return nil, err
	}
	defer m.release(parent)
	defer func() {
		if err != nil {
			list, err = nil, fmt.Errorf("forking sandbox %s: %w", name, err)
		}
	}()
	children, err := m.lockChildren(ctx, parent, spec)
	if err != nil {
		m.recordIfRefused(ctx, cmp.Or(strings.Join(spec.Names, " "), name), err)
		return nil, err
	}
	defer m.releaseChildren(children)
	defer func() {
		if err != nil {
			err = errors.Join(err, m.discardChildren(ctx, children))
		}
	}()
	src, err := m.forkSource(parent, spec.Snapshot)
	if err != nil {
		return nil, err
	}
	ctx, done, err := m.reserveForFork(ctx, parent, src, len(children))
	if err != nil {
		return nil, err
	}
	defer func() { err = done(err) }()
	// All that can be made without the parent is made first, so that the parent is paused
	// for as short as possible.
	if err := each(children, func(c *entry) error { return m.prepareChild(ctx, c) }); err != nil {
		return nil, err
	}
	mem := "" // the folder in RAM for the processes
	if src.live {
		dir, done := m.scratchFolder(parent)
		defer done()
		mem = dir
	}
	if err := m.inheritMemory(ctx, parent, children); err != nil {
		return nil, err
	}
	lost, err := m.copyFiles(ctx, parent, src, children, mem)
	if err != nil {
		return nil, err
	}
	if err := each(children, func(c *entry) error { return m.startChild(ctx, c, src.agent, mem, lost) }); err != nil {
		return nil, err
	}
	for _, c := range children {
		m.opt.Memories.Changed(ctx, c.memoryOwner(), memory.Cause{Operation: memory.Forked, From: parent.Rec.Name})
		list = append(list, m.info(c))
	}
	return list, nil
}

// forkMemory is the RAM that the processes of a fork take on their way, in bytes.
func (m *Manager) forkMemory(ctx context.Context, parent *entry, snapshot string) int64 {
	if snapshot != "" {
		return m.snapshotSize(parent, snapshot)
	}
	return m.memorySize(ctx, parent)
}

// childName is the nth name that is tried for a child without one, from 1.
func childName(parent string, n int) string {
	suffix := fmt.Sprintf("-%d", n)
	return parent[:min(len(parent), 63-len(suffix))] + suffix
}

// lockChildren takes the children's names, picks those that are not given, and locks the
// entries. It waits for no lock, since the holder of one may wait for the parent's.
func (m *Manager) lockChildren(ctx context.Context, parent *entry, spec sandbox.ForkSpec) (children []*entry, err error) {
	names := spec.Names
	if len(names) == 0 {
		names = make([]string, max(spec.Count, 1))
	}
	if len(names) > sandbox.MaxForks || spec.Count < 0 || spec.Count > 0 && len(spec.Names) > 0 && spec.Count != len(spec.Names) {
		return nil, fmt.Errorf("%w: %s with %s: one call makes 1 to %d; give a name for each, or none", sandbox.ErrBadSpec,
			counted(spec.Count, "fork"), counted(len(spec.Names), "name"), sandbox.MaxForks)
	}
	for i, name := range spec.Names {
		if name != "" && slices.Contains(spec.Names[:i], name) {
			return nil, fmt.Errorf("%w: two forks are to be %q: give each a name of its own", sandbox.ErrTaken, name)
		}
	}
	lineage := &sandbox.Lineage{Root: parent.Rec.Root(), Parent: parent.Rec.ID, Name: parent.Rec.Name, Snapshot: spec.Snapshot}
	m.mu.Lock()
	defer m.mu.Unlock()
	free := func(name string) bool {
		_, taken := m.entries[name]
		_, err := os.Lstat(m.dir(name))
		return !taken && errors.Is(err, os.ErrNotExist)
	}
	next := 1
	for _, name := range names {
		for name == "" {
			if n := childName(parent.Rec.Name, next); free(n) {
				name = n
			}
			next++
		}
		err = sandbox.CheckName(name)
		if err == nil {
			err = checkAllowed(ctx, name)
		}
		if err == nil && !free(name) {
			err = fmt.Errorf("%w: there is a sandbox %s: choose another", sandbox.ErrTaken, name)
		}
		if err != nil {
			break
		}
		c := &entry{Stored: state.Stored{Rec: state.Record{
			Name: name, ID: newID(), Spec: parent.Rec.StrictestSpec(), Created: now(), Lineage: lineage,
			ImageID: parent.Rec.ImageID, ImageDigest: parent.Rec.ImageDigest, Placeholders: parent.Rec.Placeholders,
		}}}
		c.mu.Lock()
		m.entries[name] = c
		children = append(children, c)
	}
	if err != nil {
		for _, c := range children {
			delete(m.entries, c.Rec.Name)
			c.mu.Unlock()
		}
		return nil, err
	}
	return children, nil
}

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// releaseChildren unlocks the children, and forgets those that were not made.
func (m *Manager) releaseChildren(children []*entry) {
	for _, c := range children {
		if !c.exists {
			m.forget(c.Rec.Name, c)
		}
		m.release(c)
	}
}

// forkSource is what a fork copies.
type forkSource struct {
	snapshot *sandbox.Snapshot // nil: the parent as it is now
	live     bool              // it has processes
	agent    []byte            // key of the agent among them
	size     int64             // of the disk, in bytes
}

// forkSource finds what to copy: a snapshot, or the parent as it is now for "".
func (m *Manager) forkSource(parent *entry, snapshot string) (src forkSource, err error) {
	if err := m.ownDisk(parent.Rec); err != nil {
		return src, err
	}
	switch {
	case snapshot != "":
		s, err := m.snapshot(parent, snapshot)
		if err != nil {
			return src, err
		}
		src = forkSource{snapshot: &s, live: s.Memory, agent: s.Agent, size: s.Size}
	case parent.Rec.Restoring != "":
		return src, fmt.Errorf("%w: it is being restored: start it first, or fork snapshot %s", sandbox.ErrState, parent.Rec.Restoring)
	default:
		src = forkSource{live: parent.state.Live(), agent: parent.Rec.Agent, size: m.storage(parent.Rec.Name).Disk}
	}
	if src.live {
		if err := m.canCheckpoint(parent); err != nil {
			return src, fmt.Errorf("%w: stop it, and fork its disk", err)
		}
	}
	return src, nil
}

// reserveForFork makes sure of disk space for the children: the host's, which ends the
// context when it runs short, and that of the owner's quota. done gives the reservation
// back, and returns ErrDiskFull in place of an error that it caused.
func (m *Manager) reserveForFork(ctx context.Context, parent *entry, src forkSource, children int) (_ context.Context, done func(error) error, err error) {
	if err := m.checkDisk(); err != nil {
		return ctx, nil, err
	}
	release, err := m.reserveStorage(parent.Rec.Spec.Owner, parent.Rec.ID, src.size*int64(children))
	if err != nil {
		return ctx, nil, err
	}
	ctx, stop := m.watchDisk(ctx, 0)
	return ctx, func(err error) error {
		defer release()
		return stop(err)
	}, nil
}

// prepareChild makes a child's container and an empty disk.
func (m *Manager) prepareChild(ctx context.Context, c *entry) error {
	a, err := m.newAddress()
	if err != nil {
		return err
	}
	c.Rec.Address, c.Rec.MAC = a, state.HardwareAddress(a)
	if _, err := m.build(ctx, c.Rec); err != nil { // of its parent's image
		return err
	}
	return m.stopAndDetach(ctx, c.Rec) // the parent's files take the place of its disk
}

// copyFiles gives the children the files of src, and puts the processes into the folder
// mem in RAM, unless mem is "". lost says why the processes are lost for good, if they
// are.
func (m *Manager) copyFiles(ctx context.Context, parent *entry, src forkSource, children []*entry, mem string) (lost, err error) {
	inherit := func() error {
		if m.opt.Inherit == nil {
			return nil
		}
		for _, c := range children {
			if err := m.opt.Inherit(parent.Rec.ID, c.Rec.ID); err != nil {
				return err
			}
		}
		return nil
	}
	first := children[0]
	if src.snapshot == nil {
		pausedFor, err := m.withFrozen(ctx, parent, mem, func() error {
			if err := inherit(); err != nil {
				return err
			}
			return m.copyInto(ctx, first, m.dir(parent.Rec.Name))
		})
		if err != nil {
			return nil, err
		}
		m.opt.Logger.Info("forked a sandbox", "sandbox", parent.Rec.Name, "children", len(children), "pausedFor", pausedFor)
	} else {
		if lost, err = m.restoreInto(ctx, first, *src.snapshot, mem); err != nil {
			return nil, err
		}
		if err := inherit(); err != nil {
			return nil, err
		}
	}
	if len(children) == 1 {
		return lost, nil
	}
	thaw, err := m.opt.Disks.Freeze(m.dir(first.Rec.Name))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, thaw()) }()
	return lost, each(children[1:], func(c *entry) error { return m.copyInto(ctx, c, m.dir(first.Rec.Name)) })
}

// copyInto gives a child that has not started the disk of a folder, which is frozen.
func (m *Manager) copyInto(ctx context.Context, c *entry, from string) error {
	if err := m.opt.Disks.Copy(ctx, from, m.dir(c.Rec.Name), m.checkDisk); err != nil {
		return err
	}
	return m.checkDisk() // a small disk is copied before the first check
}

// startChild records a child whose files are in place and starts it from mem, or leaves
// it stopped. If the daemon ends before it returns, the next start removes the child.
func (m *Manager) startChild(ctx context.Context, c *entry, agent []byte, mem string, lost error) error {
	c.Rec.Agent = agent
	what := fmt.Sprintf("a fork of %s (%s)", c.Rec.Lineage.Name, c.Rec.Lineage.Parent)
	if c.Rec.Lineage.Snapshot != "" {
		what += ", snapshot " + c.Rec.Lineage.Snapshot
	}
	if lost != nil {
		c.Rec.Lost, mem = lost.Error(), ""
		what += ", without its memory: " + c.Rec.Lost
	}
	if err := m.journal.CommitWithEvent(ctx, &c.Stored, state.Lifecycle(c.Rec, "created", what), func(r *state.Record) { r.Made = true }); err != nil {
		return err
	}
	if mem == "" {
		m.releaseDisk(ctx, c)
	} else {
		err := m.begin(ctx, c, "with the processes of "+c.Rec.Lineage.Name, c.Rec.Agent, func() (sandbox.Status, error) {
			return m.opt.Runtime.Restore(ctx, c.Rec.ID, mem, nil)
		})
		if err != nil {
			return err
		}
	}
	if err := m.journal.Commit(&c.Stored, func(r *state.Record) { r.Ready, r.Made = true, false }); err != nil {
		return err
	}
	if c.exists = true; c.state != sandbox.Running {
		c.state = sandbox.Stopped
	}
	return nil
}

// discardChildren removes all children of a fork that failed.
func (m *Manager) discardChildren(ctx context.Context, children []*entry) (err error) {
	for _, c := range children {
		c.exists = false
		err = errors.Join(err, m.discardChild(context.WithoutCancel(ctx), c, "the fork failed"))
	}
	return err
}

// discardChild removes a child that was not completed, and records its end where its
// creation is on record.
func (m *Manager) discardChild(ctx context.Context, c *entry, why string) error {
	var errs []error
	if c.state == sandbox.Running || c.Rec.Session != "" {
		errs = append(errs, m.halt(ctx, c, why))
	}
	// A creation that is not in the log need not get there; an end must.
	known, err := m.journal.CheckDelivered(ctx, &c.Stored)
	if ev := c.Rec.Pending; err == nil && ev != nil && ev.Unmapped.Sallyport.State != "created" {
		err, known = m.journal.Deliver(ctx, &c.Stored), true
	}
	if (c.Rec.Made || c.Rec.Ready) && err == nil && (known || !c.Undelivered()) {
		err = m.journal.CommitWithEvent(ctx, &c.Stored, state.Lifecycle(c.Rec, "removed", why), func(r *state.Record) { r.Made, r.Ready = false, false })
	}
	if err != nil {
		return errors.Join(append(errs, err)...) // the next reconcile tries again
	}
	return errors.Join(append(errs, m.discard(ctx, c.Rec))...)
}

// each calls f for a few entries at a time, until one fails.
func each(list []*entry, f func(*entry) error) error {
	if len(list) == 1 {
		return f(list[0])
	}
	var g errgroup.Group
	g.SetLimit(4)
	for _, e := range list {
		g.Go(func() error { return f(e) })
	}
	return g.Wait()
}
