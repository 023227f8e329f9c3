package history

import (
	"context"
	"errors"
	"slices"
	"sort"

	"sallyport/internal/sqlite"
	"sallyport/memory"
)

// Recheck asks Inspect again about all contents that are kept and all files of the memory,
// as Record left them, after Inspect has learned of new secrets. Contents that only earlier
// versions have leave the store for the quarantine, and are no change of the commit. Of
// those that begin with each other the longest is in quarantine, for all. Inspect must find
// what it finds in contents over 4 KiB in longer ones that begin with them too: it is asked
// about these first.
func (s *Store) Recheck(ctx context.Context, f *memory.Folder, c Cause) (*Commit, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.change(ctx, f, c, func(ctx context.Context, r *recording) error {
		state, err := files(ctx, r.tx)
		if err != nil {
			return err
		}
		again := recheck{recording: r, state: state, present: map[memory.Digest][]string{}, rows: map[int64]*keptRow{}}
		for path, v := range state {
			if v.Digest != "" {
				again.present[v.Digest] = append(again.present[v.Digest], path)
			}
		}
		if err := again.kept(ctx); err != nil {
			return err
		}
		return again.others(ctx)
	})
}

type recheck struct {
	*recording
	state   map[string]file
	present map[memory.Digest][]string // the files that have contents
	rows    map[int64]*keptRow
}

// keptRow is a row of the table content.
type keptRow struct {
	base, size int64
	digest     memory.Digest // "": it is no contents
	clean      bool          // contents that begin with it are
	reason     string        // why it may not stay, as contents that begin with it may not
}

// small is the size of contents that are always looked at, in bytes: as a whole they may be
// a secret that is too short to be looked for in others.
const small = 4 << 10

// kept looks at the contents that are kept, and at files as far as they have these.
func (r *recheck) kept(ctx context.Context) error {
	var ids []int64
	err := sqlite.Each(ctx, r.tx, func(scan func(...any) error) error {
		var id int64
		x := &keptRow{}
		err := scan(&id, &x.base, &x.size, &x.digest)
		ids, r.rows[id] = append(ids, id), x
		return err
	}, "SELECT id, base, size, coalesce(digest, '') FROM content ORDER BY id DESC")
	if err != nil {
		return err
	}
	for _, id := range ids {
		x := r.rows[id]
		if known := x.reason != "" || x.clean && x.size > small; x.digest != "" && !known {
			if x.reason, err = r.look(ctx, x.digest); err == nil && x.reason != "" {
				err = errors.Join(r.sealLongest(ctx, x), r.shorter(ctx, x))
			}
			x.clean = x.reason == ""
		}
		if x.reason != "" && err == nil {
			err = errors.Join(r.leaveWith(ctx, x.digest, x.reason, nil), r.forget(ctx, x.digest))
		}
		if err != nil {
			return err
		}
		if base := r.rows[x.base]; base != nil && x.clean {
			base.clean = true
		}
		delete(r.present, x.digest)
	}
	return nil
}

// shorter finds out which contents that others begin with may not stay either.
func (r *recheck) shorter(ctx context.Context, x *keptRow) (err error) {
	var chain []*keptRow // the longest first
	for b := r.rows[x.base]; b != nil && !b.clean; b = r.rows[b.base] {
		if b.digest != "" {
			chain = append(chain, b)
		}
	}
	clean := sort.Search(len(chain), func(i int) bool {
		reason, e := r.look(ctx, chain[i].digest)
		err = errors.Join(err, e)
		return reason == ""
	})
	for _, b := range chain[:clean] {
		b.reason = x.reason
	}
	if clean < len(chain) {
		chain[clean].clean = true
	}
	return err
}

// others looks at the files whose contents are not kept.
func (r *recheck) others(ctx context.Context) error {
	for d, paths := range r.present {
		slices.Sort(paths)
		data, err := r.current(ctx, paths[0], r.state[paths[0]])
		if errors.Is(err, memory.ErrChanged) {
			continue
		}
		reason := ""
		if err == nil {
			reason, err = r.reason(ctx, d, data)
		}
		if err == nil && reason != "" {
			err = r.leaveWith(ctx, d, reason, data)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// look says why contents that are kept may not stay, or "".
func (r *recheck) look(ctx context.Context, d memory.Digest) (string, error) {
	data, err := content(ctx, r.tx, d)
	if err != nil {
		return "", err
	}
	return r.reason(ctx, d, data)
}

func (r *recheck) reason(ctx context.Context, d memory.Digest, data []byte) (reason string, err error) {
	of := []Change{}
	for _, path := range r.present[d] {
		of = append(of, r.state[path].change(path))
	}
	if len(of) == 0 {
		c, err := r.latest(ctx, d)
		if err != nil {
			return "", err
		}
		of = append(of, c)
	}
	for _, c := range of {
		if reason, err = r.inspect(ctx, c, data); reason != "" || err != nil {
			break
		}
	}
	return reason, err
}

// latest is the last change that made a file have contents.
func (r *recheck) latest(ctx context.Context, d memory.Digest) (c Change, err error) {
	err = sqlite.Each(ctx, r.tx, func(scan func(...any) error) (err error) { c, err = scanChange(scan); return err },
		"SELECT "+changeColumns+" FROM change c WHERE c.digest = ? ORDER BY c.number DESC LIMIT 1", d)
	return c, err
}

// sealLongest seals contents that no file has, for those too that these begin with.
func (r *recheck) sealLongest(ctx context.Context, x *keptRow) error {
	if len(r.present[x.digest]) > 0 {
		return nil
	}
	c, err := r.latest(ctx, x.digest)
	if err != nil {
		return err
	}
	data, err := content(ctx, r.tx, x.digest)
	if err != nil {
		return err
	}
	return r.seal(ctx, c, data, x.reason)
}

// leaveWith has the files that have contents, which are read if they are nil, leave the
// memory.
func (r *recheck) leaveWith(ctx context.Context, d memory.Digest, reason string, data []byte) (err error) {
	for _, path := range r.present[d] {
		if data == nil {
			if data, err = content(ctx, r.tx, d); err != nil {
				return err
			}
		}
		if err := r.quarantine(ctx, r.state[path].change(path), data, reason); err != nil {
			return err
		}
	}
	return nil
}
