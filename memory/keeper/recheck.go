package keeper

import (
	"context"
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"sallyport/internal/durable"
	"sallyport/memory"
	"sallyport/memory/history"
)

// MarkRecheck has what a sandbox's memory holds compared with all secrets once more, the
// next time that it is used: folder is the sandbox's own.
func MarkRecheck(folder string) error {
	return durable.WriteFile(filepath.Join(folder, memory.RecheckFile), []byte(rand.Text()), 0o600)
}

// Recheck compares what memories hold with the secrets, in the background, after these are
// others than they were. A file that holds one leaves the memory, as if it were written now.
func (k *Keeper) Recheck(owners []memory.Owner) error {
	var errs []error
	for _, o := range owners {
		if err := k.mark(o); !gone(err) {
			errs = append(errs, err)
		}
	}
	k.RecheckMissed(owners)
	return errors.Join(errs...)
}

func (k *Keeper) mark(o memory.Owner) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return MarkRecheck(filepath.Join(k.o.Dir, o.Name))
}

// RecheckMissed is Recheck of those memories that were written to when a secret could not
// be read, and that were not looked at since, once it can be.
func (k *Keeper) RecheckMissed(owners []memory.Owner) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.done {
		return
	}
	for _, o := range owners {
		k.recheck[o.ID] = o
	}
	if !k.rechecking {
		k.rechecking = true
		k.tasks.Go(k.recheckAll)
	}
}

func (k *Keeper) recheckAll() {
	for {
		o, ok := k.nextRecheck()
		if !ok {
			return
		}
		if mark, err := k.recheckMark(o); mark == "" && err == nil {
			continue // its disk need not be attached
		}
		err := k.in(k.ctx, o, func(ctx context.Context, u *use) error {
			_, err := u.record(ctx, memory.Cause{Operation: memory.Found})
			return errors.Join(err, u.recheck(ctx))
		})
		if err != nil && !gone(err) {
			k.o.Logger.Warn("a memory is compared with new secrets when it is used next", "sandbox", o.Name, "error", err)
		}
	}
}

func (k *Keeper) nextRecheck() (memory.Owner, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for id, o := range k.recheck {
		delete(k.recheck, id)
		return o, true
	}
	k.rechecking = false
	return memory.Owner{}, false
}

// recheckMark is what the file says that asks for a recheck, or "" if there is none.
func (k *Keeper) recheckMark(o memory.Owner) (string, error) {
	data, err := os.ReadFile(filepath.Join(k.o.Dir, o.Name, memory.RecheckFile))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return string(data), err
}

// recheck compares all contents with the secrets if that is due, and all can be read.
func (u *use) recheck(ctx context.Context) error {
	k := u.keeper
	mark, err := k.recheckMark(u.owner)
	if mark == "" || err != nil {
		return err
	}
	if _, _, err := k.o.Secret(ctx, ""); err != nil {
		return nil // the next use tries again
	}
	u.missed, u.anew = false, true
	defer func() { u.anew = false }()
	c, err := u.history.Recheck(ctx, u.folder, u.by(ctx, memory.Rechecked))
	if c != nil {
		err = errors.Join(err, u.putBack(ctx, c))
	}
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	// Another mark means that a secret has become another one, or could not be read, meanwhile.
	if now, err := k.recheckMark(u.owner); now != mark || err != nil {
		return err
	}
	return os.Remove(filepath.Join(k.o.Dir, u.owner.Name, memory.RecheckFile))
}

// miss notes that contents were not compared with all secrets, before they are recorded.
func (k *Keeper) miss(s *store, cause error) {
	if s.missed {
		return
	}
	s.missed = true
	k.o.Logger.Warn("a memory is compared with the secret of a credential once that can be read", "sandbox", s.owner.Name, "error", cause)
	if err := k.mark(s.owner); err != nil {
		k.o.Logger.Error("a memory will not be compared with all secrets", "sandbox", s.owner.Name, "error", err)
	}
}

// sealed are the reasons for which a commit has put contents into quarantine that no file
// has any more.
func (s *store) sealed(ctx context.Context, c *history.Commit) (reasons []string, err error) {
	if c.Cause.Operation != memory.Rechecked || len(c.Dropped) == 0 {
		return nil, nil
	}
	left := map[string]bool{}
	for _, ch := range c.Changes {
		left[ch.Path+"\x00"+string(ch.Digest)] = true
	}
	list, err := s.history.Quarantined(ctx)
	for _, q := range list {
		if q.Commit == c.Number && !left[q.Path+"\x00"+string(q.Digest)] {
			reasons = append(reasons, q.Reason)
		}
	}
	return reasons, err
}
