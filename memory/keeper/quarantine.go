package keeper

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"sallyport/memory"
	"sallyport/memory/history"
)

// Quarantine takes files out of the memory. A file that was there before the contact with
// a destination is then what it was, if that is kept.
func (k *Keeper) Quarantine(ctx context.Context, o memory.Owner, r QuarantineRequest) ([]history.Quarantine, error) {
	return reading(ctx, k, o, func(ctx context.Context, u *use) (list []history.Quarantine, err error) {
		paths, reason := r.Paths, r.Reason
		var back history.Target
		switch {
		case r.Destination != "" && len(paths) == 0:
			if paths, back, err = u.learnedAfter(ctx, r.Destination); err != nil {
				return nil, err
			}
			reason = cmp.Or(reason, "learned after contact with "+r.Destination)
		case r.Destination != "" || len(paths) == 0:
			return nil, fmt.Errorf("%w: say which paths, or which destination", ErrBadRequest)
		}
		if err := cmp.Or(ctx.Err(), k.dropIndex(u.store)); err != nil {
			return nil, err
		}
		ctx = context.WithoutCancel(ctx) // what is rolled back has to follow what leaves
		var c history.Commit
		if len(paths) > 0 { // none are all
			if c, err = made(u.history.Quarantine(ctx, u.folder, paths, cmp.Or(reason, "an operator asked"), u.by(ctx, memory.Quarantined))); err != nil {
				return nil, err
			}
		}
		if len(back.Paths) > 0 {
			if _, err := u.history.Rollback(ctx, u.folder, back, u.by(ctx, memory.RolledBack)); err != nil {
				return nil, err
			}
		}
		all, err := u.history.Quarantined(ctx)
		return slices.DeleteFunc(all, func(q history.Quarantine) bool { return q.Commit != c.Number }), err
	})
}

// learnedAfter returns the files with contents that no file had before the sandbox first
// contacted a destination, and what is to be rolled back after they have left: those that
// were there before, and those that have contents of before at another path or mode.
func (u *use) learnedAfter(ctx context.Context, destination string) (paths []string, back history.Target, err error) {
	first, err := u.history.Since(ctx, destination)
	if err != nil {
		return nil, back, err
	}
	back = history.Target{To: first - 1, LeaveOut: true}
	before, err := u.history.At(ctx, back.To)
	if err != nil && !errors.Is(err, history.ErrNoCommit) { // trimmed: nothing is known of it
		return nil, back, err
	}
	last, _, err := u.history.Last(ctx)
	if err != nil {
		return nil, back, err
	}
	now, err := u.history.At(ctx, last.Number)
	if err != nil {
		return nil, back, err
	}
	old := map[memory.Digest]bool{}
	for _, v := range before {
		old[v.Digest] = v.Digest != ""
	}
	for _, path := range slices.Sorted(maps.Keys(now)) {
		v := now[path]
		if v.Kind != memory.KindFile || v.Commit < first {
			continue
		}
		_, was := before[path]
		if !old[v.Digest] {
			paths = append(paths, path)
		}
		if was || old[v.Digest] {
			back.Paths = append(back.Paths, path)
		}
	}
	if len(paths)+len(back.Paths) == 0 {
		err = fmt.Errorf("%w: nothing in the memory was written after contact with %s", ErrBadRequest, destination)
	}
	return paths, back, err
}

// Quarantined lists what is in quarantine.
func (k *Keeper) Quarantined(ctx context.Context, o memory.Owner) ([]history.Quarantine, error) {
	return reading(ctx, k, o, func(ctx context.Context, u *use) ([]history.Quarantine, error) { return u.history.Quarantined(ctx) })
}

// Release puts a file back into the memory.
func (k *Keeper) Release(ctx context.Context, o memory.Owner, r QuarantineID) (history.Commit, error) {
	return reading(ctx, k, o, func(ctx context.Context, u *use) (history.Commit, error) {
		return made(u.history.Release(ctx, u.folder, r.ID, u.by(ctx, memory.Released)))
	})
}

// Discard removes a file from quarantine for good.
func (k *Keeper) Discard(ctx context.Context, o memory.Owner, r QuarantineID) (history.Commit, error) {
	return reading(ctx, k, o, func(ctx context.Context, u *use) (history.Commit, error) {
		return made(u.history.Discard(ctx, r.ID, u.by(ctx, memory.Discarded)))
	})
}
