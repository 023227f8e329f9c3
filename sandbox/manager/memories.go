package manager

import (
	"context"
	"time"

	"sallyport/memory"
	"sallyport/sandbox"
)

// Memories keeps the versions of what sandboxes have in /memory.
type Memories interface {
	// Changed tells that a sandbox's memory may have changed. It returns at once.
	Changed(context.Context, memory.Owner, memory.Cause)
	// Record returns when what has changed is recorded.
	Record(context.Context, memory.Owner, memory.Cause) error
	// Replace calls replace, which gives a memory other contents, and records the version
	// after it: to whoever looks at the memory the two are one step. Its error is that of ctx
	// before replace is called, or replace's.
	Replace(ctx context.Context, o memory.Owner, c memory.Cause, replace func() error) error
	// Inherit gives a child the versions of its parent.
	Inherit(ctx context.Context, parent, child memory.Owner) error
	// Interrupt ends what goes on with the memory of a sandbox, by its ID, which holds the
	// sandbox's disk.
	Interrupt(id string)
}

// noMemories keeps nothing.
type noMemories struct{}

func (noMemories) Changed(context.Context, memory.Owner, memory.Cause)      {}
func (noMemories) Record(context.Context, memory.Owner, memory.Cause) error { return nil }
func (noMemories) Replace(_ context.Context, _ memory.Owner, _ memory.Cause, replace func() error) error {
	return replace()
}
func (noMemories) Inherit(context.Context, memory.Owner, memory.Owner) error { return nil }
func (noMemories) Interrupt(string)                                          {}

// MemoryOwner is the sandbox that a memory is of.
func MemoryOwner(i sandbox.Info) memory.Owner {
	return memory.Owner{ID: i.ID, Name: i.Name, Session: i.Session, Tenant: i.Spec.Owner}
}

func (e *entry) memoryOwner() memory.Owner {
	return memory.Owner{ID: e.Rec.ID, Name: e.Rec.Name, Session: e.Rec.Session, Tenant: e.Rec.Spec.Owner}
}

// memoryTimeout is for how long what is done to a sandbox waits for a version of its memory.
const memoryTimeout = 20 * time.Second

// recordMemory keeps what a sandbox's memory is now, before something is done to the
// sandbox or after it. That goes on where it fails: a version is missing then, and what the
// memory was busy with for all that time is ended, since it holds the disk.
func (m *Manager) recordMemory(ctx context.Context, e *entry, c memory.Cause) {
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), memoryTimeout)
	defer done()
	if m.recordMemoryWithin(ctx, e, c); ctx.Err() != nil {
		m.opt.Memories.Interrupt(e.Rec.ID)
	}
}

// recordMemoryWithin is recordMemory that waits until the end of ctx.
func (m *Manager) recordMemoryWithin(ctx context.Context, e *entry, c memory.Cause) {
	if err := m.opt.Memories.Record(ctx, e.memoryOwner(), c); err != nil {
		m.opt.Logger.Error("a version of a sandbox's memory is missing", "sandbox", e.Rec.Name, "operation", c.Operation, "error", err)
	}
}

// inheritMemory gives children the versions of their parent's memory.
func (m *Manager) inheritMemory(ctx context.Context, parent *entry, children []*entry) error {
	m.recordMemory(ctx, parent, memory.Cause{Operation: memory.Forked})
	for _, c := range children {
		if err := m.opt.Memories.Inherit(ctx, parent.memoryOwner(), c.memoryOwner()); err != nil {
			return err
		}
	}
	return nil
}
