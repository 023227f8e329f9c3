package sandbox

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"sallyport/sandbox/disk"
)

// What a sandbox is in state Failed for, and what Recover does about it:
//
//   - its container is gone: it is made again of its own image, over what the sandbox
//     had written, which is on its disk. Without a disk of its own that is gone. Where
//     the image is gone too, it is made of the one that has its name now.
//   - its disk cannot be mended: it is tried again, once the operator has.

// Recover gets a sandbox out of Failed: it is stopped then. One that is in no error
// is left as it is.
func (m *Manager) Recover(ctx context.Context, name string) (Info, error) {
	return m.doing(ctx, name, "recovering", noRoom, func(e *entry) error {
		if !e.failed() {
			return nil
		}
		return m.recover(ctx, e)
	})
}

// failed tells whether a sandbox is in Failed.
func (e *entry) failed() bool {
	return e.rec.Reason != "" && !e.state.live()
}

func (m *Manager) recover(ctx context.Context, e *entry) error {
	how, lost, img := "its disk can be used again", "", Image{}
	_, err := m.opt.Runtime.Status(ctx, e.rec.ID)
	switch {
	case errors.Is(err, ErrNotFound):
		if err := m.checkImage(e.rec.Spec); err != nil {
			return err
		}
		how = "its container is made again over its files"
		if e.rec.Spec.Disk == 0 {
			how = "its container is made again"
			lost = "its container was gone, and with it all files but those in /memory"
		}
		c, err := m.container(e.rec, e.rec.Name)
		if err != nil {
			return err
		}
		c.Image = e.rec.ImageID
		if img, err = m.opt.Runtime.Create(ctx, c); errors.Is(err, ErrNoImage) && c.Image != "" {
			c.Image = ""
			if img, err = m.opt.Runtime.Create(ctx, c); err == nil {
				other := fmt.Sprintf("its image %s was gone, and it is made of another one that is named %s now, %s", e.rec.ImageID, e.rec.Spec.Image, img.ID)
				how, lost = how+": "+other, strings.TrimPrefix(lost+"; "+other, "; ")
			}
		}
		if err != nil {
			return err
		}
		m.letGo(ctx, e)
		// It has the limits of the spec that it is made of.
	case err != nil:
		return err
	default:
		if err := m.attachDisk(e.rec); err != nil {
			return err
		}
		if err := m.detachDisk(e.rec); err != nil {
			return err
		}
	}
	return m.tell(ctx, e, detailed(e.rec, "recovered", how), func(r *record) {
		if r.Reason = ""; lost != "" {
			r.Lost = lost
		}
		if img.ID != "" {
			r.madeOf(img)
		}
	})
}

// fail is for a sandbox that has no container any more.
func (m *Manager) fail(ctx context.Context, e *entry, why string) error {
	const gone = "its container is gone"
	switch {
	case e.rec.Session != "":
		e.rec.Reason = why
		return m.end(ctx, e, gone)
	case e.rec.Spec.Ephemeral:
		return m.remove(ctx, e, gone)
	}
	return m.tell(ctx, e, detailed(e.rec, "failed", gone), func(r *record) { r.Reason = why })
}

// spoilt notes of a start that failed what only an operator can mend.
func (m *Manager) spoilt(e *entry, err error) error {
	if !e.exists || !errors.Is(err, disk.ErrDamaged) {
		return nil
	}
	return m.note(e, func(r *record) { r.Reason = fmt.Sprintf("%v; then `sallyport sandbox recover %s`", err, r.Name) })
}
