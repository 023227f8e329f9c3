package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"sallyport/internal/ram"
)

// Whatever has a sandbox's memory in the clear in RAM has reserved the room for it
// (ram.Room) before it begins: before the sandbox stands still, and before others
// who want to use it stand in line behind its lock. Who holds room waits for
// nothing that others may hold who wait for room.

// Errors of what needs room in RAM.
var (
	// ErrNoRoom: others have it. Trying again helps.
	ErrNoRoom = ram.ErrBusy
	// ErrNeverRoom: this host has too little RAM for the sandbox's memory.
	ErrNeverRoom = ram.ErrLarge
)

const (
	// roomWait is for how long room is waited for.
	roomWait = time.Minute
	// roomMargin is added to an eighth of what a sandbox has.
	roomMargin = 32 << 20
)

// CheckpointSize is how much is written of a sandbox that has so many bytes resident,
// at most: with its kernel's own state, and what it takes in the meantime.
func CheckpointSize(resident int64) int64 { return resident + resident/8 + roomMargin }

// memorySize is how much would be written of a sandbox's memory now, in bytes, at
// most; 0 of one that has none.
func (m *Manager) memorySize(ctx context.Context, e *entry) int64 {
	switch {
	case m.canRemember(e) != nil || !e.state.live():
		return 0
	case e.state == Hibernated:
		return fileSize(m.checkpointPath(e))
	}
	limit := e.rec.Spec.Memory
	n, known := m.resident(ctx, e)
	switch {
	case known && limit > 0:
		return min(CheckpointSize(n), max(limit, n))
	case known:
		return CheckpointSize(n)
	case limit > 0:
		return limit
	}
	return max(m.room.Share(), roomMargin)
}

// resident is how much a sandbox has in RAM, where that can be told.
func (m *Manager) resident(ctx context.Context, e *entry) (n int64, known bool) {
	if m.opt.Meter == nil {
		return 0, false
	}
	n, err := m.opt.Meter.Resident(ctx, e.rec.ID)
	if err != nil {
		m.opt.Logger.Warn("how much memory a sandbox takes cannot be told; it may be as much as it may have", "sandbox", e.rec.Name, "error", err)
	}
	return n, err == nil
}

// writable refuses to write down the memory of a sandbox that has become more than
// there is room for.
func (m *Manager) writable(ctx context.Context, e *entry) error {
	n, known := m.resident(ctx, e)
	if !known {
		return nil
	}
	if left := e.room.Left(); n > left {
		return fmt.Errorf("%w: it takes %d bytes, and room was made for %d: it has grown meanwhile: try again", ErrNoRoom, n, left)
	}
	return nil
}

// fileSize is that of a sealed file, which is more than what is sealed in it. What
// cannot be read has none: who reads it says why.
func fileSize(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// snapshotSize is how much the processes of a snapshot take, in bytes, at most.
func (m *Manager) snapshotSize(e *entry, snapshot string) int64 {
	if !nameForm.MatchString(snapshot) {
		return 0
	}
	return fileSize(filepath.Join(m.snapshotsDir(e.rec.Name), snapshot, snapshotMemory))
}

// wayOut is what to do where there will never be room, by verb.
var wayOut = map[string]string{
	"hibernating":          "pause or stop it instead",
	"putting to sleep":     "have it paused or stopped when it is idle",
	"making a snapshot of": "leave its memory out",
	"forking":              "stop it first, or fork a snapshot without processes",
	"restoring":            "stop it first; a snapshot whose processes are too large needs a host with more RAM",
}

// need is how much room in RAM something takes that is done to a sandbox, in bytes, at
// most. It is asked under the sandbox's lock.
type need func(*entry) int64

func noRoom(*entry) int64 { return 0 }

// spacious is existing, with the room in RAM that need asks for. It waits for room
// without the lock: others can use the sandbox meanwhile. verb is for errors of that.
func (m *Manager) spacious(ctx context.Context, name, verb string, need need) (_ *entry, err error) {
	defer func() {
		switch {
		case errors.Is(err, ErrNeverRoom):
			err = fmt.Errorf("%s sandbox %s: %w: %s", verb, name, err, wayOut[verb])
		case errors.Is(err, ErrNoRoom):
			err = fmt.Errorf("%s sandbox %s: %w", verb, name, err)
		}
	}()
	for until := time.Now().Add(roomWait); ; {
		e, err := m.existing(ctx, name)
		if err != nil {
			return nil, err
		}
		n := need(e)
		if n == 0 {
			return e, nil
		}
		id, owner := e.rec.ID, e.rec.Spec.Owner
		l, err := m.room.Reserve(ctx, owner, n, 0)
		if err == nil {
			e.room = l
			return e, nil
		}
		m.release(e)
		wait := time.Until(until)
		if !errors.Is(err, ErrNoRoom) || wait <= 0 {
			return nil, err
		}
		if l, err = m.room.Reserve(ctx, owner, n, wait); err != nil {
			return nil, err
		}
		// Whoever has the lock may wait for room.
		if e.mu.TryLock() {
			if e.exists && e.rec.Ready && e.rec.ID == id && need(e) <= l.Bytes() {
				e.room = l
				return e, nil
			}
			m.release(e)
		}
		l.Give()
	}
}

// roomToWake reserves what the memory of a hibernated sandbox takes. Its lock is
// held: most that is wanted of it is that it wakes, and to stop it waits too.
func (m *Manager) roomToWake(ctx context.Context, e *entry) (give func(), err error) {
	n := fileSize(m.checkpointPath(e))
	if n == 0 {
		return func() {}, nil
	}
	l, err := m.room.Reserve(ctx, e.rec.Spec.Owner, n, roomWait)
	if err != nil {
		return nil, fmt.Errorf("reading its memory: %w: it is hibernated as before; `sallyport sandbox stop %s` gives its memory up", err, e.rec.Name)
	}
	l.Use(e.rec.ID)
	return l.Give, nil
}
