package sandbox

import "fmt"

// makeDisk makes and attaches the sandbox's disk, if it is to have one, and
// returns the folder for what it changes of its image.
func (m *Manager) makeDisk(rec record) (layer string, err error) {
	if rec.Spec.Disk == 0 {
		return "", nil
	}
	if m.opt.Disks == nil {
		return "", fmt.Errorf("%w: this engine gives sandboxes no disk of their own: leave disk out, or use engine.kind: private", ErrBadSpec)
	}
	return m.opt.Disks.Make(m.dir(rec.Name), rec.Spec.Disk)
}

func (m *Manager) attachDisk(rec record) error {
	if m.opt.Disks == nil {
		return nil
	}
	return m.opt.Disks.Attach(m.dir(rec.Name))
}

// settleDisk keeps the next start possible, whatever the sandbox writes. Where
// there is no room even for that, it has been taken already.
func (m *Manager) settleDisk(rec record) {
	if m.opt.Disks == nil {
		return
	}
	if err := m.opt.Disks.Settle(m.dir(rec.Name)); err != nil {
		m.opt.Logger.Warn("a sandbox's disk is full", "sandbox", rec.Name, "error", err)
	}
}

// detachDisk leaves the disk of a sandbox that does not run to nobody: hundreds
// that sleep have no file system of the kernel's.
func (m *Manager) detachDisk(rec record) error {
	if m.opt.Disks == nil {
		return nil
	}
	return m.opt.Disks.Detach(m.dir(rec.Name))
}

// ownDisk says why there is no disk to keep, copy or go back to, or nil.
func (m *Manager) ownDisk(rec record) error {
	if m.opt.Disks == nil || rec.Spec.Disk == 0 {
		return fmt.Errorf("%w: sandbox %s has no disk of its own, which is what snapshots and forks are of: use engine.kind: private", ErrBadSpec, rec.Name)
	}
	return nil
}
