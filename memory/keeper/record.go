package keeper

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sallyport/audit"
	"sallyport/memory"
	"sallyport/memory/history"
)

// note is a Cause and the caller who is to blame.
type note struct {
	memory.Cause
	caller string
}

const (
	// noteDelay has one record for commands that follow each other.
	noteDelay  = 50 * time.Millisecond
	maxPending = 16 // different ones: the next version counts the others
)

// pend has the next version name a cause. Keeper.mu is held.
func (s *store) pend(n note) {
	switch {
	case slices.Contains(s.pending, n):
	case len(s.pending) < maxPending:
		s.pending = append(s.pending, n)
	default:
		s.others++
	}
}

// settle has the next version name the causes that an operation has taken, if it failed and
// no version has them. The operation has the turn.
func (k *Keeper) settle(s *store, failed error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if failed != nil {
		later := s.pending
		s.pending = nil
		for _, n := range slices.Concat(s.due, later) {
			s.pend(n)
		}
		s.others += s.moreDue
	}
	s.due, s.moreDue = nil, 0
}

// Changed tells that a sandbox's memory may have changed. A memory that has is recorded
// soon.
func (k *Keeper) Changed(ctx context.Context, o memory.Owner, c memory.Cause) {
	s, err := k.take(o)
	if err != nil {
		return
	}
	defer k.put(s)
	k.mu.Lock()
	defer k.mu.Unlock()
	s.pend(note{c, audit.NameOf(ctx)})
	if s.noted {
		return
	}
	s.noted = true
	ctx = context.WithoutCancel(ctx)
	k.tasks.Go(func() {
		time.Sleep(noteDelay)
		err := k.record(ctx, o, memory.Cause{Operation: memory.Found}, stays)
		k.mu.Lock()
		s.noted = false
		k.mu.Unlock()
		if err != nil && !gone(err) {
			k.o.Logger.Error("a version of a sandbox's memory is missing", "sandbox", o.Name, "error", err)
		}
	})
}

// Record returns when what has changed is recorded. It waits for other versions that are
// being recorded; an operation of a caller that takes long is ended for it.
func (k *Keeper) Record(ctx context.Context, o memory.Owner, c memory.Cause) error {
	return k.record(ctx, o, c, hurries)
}

func (k *Keeper) record(ctx context.Context, o memory.Owner, c memory.Cause, u urgency) error {
	return k.inTurn(ctx, o, u, func(ctx context.Context, u *use) error {
		_, err := u.record(ctx, c)
		return err
	})
}

// Replace calls replace, which gives a sandbox's memory other contents, and records the
// version after it. To all others they are one step: no version is recorded, and nothing is
// read, between the two. It waits as Record does, and its error is that of ctx before
// replace is called, or replace's. If the version cannot be recorded, the log says so, and
// the next one has its cause.
func (k *Keeper) Replace(ctx context.Context, o memory.Owner, c memory.Cause, replace func() error) error {
	s, ctx, end, err := k.turn(ctx, o, hurries)
	if err != nil {
		return err
	}
	defer end()
	if err := replace(); err != nil {
		return err
	}
	made := false
	err = k.with(context.WithoutCancel(ctx), s, o, func(ctx context.Context, u *use) error {
		commit, err := u.record(ctx, c)
		made = commit != nil
		return err
	})
	if err == nil {
		return nil
	}
	if !made {
		k.mu.Lock()
		later := s.pending
		s.pending = []note{{c, audit.NameOf(ctx)}}
		for _, n := range later {
			s.pend(n)
		}
		k.mu.Unlock()
	}
	k.o.Logger.Error("a version of a sandbox's memory is missing", "sandbox", o.Name, "operation", c.Operation, "error", err)
	return nil
}

// Inherit gives a child, whose memory is not there yet, the versions of its parent.
func (k *Keeper) Inherit(ctx context.Context, parent, child memory.Owner) error {
	return k.inTurn(ctx, parent, hurries, func(ctx context.Context, u *use) error {
		if mark, err := k.recheckMark(parent); err != nil {
			return err
		} else if mark != "" {
			if err := MarkRecheck(filepath.Join(k.o.Dir, child.Name)); err != nil {
				return err
			}
		}
		return u.history.Copy(ctx, filepath.Join(k.o.Dir, child.Name, memory.HistoryFile))
	})
}

// record records what has changed since the last commit, and returns the new one, or nil.
// Commands that have ended since are its causes, rather than an operation that is not one
// of the caller's.
func (u *use) record(ctx context.Context, c memory.Cause) (*history.Commit, error) {
	commit, err := u.history.Record(ctx, u.folder, u.cause(ctx, c))
	if err == nil {
		u.due, u.moreDue = nil, 0 // also if nothing has changed
	}
	if commit == nil || err != nil {
		return commit, err
	}
	return commit, u.putBack(ctx, commit)
}

// putBack has what may stay of files in their place that a commit has put in quarantine: a
// secret in one line costs an agent that line, and not all it knows. The end of ctx does not
// keep it from that.
func (u *use) putBack(ctx context.Context, c *history.Commit) error {
	left := false
	for _, ch := range c.Changes {
		if ch.Op == history.Quarantined {
			u.left[ch.Path], left = ch.Reason, true
		}
	}
	if !left {
		return nil
	}
	ctx = context.WithoutCancel(ctx)
	_, err := u.history.PutBack(ctx, u.folder, c, u.by(ctx, memory.RolledBack))
	return err
}

// cause is a Cause as the history has it.
func (u *use) cause(ctx context.Context, c memory.Cause) history.Cause {
	k := u.keeper
	k.mu.Lock()
	pending, more := u.pending, u.others
	u.pending, u.others, u.noted = nil, 0, false
	k.mu.Unlock()
	u.due, u.moreDue = append(u.due, pending...), u.moreDue+more
	cause := history.Cause{Operation: c.Operation, Caller: audit.NameOf(ctx), Command: c.Command, Session: u.owner.Session, From: c.From}
	var commands, callers []string
	for _, p := range pending {
		commands, callers = append(commands, p.Command), append(callers, p.caller)
	}
	if len(pending) > 0 && (c.Operation == memory.Found || c.Operation == memory.Stopped || c.Operation == memory.Snapshot) {
		cause.Operation, cause.Caller, cause.From = pending[0].Operation, distinct(callers), pending[0].From
	}
	if cause.Command == "" {
		cause.Command = distinct(commands)
	}
	if more > 0 {
		cause.Command += fmt.Sprintf(" and %d more", more)
	}
	return cause
}

// distinct has each name once.
func distinct(names []string) string {
	var once []string
	for _, name := range names {
		if name != "" && !slices.Contains(once, name) {
			once = append(once, name)
		}
	}
	return strings.Join(once, ", ")
}

// begin records what the sandbox has changed, before an operation of a caller's.
func (u *use) begin(ctx context.Context) error {
	if _, err := u.record(ctx, memory.Cause{Operation: memory.Found}); err != nil {
		return err
	}
	return u.recheck(ctx)
}

// change records what the sandbox has changed, calls do, and records what that has
// changed: that too if the end of ctx has ended do.
func (u *use) change(ctx context.Context, operation memory.Operation, do func() error) error {
	if err := u.begin(ctx); err != nil {
		return err
	}
	clear(u.left) // what has left so far was the sandbox's
	err := do()
	_, recorded := u.record(context.WithoutCancel(ctx), memory.Cause{Operation: operation})
	return errors.Join(err, recorded)
}
