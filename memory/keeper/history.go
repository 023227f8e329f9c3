package keeper

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"sallyport/memory"
	"sallyport/memory/history"
)

// Commits returns the newest commits that a request selects.
func (k *Keeper) Commits(ctx context.Context, o memory.Owner, r HistoryRequest) (Commits, error) {
	return reading(ctx, k, o, func(ctx context.Context, u *use) (c Commits, err error) {
		c.Commits, err = u.history.Commits(ctx, history.Filter{
			Path: r.Path, Since: r.Since, Until: r.Until, After: r.After, Before: r.Before, Limit: r.Limit, Destination: r.Destination,
		})
		if err != nil || r.Path == "" {
			return c, err
		}
		switch there, missing := u.folder.Lstat(r.Path); {
		case gone(missing):
			c.Quarantined, err = u.taken(ctx, r.Path)
		case missing == nil && there.Mode().IsRegular():
			c.Marks = u.mark(ctx, r.Path)
		}
		return c, err
	})
}

// taken says why what had a path last is in quarantine, or "".
func (u *use) taken(ctx context.Context, path string) (reason string, err error) {
	list, err := u.history.Quarantined(ctx)
	for _, q := range list {
		if q.Path == path {
			reason = q.Reason
		}
	}
	return reason, err
}

// Diff compares two versions.
func (k *Keeper) Diff(ctx context.Context, o memory.Owner, r DiffRequest) ([]FileDiff, error) {
	return reading(ctx, k, o, func(ctx context.Context, u *use) (list []FileDiff, err error) {
		if r.To == 0 {
			last, _, err := u.history.Last(ctx)
			if err != nil {
				return nil, err
			}
			r.To = last.Number
		}
		diffs, err := u.history.Diff(ctx, r.From, r.To, r.Path)
		for _, d := range diffs {
			m := memory.Marks{}
			if v := cmp.Or(d.To, d.From); v.Kind == memory.KindFile {
				m.Untrusted = u.judge(u.history.Taint(ctx, d.Path, v.Commit))
			}
			if d.To == nil && err == nil {
				m.Quarantined, err = u.taken(ctx, d.Path)
			}
			list = append(list, FileDiff{d, m})
		}
		return list, err
	})
}

// Rollback makes files what they were at a version. Their present state stays a version.
func (k *Keeper) Rollback(ctx context.Context, o memory.Owner, r RollbackRequest) (c history.Commit, err error) {
	return reading(ctx, k, o, func(ctx context.Context, u *use) (history.Commit, error) {
		to, err := u.version(ctx, r)
		if err != nil {
			return c, err
		}
		return made(u.history.Rollback(ctx, u.folder, history.Target{To: to, Paths: r.Paths, LeaveOut: r.LeaveOut}, u.by(ctx, memory.RolledBack)))
	})
}

// version is the number of the version that a request goes back to.
func (u *use) version(ctx context.Context, r RollbackRequest) (uint64, error) {
	switch {
	case r.To > 0:
		return r.To, nil
	case !r.Time.IsZero():
		return u.history.NumberAt(ctx, r.Time)
	case r.Destination != "":
		first, err := u.history.Since(ctx, r.Destination)
		return first - min(first, 1), err
	}
	return 0, fmt.Errorf("%w: say to which version, time or destination", ErrBadRequest)
}

// Checkpoint makes a version and says which files have changed since the checkpoint before.
func (k *Keeper) Checkpoint(ctx context.Context, o memory.Owner) (Checkpoint, error) {
	return reading(ctx, k, o, func(ctx context.Context, u *use) (point Checkpoint, err error) {
		before, err := u.history.Commits(ctx, history.Filter{Operation: memory.Checkpoint, Limit: 1})
		if err != nil {
			return point, err
		}
		from := uint64(0)
		if len(before) > 0 {
			from = before[0].Number
		}
		c, err := u.record(ctx, memory.Cause{Operation: memory.Checkpoint})
		if err != nil {
			return point, err
		}
		diffs, err := u.history.Diff(ctx, from, c.Number, "")
		point.Version, point.Files = c.Number, []string{}
		for _, d := range diffs {
			if v := cmp.Or(d.To, d.From); v == nil || v.Kind != memory.KindFolder {
				point.Files = append(point.Files, d.Path)
			}
		}
		return point, err
	})
}

// Verify compares the history with the audit log.
func (k *Keeper) Verify(ctx context.Context, o memory.Owner) (Verified, error) {
	return reading(ctx, k, o, func(ctx context.Context, u *use) (v Verified, err error) {
		if err := u.history.Verify(ctx); err != nil {
			v.Problems = append(v.Problems, err.Error())
		}
		recorded, err := k.o.Recorded(ctx, o.ID, 0)
		if err != nil {
			return v, err
		}
		last, _, err := u.history.Last(ctx)
		if err != nil {
			return v, err
		}
		v.Versions = last.Number
		first, newest := uint64(0), uint64(0) // of those that are left, and of those recorded
		oldest, own := uint64(math.MaxUint64), false
		for number := range recorded {
			oldest, newest = min(oldest, number), max(newest, number)
		}
		for after := uint64(0); after < last.Number; {
			list, err := u.history.Commits(ctx, history.Filter{After: after, Before: after + verifyStep + 1, Limit: verifyStep})
			if err != nil {
				return v, err
			}
			after += verifyStep
			for _, c := range slices.Backward(list) { // the oldest first
				digest, ok := recorded[c.Number]
				made := ok
				if !ok {
					if made, err = u.history.Made(ctx, c); err != nil {
						return v, err
					}
				}
				own = own || made
				if ok && digest == c.Digest && c.Trimmed {
					first = c.Number
				}
				delete(recorded, c.Number)
				switch {
				case ok && digest == c.Digest:
					v.Recorded++
				case !ok && oldest < c.Number && c.Number < newest:
					v.Problems = append(v.Problems, fmt.Sprintf("version %d is not in the audit log, and later ones are", c.Number))
				case ok:
					v.Problems = append(v.Problems, fmt.Sprintf("version %d is another one than the audit log has", c.Number))
				case own && !made: // those before may be older than the proofs, or a parent's
					v.Problems = append(v.Problems, fmt.Sprintf("version %d was not made by this installation", c.Number))
				}
			}
		}
		for number := range recorded {
			if number >= first {
				v.Problems = append(v.Problems, fmt.Sprintf("version %d is in the audit log and not in the history", number))
			}
		}
		slices.Sort(v.Problems)
		return v, nil
	})
}

const verifyStep = 100
