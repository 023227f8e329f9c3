package history

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"

	"sallyport/internal/sqlite"
	"sallyport/memory"
)

// quarantine seals contents, takes them out of the store if no other present file has
// them, and has the file leave the memory once that is committed.
func (r *recording) quarantine(ctx context.Context, c Change, data []byte, reason string) error {
	if err := r.seal(ctx, c, data, reason); err != nil {
		return err
	}
	c.Op, c.Kept, c.Reason = Quarantined, false, reason
	r.leaving = append(r.leaving, c)
	return r.add(ctx, c, memory.Stamp{})
}

// seal puts contents into quarantine once.
func (r *recording) seal(ctx context.Context, c Change, data []byte, reason string) error {
	if r.s.o.Key == nil {
		return fmt.Errorf("%q is to be quarantined (%s), and the history has no key to seal it with", c.Path, reason)
	}
	there, err := sqlite.Exists(ctx, r.tx, "SELECT 1 FROM quarantine WHERE digest = ? AND path = ?", c.Digest, blob(c.Path))
	if err != nil || there {
		return err
	}
	sealed, err := r.s.o.Key.Seal(data)
	if err != nil {
		return err
	}
	err = r.exec(ctx, "INSERT INTO quarantine(number, at, path, digest, size, mode, reason, sealed) VALUES(?, ?, ?, ?, ?, ?, ?, ?)",
		r.commit.Number, r.commit.Time.UnixNano(), blob(c.Path), c.Digest, len(data), c.Mode, reason, sealed)
	return err
}

// leave removes from the memory what is in quarantine.
func (r *recording) leave() (err error) {
	for _, c := range r.leaving {
		if e := r.f.RemoveFile(c.Path, c.Digest); e != nil && !replaced(e) {
			err = errors.Join(err, fmt.Errorf("taking %q out of the memory: %w", c.Path, e))
		}
	}
	return err
}

// Quarantine takes files, or folders with the files below them, out of the memory and
// their contents out of the store, sealed, as Record left them: it comes before. Contents
// that another file of the memory has too stay in the store for that one.
func (s *Store) Quarantine(ctx context.Context, f *memory.Folder, paths []string, reason string, c Cause) (*Commit, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.change(ctx, f, c, func(ctx context.Context, r *recording) error {
		state, err := files(ctx, r.tx)
		if err != nil {
			return err
		}
		chosen, err := choose(state, paths)
		if err != nil {
			return err
		}
		for _, path := range chosen {
			v := state[path]
			if v.Kind != memory.KindFile {
				continue
			}
			data, err := r.current(ctx, path, v)
			if err != nil {
				return err
			}
			if err := r.quarantine(ctx, v.change(path), data, strings.ToValidUTF8(reason, "\uFFFD")); err != nil {
				return err
			}
		}
		for _, path := range chosen {
			if err := r.forgetUnneeded(ctx, state[path].Digest); err != nil {
				return err
			}
		}
		return nil
	})
}

func (r *recording) forgetUnneeded(ctx context.Context, d memory.Digest) error {
	needed, err := sqlite.Exists(ctx, r.tx, "SELECT 1 FROM file WHERE digest = ? LIMIT 1", d)
	if err != nil || needed || d == "" || d == memory.DigestOf(nil) {
		return err
	}
	return r.forget(ctx, d)
}

// current returns the contents of a version that the memory has now.
func (r *recording) current(ctx context.Context, path string, v file) ([]byte, error) {
	if v.Kept {
		return content(ctx, r.tx, v.Digest)
	}
	data, err := r.f.Read(path)
	if errors.Is(err, memory.ErrTooLarge) && v.Digest == "" {
		return nil, fmt.Errorf("%q cannot be put in quarantine, it is %w: remove it in the sandbox, or choose other files", path, memory.ErrTooLarge)
	}
	if err == nil && memory.DigestOf(data) != v.Digest || replaced(err) {
		err = fmt.Errorf("%q: %w", path, memory.ErrChanged)
	}
	return data, err
}

func (v file) change(path string) Change {
	return Change{Path: path, Kind: v.Kind, Digest: v.Digest, Previous: v.Digest, Size: v.Size, Mode: v.Mode, Target: v.Target}
}

// found is the cause of what is recorded in the course of c.
func found(c Cause) Cause {
	c.Operation, c.From, c.FromCommit = memory.Found, "", 0
	return c
}

// choose returns the paths of a state at or below those given, sorted; without any, all.
func choose[V any](state map[string]V, paths []string) (chosen []string, err error) {
	if len(paths) == 0 {
		return slices.Sorted(maps.Keys(state)), nil
	}
	for _, p := range paths {
		some := false
		for path := range state {
			if path == p || strings.HasPrefix(path, p+"/") {
				chosen, some = append(chosen, path), true
			}
		}
		if !some {
			return nil, fmt.Errorf("%q: %w", p, fs.ErrNotExist)
		}
	}
	slices.Sort(chosen)
	return slices.Compact(chosen), nil
}

const quarantineColumns = "id, number, at, path, digest, size, mode, reason"

func scanQuarantine(scan func(...any) error, more ...any) (q Quarantine, err error) {
	var at int64
	var path []byte
	err = scan(append([]any{&q.ID, &q.Commit, &at, &path, &q.Digest, &q.Size, &q.Mode, &q.Reason}, more...)...)
	q.Time, q.Path = time.Unix(0, at).UTC(), string(path)
	return q, err
}

// Quarantined returns what is in quarantine, the oldest first.
func (s *Store) Quarantined(ctx context.Context) ([]Quarantine, error) {
	return sqlite.Rows(ctx, s.read, func(scan func(...any) error) (Quarantine, error) { return scanQuarantine(scan) }, "SELECT "+quarantineColumns+" FROM quarantine ORDER BY id")
}

// inQuarantine returns one entry with its contents.
func (s *Store) inQuarantine(ctx context.Context, id uint64) (q Quarantine, data []byte, err error) {
	err = fmt.Errorf("%d: %w", id, ErrNoQuarantine)
	var sealed []byte
	if e := sqlite.Each(ctx, s.read, func(scan func(...any) error) error {
		q, err = scanQuarantine(scan, &sealed)
		return err
	}, "SELECT "+quarantineColumns+", sealed FROM quarantine WHERE id = ?", id); e != nil || err != nil {
		return q, nil, cmp.Or(e, err)
	}
	if s.o.Key == nil {
		return q, nil, errors.New("the history has no key to open the quarantine with")
	}
	if data, err = s.o.Key.Open(sealed); err != nil {
		return q, nil, err
	}
	if memory.DigestOf(data) != q.Digest {
		return q, nil, fmt.Errorf("%w: quarantined %q is another file", ErrDamaged, q.Path)
	}
	return q, data, nil
}

// Release puts a file back to its path, where nothing may be, and inspects these contents
// no more. Its taint stays. Record comes before it. The end of ctx does not part the file
// from its commit.
func (s *Store) Release(ctx context.Context, f *memory.Folder, id uint64, c Cause) (*Commit, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q, data, err := s.inQuarantine(ctx, id)
	if err != nil {
		return nil, err
	}
	ctx = context.WithoutCancel(ctx)
	if err := f.Write(q.Path, data, ""); err != nil {
		return nil, err
	}
	if err := f.Chmod(q.Path, parseMode(q.Mode)); err != nil {
		return nil, err
	}
	c.Operation = memory.Released
	return s.change(ctx, f, c, func(ctx context.Context, r *recording) error {
		r.allowed = q.Digest
		if err := r.scan(ctx); err != nil {
			return err
		}
		err := r.exec(ctx, "DELETE FROM quarantine WHERE digest = ?", q.Digest)
		return err
	})
}

// Discard destroys what is in quarantine. Its digest and the fact are recorded.
func (s *Store) Discard(ctx context.Context, id uint64, c Cause) (*Commit, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.Operation = memory.Discarded
	return s.change(ctx, nil, c, func(ctx context.Context, r *recording) error {
		err := fmt.Errorf("%d: %w", id, ErrNoQuarantine)
		var q Quarantine
		if e := sqlite.Each(ctx, r.tx, func(scan func(...any) error) error {
			q, err = scanQuarantine(scan)
			return err
		}, "SELECT "+quarantineColumns+" FROM quarantine WHERE id = ?", id); e != nil || err != nil {
			return cmp.Or(e, err)
		}
		if err := r.exec(ctx, "DELETE FROM quarantine WHERE id = ?", id); err != nil {
			return err
		}
		r.purge = true
		return r.add(ctx, Change{Path: q.Path, Op: Discarded, Kind: memory.KindFile, Digest: q.Digest, Size: q.Size, Mode: q.Mode, Reason: q.Reason}, memory.Stamp{})
	})
}
