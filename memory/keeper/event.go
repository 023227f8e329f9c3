package keeper

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"sallyport/audit"
	"sallyport/memory"
	"sallyport/memory/history"
)

// tell records a commit in the audit log, and what it has put in quarantine as findings.
// Paths and contents are not in the log: the digest stands for them.
func (k *Keeper) tell(ctx context.Context, s *store, c *history.Commit) error {
	o := s.owner
	changed := event(o, "changed")
	changed.Message = fmt.Sprintf("memory of sandbox %s changed: version %d", o.Name, c.Number)
	changed.Detail = detail(c)
	changed.Unmapped.Sallyport.Memory = &audit.MemoryCommit{Number: c.Number, Digest: c.Digest, Changes: len(c.Changes)}
	audit.Attribute(ctx, changed)
	reasons, err := s.sealed(ctx, c)
	for _, ch := range c.Changes {
		if ch.Op == history.Quarantined {
			reasons = append(reasons, ch.Reason)
		}
	}
	err = errors.Join(err, k.o.Record(changed))
	for _, reason := range reasons {
		e := event(o, "quarantined")
		e.Message = fmt.Sprintf("a file of the memory of sandbox %s is in quarantine", o.Name)
		e.Detail = reason
		e.Unmapped.Sallyport.Memory = changed.Unmapped.Sallyport.Memory
		audit.Attribute(ctx, e)
		err = errors.Join(err, k.o.Record(e))
		if c.Cause.Operation != memory.Quarantined {
			err = errors.Join(err, k.o.Record(audit.Finding(audit.FindingInMemory, e)))
		}
	}
	if err == nil {
		k.mu.Lock()
		k.told[o.ID] = c.Digest
		k.mu.Unlock()
	}
	return err
}

const (
	// lostWithin is the time before a crash in which events may have been lost.
	lostWithin = time.Minute
	maxLost    = 100 // commits
)

// tellAgain records the last commits once more if their events are not in the audit log:
// the daemon may have been killed between. One that it has not made itself is a problem
// that Verify finds.
func (k *Keeper) tellAgain(ctx context.Context, s *store) error {
	last, ok, err := s.history.Last(ctx)
	k.mu.Lock()
	told := k.told[s.owner.ID]
	k.mu.Unlock()
	if err != nil || !ok || told == last.Digest {
		return err
	}
	list, err := s.history.Commits(ctx, history.Filter{Since: last.Time.Add(-lostWithin), Limit: maxLost})
	if err != nil {
		return err
	}
	lost := slices.IndexFunc(list, func(c history.Commit) bool {
		// Up to here a fork has its parent's.
		return c.Cause.Operation == memory.Forked && c.Cause.From == ""
	})
	if lost >= 0 {
		list = list[:lost]
	}
	after := uint64(math.MaxUint64)
	for _, c := range list {
		after = min(after, c.Cause.AuditTo)
	}
	if len(list) == 0 {
		return nil
	}
	recorded, err := k.o.Recorded(ctx, s.owner.ID, after)
	for _, c := range slices.Backward(list) {
		if recorded[c.Number] != "" || err != nil {
			continue
		}
		var made bool
		switch made, err = s.history.Made(ctx, c); {
		case err != nil:
		case made:
			err = k.tell(ctx, s, &c)
		default:
			k.o.Logger.Error("a memory has a version that this daemon has not made: `sallyport memory verify` shows it", "sandbox", s.owner.Name, "version", c.Number)
		}
	}
	if err == nil {
		k.mu.Lock()
		k.told[s.owner.ID] = last.Digest
		k.mu.Unlock()
	}
	return err
}

func event(o memory.Owner, state string) *audit.Event {
	e := audit.Change("memory/"+o.Name, state)
	e.Entity.UID = o.ID
	x := &e.Unmapped.Sallyport
	x.Sandbox, x.SandboxID, x.Session, x.Owner = o.Name, o.ID, o.Session, o.Tenant
	return e
}

// detail says what made a commit, in words.
func detail(c *history.Commit) string {
	by := string(c.Cause.Operation)
	switch {
	case c.Cause.Command != "":
		by = "by " + c.Cause.Command
	case c.Cause.From != "":
		by += " of " + c.Cause.From
	}
	files := "1 change"
	if n := len(c.Changes); n != 1 {
		files = fmt.Sprintf("%d changes", n)
	}
	return files + ", " + by
}
