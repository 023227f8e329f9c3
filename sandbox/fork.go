package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
)

// ForkSpec says what forks to make.
type ForkSpec struct {
	// Names of the children. Default: as many as Count, after their parent.
	Names []string `json:"names,omitempty"`
	// Count is how many, where there are no names. Default: 1.
	Count int `json:"count,omitempty"`
	// Snapshot is what to fork. Default: the sandbox as it is.
	Snapshot string `json:"snapshot,omitempty"`
}

// MaxForks is how many one call makes.
const MaxForks = 64

// forksAtOnce are made or started at the same time.
const forksAtOnce = 4

// Fork makes sandboxes that have the files, the memory store and, of one that runs
// or sleeps, the processes of another, which goes on. Each is one of its own: ID,
// address, certificate authority below its parent's root. All are made or none.
// Until a child's identity is attached nothing of it passes, and it has no
// credential unless a rule says that forks inherit it.
//
// A fork of a sandbox that is stopped, or whose memory cannot be had from its
// snapshot (Info.Lost says why), is stopped.
func (m *Manager) Fork(ctx context.Context, name string, spec ForkSpec) (list []Info, err error) {
	need := func(e *entry) int64 {
		if spec.Snapshot != "" {
			return m.snapshotSize(e, spec.Snapshot)
		}
		return m.memorySize(ctx, e)
	}
	e, err := m.spacious(ctx, name, "forking", need)
	if err != nil {
		return nil, err
	}
	defer m.release(e)
	children, err := m.claim(ctx, e, spec)
	if err != nil {
		m.refused(ctx, cmp.Or(strings.Join(spec.Names, " "), name), err)
		return nil, fmt.Errorf("forking sandbox %s: %w", name, err)
	}
	defer func() {
		for _, c := range children {
			if !c.exists {
				m.drop(c.rec.Name, c)
			}
			m.release(c)
		}
	}()
	if err := m.fork(ctx, e, spec.Snapshot, children); err != nil {
		for _, c := range children {
			c.exists = false
			err = errors.Join(err, m.abort(context.WithoutCancel(ctx), c, "the fork failed"))
		}
		return nil, fmt.Errorf("forking sandbox %s: %w", name, err)
	}
	for _, c := range children {
		list = append(list, m.info(c))
	}
	return list, nil
}

// childName is the nth that Fork tries for a child without a name, from 1.
func childName(parent string, n int) string {
	suffix := fmt.Sprintf("-%d", n)
	return parent[:min(len(parent), 63-len(suffix))] + suffix
}

// claim takes the children's names, with their locks held. It waits for none: who
// has one of them may wait for the parent.
func (m *Manager) claim(ctx context.Context, parent *entry, spec ForkSpec) (children []*entry, err error) {
	names := spec.Names
	if len(names) == 0 {
		names = make([]string, max(spec.Count, 1))
	}
	if len(names) > MaxForks || spec.Count < 0 || spec.Count > 0 && len(spec.Names) > 0 && spec.Count != len(spec.Names) {
		return nil, fmt.Errorf("%w: %s with %s: one call makes 1 to %d; give a name for each, or none", ErrBadSpec,
			counted(spec.Count, "fork"), counted(len(spec.Names), "name"), MaxForks)
	}
	for i, name := range spec.Names {
		if name != "" && slices.Contains(spec.Names[:i], name) {
			return nil, fmt.Errorf("%w: two forks are to be %q: give each a name of its own", ErrTaken, name)
		}
	}
	l := &Lineage{Root: parent.rec.root(), Parent: parent.rec.ID, Name: parent.rec.Name, Snapshot: spec.Snapshot}
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
			if n := childName(parent.rec.Name, next); free(n) {
				name = n
			}
			next++
		}
		err = CheckName(name)
		if err == nil {
			err = mayName(ctx, name)
		}
		if err == nil && !free(name) {
			err = fmt.Errorf("%w: there is a sandbox %s: choose another", ErrTaken, name)
		}
		if err != nil {
			break
		}
		c := &entry{rec: record{Name: name, ID: newID(), Spec: parent.rec.strictest(), Created: now(), Lineage: l, ImageID: parent.rec.ImageID, ImageDigest: parent.rec.ImageDigest}}
		c.mu.Lock()
		m.entries[name] = c
		children = append(children, c)
	}
	if err != nil {
		for _, c := range children {
			delete(m.entries, c.rec.Name)
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

func (m *Manager) fork(ctx context.Context, e *entry, snapshot string, children []*entry) (err error) {
	if err := m.ownDisk(e.rec); err != nil {
		return err
	}
	if err := m.roomy(); err != nil {
		return err
	}
	ctx, roomy := m.whileRoomy(ctx)
	defer func() {
		if full := context.Cause(ctx); err != nil && errors.Is(full, ErrFull) {
			err = full
		}
		roomy()
	}()
	from, live, err := m.origin(e, snapshot)
	if err != nil {
		return err
	}
	most := m.storage(e.rec.Name).Disk
	if from != nil {
		most = from.Size
	}
	done, err := m.book(e.rec.Spec.Owner, e.rec.ID, most*int64(len(children)))
	if err != nil {
		return err
	}
	defer done()
	// Whatever can be made before is, so that the parent stands for as short as
	// can be.
	if err := each(children, func(c *entry) error { return m.conceive(ctx, c) }); err != nil {
		return err
	}
	mem := ""
	if live {
		dir, done := m.scratch(e)
		defer done()
		mem = dir
	}
	lost, err := m.endow(ctx, e, from, children, mem)
	if err != nil {
		return err
	}
	agent := e.rec.Agent
	if from != nil {
		agent = from.Agent
	}
	return each(children, func(c *entry) error {
		c.rec.Agent = agent
		return m.bear(ctx, c, mem, lost)
	})
}

// origin is what there is to fork: a snapshot, or the sandbox as it is for "". live
// tells whether it has processes.
func (m *Manager) origin(e *entry, snapshot string) (from *Snapshot, live bool, err error) {
	live = e.state.live()
	switch {
	case snapshot != "":
		s, err := m.snapshot(e, snapshot)
		if err != nil {
			return nil, false, err
		}
		from, live = &s, s.Memory
	case e.rec.Restoring != "":
		return nil, false, fmt.Errorf("%w: it is being restored: start it first, or fork snapshot %s", ErrState, e.rec.Restoring)
	}
	if live {
		if err := m.canRemember(e); err != nil {
			return nil, false, fmt.Errorf("%w: stop it, and fork its disk", err)
		}
	}
	return from, live, nil
}

// conceive makes what there is of a child before it has anything of its parent's.
func (m *Manager) conceive(ctx context.Context, c *entry) error {
	a, err := m.newAddress()
	if err != nil {
		return err
	}
	c.rec.Address, c.rec.MAC = a, hardwareAddress(a)
	if _, err := m.build(ctx, c.rec); err != nil { // of its parent's image
		return err
	}
	return m.unplug(ctx, c.rec) // for another disk in the place of its own
}

// endow gives children the disk of a snapshot, or of the sandbox as it is if that is
// nil, and puts the processes into the folder mem in RAM, unless that is "". lost is
// why they cannot be had, if that is so for ever.
func (m *Manager) endow(ctx context.Context, e *entry, from *Snapshot, children []*entry, mem string) (lost, err error) {
	inherit := func() error {
		if m.opt.Inherit == nil {
			return nil
		}
		for _, c := range children {
			if err := m.opt.Inherit(e.rec.ID, c.rec.ID); err != nil {
				return err
			}
		}
		return nil
	}
	first := children[0]
	if from == nil {
		stood, err := m.still(ctx, e, mem, func() error {
			if err := inherit(); err != nil {
				return err
			}
			return m.fill(ctx, first, m.dir(e.rec.Name))
		})
		if err != nil {
			return nil, err
		}
		m.opt.Logger.Info("forked a sandbox", "sandbox", e.rec.Name, "children", len(children), "stood", stood)
	} else {
		if lost, err = m.grow(ctx, first, *from, mem); err != nil {
			return nil, err
		}
		if err := inherit(); err != nil {
			return nil, err
		}
	}
	if len(children) == 1 {
		return lost, nil
	}
	thaw, err := m.opt.Disks.Freeze(m.dir(first.rec.Name))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, thaw()) }()
	return lost, each(children[1:], func(c *entry) error { return m.fill(ctx, c, m.dir(first.rec.Name)) })
}

// fill gives a child that has not started the disk of another, which is frozen.
func (m *Manager) fill(ctx context.Context, c *entry, from string) error {
	if err := m.opt.Disks.Copy(ctx, from, m.dir(c.rec.Name), m.roomy); err != nil {
		return err
	}
	return m.roomy() // a small one is copied faster than anybody looks
}

// bear has a child that has its files begin to be, with the memory in mem or
// stopped. Until it is done, a crash is the end of the child.
func (m *Manager) bear(ctx context.Context, c *entry, mem string, lost error) error {
	what := fmt.Sprintf("a fork of %s (%s)", c.rec.Lineage.Name, c.rec.Lineage.Parent)
	if c.rec.Lineage.Snapshot != "" {
		what += ", snapshot " + c.rec.Lineage.Snapshot
	}
	if lost != nil {
		c.rec.Lost, mem = lost.Error(), ""
		what += ", without its memory: " + c.rec.Lost
	}
	if err := m.tell(ctx, c, detailed(c.rec, "created", what), func(r *record) { r.Made = true }); err != nil {
		return err
	}
	if mem == "" {
		m.letGo(ctx, c)
	} else {
		err := m.begin(ctx, c, "with the processes of "+c.rec.Lineage.Name, c.rec.Agent, func() (Status, error) {
			return m.opt.Runtime.Restore(ctx, c.rec.ID, mem, nil)
		})
		if err != nil {
			return err
		}
	}
	if err := m.note(c, func(r *record) { r.Ready, r.Made = true, false }); err != nil {
		return err
	}
	if c.exists = true; c.state != Running {
		c.state = Stopped
	}
	return nil
}

// abort removes a child that was to be, and says so where it is on record.
func (m *Manager) abort(ctx context.Context, c *entry, why string) error {
	var errs []error
	if c.state == Running || c.rec.Session != "" {
		errs = append(errs, m.halt(ctx, c, why))
	}
	// What has not been told of it need not be. Its end has to be.
	known, err := m.doubt(ctx, c)
	if ev := c.rec.Untold; err == nil && ev != nil && ev.Unmapped.Sallyport.State != "created" {
		err, known = m.retell(ctx, c), true
	}
	if (c.rec.Made || c.rec.Ready) && err == nil && (known || !c.untold()) {
		err = m.tell(ctx, c, detailed(c.rec, "removed", why), func(r *record) { r.Made, r.Ready = false, false })
	}
	if err != nil {
		return errors.Join(append(errs, err)...) // to be tried again
	}
	return errors.Join(append(errs, m.discard(ctx, c.rec))...)
}

// each does something to a few at a time, until one fails.
func each(list []*entry, f func(*entry) error) error {
	if len(list) == 1 {
		return f(list[0])
	}
	var g errgroup.Group
	g.SetLimit(forksAtOnce)
	for _, e := range list {
		g.Go(func() error { return f(e) })
	}
	return g.Wait()
}
