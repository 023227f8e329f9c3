package state

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"sallyport/audit"
	"sallyport/sandbox"
)

// Stored is a record as it is on disk. The sandbox's lock guards it.
type Stored struct {
	Rec Record
	// Old says that an earlier process wrote Rec, so that the log may have its event.
	Old       bool
	delivered string // ID of the last event that is known to be in the log
}

// Journal writes records and their events. A change of a sandbox is in two places, its
// record and the audit log. So that each change is exactly one event, even if the daemon
// ends in between, the record is written with its event (Record.Pending), and then the
// event is appended. A process that finds a record with an event asks the log for it by
// its ID.
type Journal struct {
	Dir    string // the folder that has a folder for each sandbox
	Append func(context.Context, ...*audit.Event) error
	// Find reports whether the log has an event, by its ID. nil: what an earlier process
	// may have recorded is recorded again.
	Find func(ctx context.Context, id string) (bool, error)
}

// deliveredFile has the ID of the last event that is known to be in the log. It is not
// synced: without it the log is asked.
const deliveredFile = "delivered"

func (j *Journal) folder(s *Stored) string { return filepath.Join(j.Dir, s.Rec.Name) }

// Commit writes the record as change makes it. s has it once it is on disk.
func (j *Journal) Commit(s *Stored, change func(*Record)) error {
	rec := s.Rec
	if !s.Undelivered() {
		rec.Pending = nil
	}
	change(&rec)
	if err := rec.Write(j.folder(s)); err != nil {
		return err
	}
	s.Rec = rec
	return nil
}

// CommitWithEvent writes the record as change makes it, and appends its event. When it
// fails the record may be written; then the event is appended with the next one.
func (j *Journal) CommitWithEvent(ctx context.Context, s *Stored, ev *audit.Event, change func(*Record)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := j.Deliver(ctx, s); err != nil {
		return err
	}
	if err := j.Commit(s, func(r *Record) { change(r); r.Pending = ev }); err != nil {
		return err
	}
	return j.Deliver(ctx, s)
}

// Transact is CommitWithEvent that takes the change back when it fails.
func (j *Journal) Transact(ctx context.Context, s *Stored, ev *audit.Event, change func(*Record)) error {
	before := s.Rec
	err := j.CommitWithEvent(ctx, s, ev, change)
	if err == nil || s.Rec.Pending != ev {
		return err // there is nothing to take back
	}
	return errors.Join(err, j.Commit(s, func(r *Record) { *r = before; r.Pending = nil }))
}

// Emit appends an event that changes no record.
func (j *Journal) Emit(ctx context.Context, s *Stored, ev *audit.Event) error {
	if err := j.Deliver(ctx, s); err != nil {
		return err
	}
	return j.Append(ctx, ev)
}

// Undelivered reports whether the record has an event that is not known to be in the log.
func (s *Stored) Undelivered() bool {
	return s.Rec.Pending != nil && s.delivered != s.Rec.Pending.ID()
}

// Deliver appends the record's event unless the log has it.
func (j *Journal) Deliver(ctx context.Context, s *Stored) error {
	if !s.Undelivered() {
		return nil
	}
	// The end of the caller must not leave open whether the event is in the log.
	ctx = context.WithoutCancel(ctx)
	if known, err := j.CheckDelivered(ctx, s); known || err != nil {
		return err
	}
	if err := j.Append(ctx, s.Rec.Pending); err != nil {
		return err
	}
	return j.markDelivered(s)
}

// CheckDelivered asks the log for the event of a record that an earlier process wrote.
func (j *Journal) CheckDelivered(ctx context.Context, s *Stored) (known bool, err error) {
	if !s.Undelivered() || !s.Old {
		return false, nil
	}
	id := s.Rec.Pending.ID()
	if last, err := os.ReadFile(filepath.Join(j.folder(s), deliveredFile)); err != nil || string(last) != id {
		if known, err := j.Has(ctx, id); !known || err != nil {
			return false, err
		}
	}
	return true, j.markDelivered(s)
}

// Has reports whether the log has an event; false where the log cannot be asked.
func (j *Journal) Has(ctx context.Context, id string) (bool, error) {
	if j.Find == nil {
		return false, nil
	}
	return j.Find(ctx, id)
}

func (j *Journal) markDelivered(s *Stored) error {
	s.delivered = s.Rec.Pending.ID()
	err := os.WriteFile(filepath.Join(j.folder(s), deliveredFile), []byte(s.delivered), 0o600)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// Lifecycle is the event of a sandbox's change of state. detail says why, or "".
func Lifecycle(r Record, state, detail string) *audit.Event {
	ev := audit.Change("sandbox/"+r.Name, state)
	ev.Message, ev.Detail = "sandbox "+r.Name+" "+state, detail
	ev.Entity.UID = r.ID
	ev.Entity.Data = &audit.EntityData{Image: r.Spec.Image, ImageDigest: r.ImageDigest, Runtime: string(r.Spec.Runtime)}
	if l := r.Lineage; l != nil {
		ev.Entity.Data.Root, ev.Entity.Data.Parent, ev.Entity.Data.Snapshot = l.Root, l.Parent, l.Snapshot
	}
	x := &ev.Unmapped.Sallyport
	x.Sandbox, x.SandboxID, x.Session, x.State, x.Owner = r.Name, r.ID, r.Session, state, r.Spec.Owner
	x.Tags = sandbox.Info{Spec: r.Spec, Lineage: r.Lineage}.Tags()
	return ev
}
