package keeper

import (
	"context"
	"errors"
	"fmt"

	"sallyport/audit"
	"sallyport/memory"
	"sallyport/memory/history"
)

// tell records a commit in the audit log, and what it has put in quarantine as findings.
// Paths and contents are not in the log: the digest stands for them.
func (k *Keeper) tell(ctx context.Context, o memory.Owner, c *history.Commit) error {
	changed := event(o, "changed")
	changed.Message = fmt.Sprintf("memory of sandbox %s changed: version %d", o.Name, c.Number)
	changed.Detail = detail(c)
	changed.Unmapped.Sallyport.Memory = &audit.MemoryCommit{Number: c.Number, Digest: c.Digest, Changes: len(c.Changes)}
	audit.Attribute(ctx, changed)
	err := k.o.Record(changed)
	for _, ch := range c.Changes {
		if ch.Op != history.Quarantined {
			continue
		}
		e := event(o, "quarantined")
		e.Message = fmt.Sprintf("a file of the memory of sandbox %s is in quarantine", o.Name)
		e.Detail = ch.Reason
		e.Unmapped.Sallyport.Memory = changed.Unmapped.Sallyport.Memory
		audit.Attribute(ctx, e)
		err = errors.Join(err, k.o.Record(e))
		if c.Cause.Operation != memory.Quarantined {
			err = errors.Join(err, k.o.Record(audit.Finding(audit.FindingInMemory, e)))
		}
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
