package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"sallyport/internal/tmpfs"
)

// Whatever has a sandbox's memory in the clear in RAM has reserved the room for it
// (tmpfs.Room) before it begins, and before the sandbox stands still. Room is waited for
// without the sandbox's lock: it can be used, and who stops or removes it does not
// wait, but ends the wait. Who has a lock waits for no room, so that who has room can
// wait for a lock.

// Errors of what needs room in RAM.
var (
	// ErrNoRoom: others have it. Trying again helps.
	ErrNoRoom = tmpfs.ErrBusy
	// ErrNeverRoom: this host has too little RAM for the sandbox's memory.
	ErrNeverRoom = tmpfs.ErrLarge
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
	"starting":             "it is hibernated as before; stop it to give its memory up",
	"waking":               "it is hibernated as before; stop it to give its memory up",
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

// toWake is the need of who has a sandbox run, if it does not run.
func (m *Manager) toWake(e *entry) int64 {
	if e.state != Hibernated || e.rec.outlived() != nil {
		return 0
	}
	return fileSize(m.checkpointPath(e))
}

// errEnded: what was to be written or read is gone.
var errEnded = fmt.Errorf("%w: it was stopped while this waited for room in memory", ErrState)

// spacious is existing, with the room in RAM that need asks for. verb is for errors of
// that.
func (m *Manager) spacious(ctx context.Context, name, verb string, need need) (*entry, error) {
	var (
		until  = time.Now().Add(roomWait)
		room   *tmpfs.Lease // that was waited for
		of     string       // ID that it is for
		waited = false
		over   = func() {}
	)
	for {
		e, err := m.existing(ctx, name)
		over()
		if err != nil {
			room.Give()
			return nil, err
		}
		n := need(e)
		if n > room.Bytes() || e.rec.ID != of {
			room.Give()
			room = nil
		}
		switch {
		case waited && e.rec.ID != of:
			err = notFound(name) // what this waited for was removed, and this is another
		case n == 0 && waited && !e.state.live():
			err = errEnded
		case n > 0 && room == nil:
			room, err = m.room.Reserve(ctx, e.rec.Spec.Owner, n, 0)
		}
		e.room = room
		if err == nil {
			return e, nil
		}
		if errors.Is(err, ErrNoRoom) && time.Now().Before(until) {
			of, waited = e.rec.ID, true
			room, over, err = m.await(ctx, e, n, until)
		} else {
			m.release(e)
		}
		switch {
		case errors.Is(err, ErrNeverRoom):
			return nil, fmt.Errorf("%s sandbox %s: %w: %s", verb, name, err, wayOut[verb])
		case err != nil:
			return nil, fmt.Errorf("%s sandbox %s: %w", verb, name, err)
		}
	}
}

// await gives up a sandbox's lock and waits for room for it. Without an error the
// caller has it, if there is any, takes the lock again, calls over and looks what the
// sandbox has become. Of those who wait for the same sandbox one stands in line for
// room (tmpfs.Room), and the others for that one: most want the same, that it wakes.
func (m *Manager) await(ctx context.Context, e *entry, n int64, until time.Time) (room *tmpfs.Lease, over func(), err error) {
	line, over, owner := e.line, func() {}, e.rec.Spec.Owner
	first := line == nil || line.Err() != nil
	if first {
		line, over = context.WithCancel(context.Background())
		e.line, e.scatter = line, over
	}
	m.release(e)
	if first {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		defer context.AfterFunc(line, func() { cancel(errScattered) })()
		room, err = m.room.Reserve(ctx, owner, n, time.Until(until))
	} else {
		select {
		case <-line.Done():
		case <-time.After(time.Until(until)): // the next look says how much there is
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	if err == nil {
		return room, over, nil
	}
	over()
	switch {
	case errors.Is(err, errScattered):
		err = nil
	case !errors.Is(err, ErrNoRoom):
		err = fmt.Errorf("waiting for room in memory: %w", err)
	}
	return nil, over, err
}

var errScattered = errors.New("it has become another")
