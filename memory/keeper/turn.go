package keeper

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"sallyport/memory"
)

const (
	idleTime = time.Minute
	// patience is for how long what is done to a sandbox waits before it ends an operation
	// on its memory.
	patience = 2 * time.Second
)

// ErrEnded is of an operation that something waited for too long.
var ErrEnded = errors.New("the sandbox is being stopped, saved, restored, forked or removed: try again")

// urgency says which of two operations on one memory waits for the other.
type urgency int

const (
	yields  urgency = iota // a caller's: it is ended for what hurries
	stays                  // a version that nobody waits for
	hurries                // a version of what is done to the sandbox
)

// use is one operation on a memory.
type use struct {
	*store
	keeper     *Keeper
	folder     *memory.Folder
	incomplete error  // what its search has not
	looked     string // the look of the operation before
}

// in calls do with a sandbox's memory, for a caller.
func (k *Keeper) in(ctx context.Context, o memory.Owner, do func(context.Context, *use) error) error {
	return k.inTurn(ctx, o, yields, do)
}

func (k *Keeper) inTurn(ctx context.Context, o memory.Owner, u urgency, do func(context.Context, *use) error) error {
	s, ctx, end, err := k.turn(ctx, o, u)
	if err != nil {
		return err
	}
	defer end()
	return k.with(ctx, s, o, do)
}

// turn waits until no other operation uses a sandbox's memory. The context that it returns
// is that of the operation, which end ends.
func (k *Keeper) turn(ctx context.Context, o memory.Owner, u urgency) (s *store, _ context.Context, end func(), err error) {
	if s, err = k.take(o); err != nil {
		return nil, nil, nil, err
	}
	calm := func() {}
	if u == hurries {
		calm = k.hurry(s)
	}
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	calm()
	if err != nil {
		k.put(s)
		return nil, nil, nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	k.mu.Lock()
	defer k.mu.Unlock()
	if s.end, s.yields = cancel, u == yields; s.yields && s.hurried > 0 {
		cancel(ErrEnded)
	}
	return s, ctx, func() { cancel(nil); <-s.turn; k.put(s) }, nil
}

// hurry ends, after a while, the operations on a memory that yield, until calm is called.
func (k *Keeper) hurry(s *store) (calm func()) {
	over, late := false, 0
	t := time.AfterFunc(patience, func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if over {
			return
		}
		late = 1
		if s.hurried++; s.end != nil && s.yields {
			s.end(ErrEnded)
		}
	})
	return func() {
		t.Stop()
		k.mu.Lock()
		defer k.mu.Unlock()
		over = true
		s.hurried -= late
	}
}

// with calls do with a sandbox's memory, whose turn the caller has.
func (k *Keeper) with(ctx context.Context, s *store, o memory.Owner, do func(context.Context, *use) error) (err error) {
	dir := filepath.Join(k.o.Dir, o.Name)
	release, err := k.o.Hold(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	if s.gone || k.o.Current != nil && !k.o.Current(o) {
		return fmt.Errorf("%w: sandbox %s: %w", ErrNone, o.Name, fs.ErrNotExist)
	}
	s.owner, s.missed, s.marks, s.left, s.scanned = o, false, map[string]string{}, map[string]string{}, nil
	looked := s.look
	s.look = ""
	if err := k.open(ctx, s, dir); err != nil {
		return err
	}
	f, err := memory.Open(memory.Dir(dir))
	if err != nil {
		return err
	}
	defer f.Close()
	err = do(ctx, &use{store: s, keeper: k, folder: f, looked: looked})
	k.settle(s, err)
	if s.scanned = nil; err == nil || ctx.Err() == nil {
		return err
	}
	return context.Cause(ctx)
}

func (k *Keeper) take(o memory.Owner) (*store, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.done {
		return nil, errors.New("the daemon is ending")
	}
	s := k.of[o.ID]
	if s == nil {
		s = &store{owner: o, turn: make(chan struct{}, 1)}
		k.of[o.ID] = s
	}
	if s.idle != nil {
		s.idle.Stop()
	}
	s.users++
	return s, nil
}

func (k *Keeper) put(s *store) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if s.users--; s.users == 0 {
		s.idle = time.AfterFunc(idleTime, func() { k.closeIdle(s) })
	}
}

// closeIdle closes what is open of a memory that nobody uses. Causes that are pending stay,
// for the next version.
func (k *Keeper) closeIdle(s *store) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if s.users > 0 || s.noted || k.of[s.owner.ID] != s {
		return
	}
	if len(s.pending) == 0 {
		delete(k.of, s.owner.ID)
	}
	if err := s.close(); err != nil {
		k.o.Logger.Warn("the files of a memory could not be closed", "sandbox", s.owner.Name, "error", err)
	}
}

// Interrupt ends the operation on the memory of a sandbox that goes on, if one does.
func (k *Keeper) Interrupt(id string) {
	k.mu.Lock()
	s := k.of[id]
	k.mu.Unlock()
	if s != nil {
		k.interrupt(s)
	}
}

// interrupt ends the operation that has the turn.
func (k *Keeper) interrupt(s *store) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if s.end != nil {
		s.end(ErrEnded)
	}
}
