package manager

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strings"

	"sallyport/memory"
	"sallyport/sandbox"
	"sallyport/sandbox/disk"
	"sallyport/sandbox/state"
)

// create makes a sandbox step by step; what a failed step leaves is undone.
func (m *Manager) create(ctx context.Context, e *entry, name string, spec sandbox.Spec) (err error) {
	if err := m.removeLeftovers(ctx, name); err != nil {
		return err
	}
	if err := m.checkDisk(); err != nil {
		return err
	}
	if err := m.checkQuota(spec.Owner); err != nil {
		return err
	}
	if done, err := m.reserveStorage(spec.Owner, "", leastGrowth); err != nil { // an empty disk takes as much
		return err
	} else {
		defer done()
	}
	if taken, err := m.takeFromPool(ctx, e, name, spec); taken || err != nil {
		return err
	}
	rec := state.Record{Name: name, ID: newID(), Spec: spec, Created: now()}
	if rec.Address, err = m.newAddress(); err != nil {
		return err
	}
	rec.MAC = state.HardwareAddress(rec.Address)
	e.Rec = rec
	defer func() {
		if err != nil {
			// The user's context may be what failed; the clean-up must not.
			err = errors.Join(err, m.discard(context.WithoutCancel(ctx), rec))
			e.Rec = state.Record{}
		}
	}()
	img, err := m.build(ctx, rec)
	if err != nil {
		return err
	}
	rec.SetImage(img)
	e.Rec = rec
	if err := m.journal.CommitWithEvent(ctx, &e.Stored, state.Lifecycle(rec, "created", ""), func(r *state.Record) { r.Ready = true }); err != nil {
		return err
	}
	e.state, e.exists, e.fresh = sandbox.Stopped, true, true
	return nil
}

// removeLeftovers removes what an attempt left that failed when the engine could not be
// reached to undo it. Anything else in the way of a name stays.
func (m *Manager) removeLeftovers(ctx context.Context, name string) error {
	if _, err := os.Lstat(m.dir(name)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	rec, err := state.Read(m.dir(name))
	if err != nil || rec.Ready || rec.Name != name {
		if sandbox.OwnerOf(ctx) != "" { // who cannot do anything about it
			return fmt.Errorf("%w: %q: something on the host is in the way: choose another", sandbox.ErrBadName, name)
		}
		return fmt.Errorf("%w: %s is in the way: move it aside", sandbox.ErrBadName, m.dir(name))
	}
	if err := m.discard(ctx, rec); err != nil {
		return fmt.Errorf("removing what an earlier attempt left: %w", err)
	}
	return nil
}

// build makes all that a sandbox is, and leaves what it made when it fails.
func (m *Manager) build(ctx context.Context, rec state.Record) (sandbox.Image, error) {
	if err := m.takeQuota(rec); err != nil {
		return sandbox.Image{}, err
	}
	if err := os.Mkdir(m.dir(rec.Name), 0o700); err != nil {
		return sandbox.Image{}, err
	}
	if err := rec.Write(m.dir(rec.Name)); err != nil {
		return sandbox.Image{}, err
	}
	c, err := m.container(rec, rec.Name)
	if err != nil {
		return sandbox.Image{}, err
	}
	return m.opt.Runtime.Create(ctx, c)
}

// container makes what a container needs besides its image, and says what it is to
// be.
func (m *Manager) container(rec state.Record, host string) (sandbox.Container, error) {
	layer, err := m.makeDisk(rec)
	if err != nil {
		return sandbox.Container{}, err
	}
	mem, err := memory.Ensure(m.dir(rec.Name))
	if err != nil {
		return sandbox.Container{}, err
	}
	like := ""
	if rec.Lineage != nil && !rec.Ready {
		like = rec.Lineage.Parent
		if err := m.opt.Authority.Adopt(rec.ID, like); err != nil {
			return sandbox.Container{}, err
		}
	}
	root, err := m.opt.Authority.Root(rec.ID)
	if err != nil {
		return sandbox.Container{}, err
	}
	return sandbox.Container{
		ID: rec.ID, Name: host, Spec: rec.Spec,
		Address: netip.PrefixFrom(rec.Address, m.opt.Subnet.Bits()),
		Gateway: state.AddressAt(m.opt.Subnet, 1),
		MAC:     rec.MAC,
		Mounts:  append([]sandbox.Mount{{Source: mem, Target: "/memory"}}, m.stores(rec)...),
		Trust:   root,
		Layer:   layer,
		Like:    like,
	}, nil
}

// stores are the mounts of the stores that a sandbox shares with others.
func (m *Manager) stores(rec state.Record) []sandbox.Mount {
	if m.opt.Stores == nil {
		return nil
	}
	return m.opt.Stores(rec.Name, sandbox.Info{Spec: rec.Spec, Lineage: rec.Lineage}.Tags())
}

// discard removes what may exist of a sandbox. It is safe to call twice.
func (m *Manager) discard(ctx context.Context, rec state.Record) error {
	var errs []error
	if err := m.opt.Runtime.Remove(ctx, rec.ID); err != nil && !errors.Is(err, sandbox.ErrNotFound) {
		// The record stays, so that the next start tries again.
		return fmt.Errorf("removing the container of %s: %w", rec.Name, err)
	}
	if rec.Generation != 0 {
		errs = append(errs, m.opt.Network.Detach(rec.Generation))
	}
	errs = append(errs, m.opt.Authority.Forget(rec.ID))
	if err := m.detachDisk(rec); err != nil {
		return fmt.Errorf("removing the disk of %s: %w", rec.Name, errors.Join(append(errs, err)...))
	}
	if m.opt.Forget != nil {
		errs = append(errs, m.opt.Forget(rec.ID))
	}
	errs = append(errs, removeTree(ctx, m.dir(rec.Name)))
	if err := os.Remove(m.link(rec.ID)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}
	err := errors.Join(errs...)
	if err == nil {
		m.mu.Lock()
		delete(m.addresses, rec.Address)
		m.uncount(rec.ID)
		m.mu.Unlock()
	}
	return err
}

func (m *Manager) newAddress() (netip.Addr, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a, err := m.counters.NextAddress(m.opt.Subnet, func(a netip.Addr) bool { return m.addresses[a] })
	if err == nil {
		m.addresses[a] = true
	}
	return a, err
}

// newGeneration is of a sandbox's next endpoint. It is in its record before the
// endpoint is there.
func (m *Manager) newGeneration() (uint32, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.counters.NextGeneration()
}

// renewGeneration gives a sandbox that goes on in its session the generation of another
// endpoint.
func (m *Manager) renewGeneration(e *entry) error {
	gen, err := m.newGeneration()
	if err != nil {
		return err
	}
	return m.journal.Commit(&e.Stored, func(r *state.Record) { r.Generation = gen })
}

func newID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// Reasons for the state Failed, and what Recover does about each:
//
//   - its container is gone: it is made again of its own image, over what the sandbox
//     had written, which is on its disk. Without a disk of its own that is gone. Where
//     the image is gone too, it is made of the one that has its name now.
//   - its disk cannot be mended: it is tried again, once the operator has.

// Recover gets a sandbox out of Failed: it is stopped then. One that is in no error
// is left as it is.
func (m *Manager) Recover(ctx context.Context, name string) (sandbox.Info, error) {
	return m.withLocked(ctx, name, "recovering", noMemory, func(e *entry) error {
		if !e.failed() {
			return nil
		}
		return m.recover(ctx, e)
	})
}

// failed tells whether a sandbox is in Failed.
func (e *entry) failed() bool {
	return e.Rec.Reason != "" && !e.state.Live()
}

func (m *Manager) recover(ctx context.Context, e *entry) error {
	how, lost, img := "its disk can be used again", "", sandbox.Image{}
	_, err := m.opt.Runtime.Status(ctx, e.Rec.ID)
	switch {
	case errors.Is(err, sandbox.ErrNotFound):
		if err := m.checkImage(e.Rec.Spec); err != nil {
			return err
		}
		how = "its container is made again over its files"
		if e.Rec.Spec.Disk == 0 {
			how = "its container is made again"
			lost = "its container was gone, and with it all files but those in /memory"
		}
		c, err := m.container(e.Rec, e.Rec.Name)
		if err != nil {
			return err
		}
		c.Image = e.Rec.ImageID
		if img, err = m.opt.Runtime.Create(ctx, c); errors.Is(err, sandbox.ErrNoImage) && c.Image != "" {
			c.Image = ""
			if img, err = m.opt.Runtime.Create(ctx, c); err == nil {
				other := fmt.Sprintf("its image %s was gone, and it is made of another one that is named %s now, %s", e.Rec.ImageID, e.Rec.Spec.Image, img.ID)
				how, lost = how+": "+other, strings.TrimPrefix(lost+"; "+other, "; ")
			}
		}
		if err != nil {
			return err
		}
		m.releaseDisk(ctx, e)
		// It has the limits of the spec that it is made of.
	case err != nil:
		return err
	default:
		if err := m.attachDisk(e.Rec); err != nil {
			return err
		}
		if err := m.detachDisk(e.Rec); err != nil {
			return err
		}
	}
	return m.journal.CommitWithEvent(ctx, &e.Stored, state.Lifecycle(e.Rec, "recovered", how), func(r *state.Record) {
		if r.Reason = ""; lost != "" {
			r.Lost = lost
		}
		if img.ID != "" {
			r.SetImage(img)
		}
	})
}

// fail is for a sandbox that has no container any more.
func (m *Manager) fail(ctx context.Context, e *entry, why string) error {
	const gone = "its container is gone"
	switch {
	case e.Rec.Session != "":
		e.Rec.Reason = why
		return m.end(ctx, e, gone)
	case e.Rec.Spec.Ephemeral:
		return m.remove(ctx, e, gone)
	}
	return m.journal.CommitWithEvent(ctx, &e.Stored, state.Lifecycle(e.Rec, "failed", gone), func(r *state.Record) { r.Reason = why })
}

// noteDamage notes of a start that failed what only an operator can mend.
func (m *Manager) noteDamage(e *entry, err error) error {
	if !e.exists || !errors.Is(err, disk.ErrDamaged) {
		return nil
	}
	return m.journal.Commit(&e.Stored, func(r *state.Record) { r.Reason = fmt.Sprintf("%v; then `sallyport sandbox recover %s`", err, r.Name) })
}
