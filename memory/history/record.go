package history

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/internal/sqlite"
	"sallyport/memory"
)

// maxEntries are the entries that are recorded. Tests have fewer.
var maxEntries = 100_000

const (
	maxReadings     = 256 << 20 // bytes that a commit reads; the next one reads the other files
	maxDestinations = 100       // that a cause lists
	// settled is how long a time of change must have passed before another one is sure to
	// differ from it: kernels count it in ticks of up to 10 ms.
	settled = 50 * time.Millisecond
)

// recording is a commit that is being made.
type recording struct {
	s       *Store
	f       *memory.Folder
	tx      *sqlite.Tx
	before  Commit
	commit  Commit
	allowed memory.Digest // contents that are not inspected
	read    int64         // bytes
	leaving []Change      // files that leave the memory
	purge   bool          // contents have to leave the write-ahead log too
}

func (r *recording) exec(ctx context.Context, statement string, args ...any) error {
	r.s.state = nil
	_, err := r.tx.Exec(ctx, statement, args...)
	return err
}

// Record commits what has changed in the memory since the last commit. It reads only files
// whose stamps are others than then. The commit is nil if nothing has changed, except for a
// fork, a restore and a checkpoint. If an error comes with a commit, files that it quarantined are still
// in the memory, and the next Record takes them once more.
func (s *Store) Record(ctx context.Context, f *memory.Folder, c Cause) (*Commit, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.record(ctx, f, c)
}

func (s *Store) record(ctx context.Context, f *memory.Folder, c Cause) (*Commit, error) {
	return s.change(ctx, f, c, func(ctx context.Context, r *recording) error { return r.scan(ctx) })
}

// change makes a commit of what do puts into it.
func (s *Store) change(ctx context.Context, f *memory.Folder, c Cause, do func(context.Context, *recording) error) (*Commit, error) {
	tx, err := sqlite.Begin(ctx, s.write)
	if err != nil {
		return nil, err
	}
	defer tx.Rollback()
	before, err := last(ctx, tx)
	if err != nil {
		return nil, err
	}
	at := s.o.Now().UTC().Round(0)
	if at.Before(before.Time) {
		at = before.Time
	}
	r := &recording{
		s: s, f: f, tx: tx, before: before,
		commit: Commit{Number: before.Number + 1, Time: at, Parent: before.Digest, Cause: c.clean()},
	}
	if err := do(ctx, r); err != nil {
		return nil, fmt.Errorf("recording the memory: %w", err)
	}
	done, err := r.finish(ctx)
	if err != nil {
		return nil, fmt.Errorf("recording the memory: %w", err)
	}
	if err := tx.Commit(); err != nil {
		return nil, fmt.Errorf("recording the memory: %w", err)
	}
	var errs []error
	if done != nil && s.o.Committed != nil {
		errs = append(errs, s.o.Committed(ctx, done))
	}
	if r.purge {
		_, err := s.write.ExecContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)")
		errs = append(errs, err)
	}
	return done, errors.Join(append(errs, r.leave())...)
}

// clean makes a cause that JSON has one text for.
func (c Cause) clean() Cause {
	c.Operation = memory.Operation(strings.ToValidUTF8(string(c.Operation), "\uFFFD"))
	for _, s := range []*string{&c.Caller, &c.Command, &c.From} {
		*s = strings.ToValidUTF8(*s, "\uFFFD")
	}
	var all []string
	for _, d := range c.Contacted {
		all = append(all, strings.ToValidUTF8(d, "\uFFFD"))
	}
	slices.Sort(all)
	all = slices.Compact(all)
	c.MoreContacted += max(0, len(all)-maxDestinations)
	c.Contacted = all[:min(len(all), maxDestinations)]
	return c
}

// scan compares the memory with what the last commit left.
func (r *recording) scan(ctx context.Context) error {
	from := time.Now().Add(-settled).UnixNano()
	entries, err := r.f.Scan(maxEntries)
	if errors.Is(err, memory.ErrTruncated) {
		r.commit.Incomplete = true
	} else if err != nil {
		return err
	}
	if r.s.o.Scanned != nil {
		r.s.o.Scanned(entries, err)
	}
	state := r.s.state
	if state == nil {
		if state, err = files(ctx, r.tx); err != nil {
			return err
		}
		r.s.state = state
	}
	known, told, met := len(state), 0, 0
	for i, e := range entries {
		old, was := state[e.Path]
		if was {
			met++
		}
		if !was && known >= maxEntries {
			r.commit.Incomplete = true
			continue
		}
		if was && old.same(e) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if r.s.o.Progress != nil && i-told >= 64 {
			r.s.o.Progress(i, len(entries))
			told = i
		}
		if e.Stamp.Changed > from { // it may change once more within the same tick
			e.Stamp = memory.Stamp{}
		}
		found, err := r.entry(ctx, e, old, was)
		if err != nil {
			return err
		}
		if found && !was {
			known++
		}
	}
	if r.commit.Incomplete { // what was not met is not known to be gone
		return nil
	}
	if met == len(state) {
		return nil
	}
	there := map[string]bool{}
	for _, e := range entries {
		there[e.Path] = true
	}
	for _, path := range slices.Sorted(maps.Keys(state)) {
		if there[path] {
			continue
		}
		if err := r.add(ctx, Change{Path: path, Op: Removed, Kind: state[path].Kind, Previous: state[path].Digest}, memory.Stamp{}); err != nil {
			return err
		}
	}
	return nil
}

// same says whether an entry is as it was, by what is known without reading it.
func (v file) same(e memory.Entry) bool {
	if v.Kind != e.Kind || v.Mode != mode(e) {
		return false
	}
	return e.Kind == memory.KindFolder || v.stamp == e.Stamp && v.Size == e.Size
}

func mode(e memory.Entry) string { return fmt.Sprintf("%04o", uint32(e.Mode)) }

// entry records one that may have changed. It says whether the entry is in the state then.
func (r *recording) entry(ctx context.Context, e memory.Entry, old file, was bool) (bool, error) {
	c := Change{Path: e.Path, Op: Changed, Kind: e.Kind, Previous: old.Digest, Size: e.Size, Mode: mode(e)}
	if !was {
		c.Op = Added
	}
	var data []byte
	var head memory.Digest // of as much as the file had
	var err error
	switch {
	case e.Kind == memory.KindLink:
		c.Target, err = r.f.Readlink(e.Path)
	case e.Kind != memory.KindFile || e.Size > memory.MaxFile:
	case r.read > maxReadings:
		if e.Stamp.Changed = -e.Stamp.Changed; was && e.Stamp.Changed < 0 && old.same(e) {
			return true, nil // nor has it been read before
		}
	default:
		r.read += e.Size
		if data, err = r.f.Read(e.Path); err == nil {
			c.Size = int64(len(data))
			c.Digest, head = digests(data, min(old.Size, c.Size))
		}
	}
	if replaced(err) {
		return false, nil // the next Record finds what it is
	}
	if err != nil && !errors.Is(err, fs.ErrPermission) {
		return false, err
	}
	if c.Digest != "" && c.Digest != old.Digest {
		if head != old.Digest {
			old = file{}
		}
		reason, err := r.inspect(ctx, c, unseen(data, old.Size))
		if err != nil {
			return false, err
		}
		if reason != "" {
			return false, r.quarantine(ctx, c, data, reason)
		}
		if c.Kept, err = r.keep(ctx, c.Digest, data, old.Digest, old.Size); err != nil {
			return false, err
		}
	} else if c.Digest != "" {
		c.Kept = old.Kept
	}
	if was && c.Digest == old.Digest && c.Kind == old.Kind && c.Size == old.Size && c.Mode == old.Mode && c.Target == old.Target && (c.Digest != "" || c.Kind != memory.KindFile) {
		err = r.exec(ctx, "UPDATE file SET inode = ?, changed = ? WHERE path = ?", int64(e.Stamp.Inode), e.Stamp.Changed, blob(c.Path))
		return true, err
	}
	return true, r.add(ctx, c, e.Stamp)
}

// replaced reports whether an error of the memory comes from what the sandbox does to it
// meanwhile, and not from the host.
func replaced(err error) bool {
	for _, e := range []error{unix.EIO, unix.EROFS, unix.EPERM, unix.EACCES, unix.ENOSPC, unix.EDQUOT, unix.EMFILE, unix.ENFILE, unix.ENOMEM} {
		if errors.Is(err, e) {
			return false
		}
	}
	return err != nil
}

// unseen is what is to be inspected of contents that begin with head bytes which were: all
// that is new, and enough of the lines before to see what it continues.
func unseen(data []byte, head int64) []byte {
	const around = 1 << 20
	if at := head - around; at > 0 {
		if end := bytes.IndexByte(data[at:head], '\n'); end >= 0 {
			return data[at+int64(end)+1:]
		}
	}
	return data
}

func (r *recording) inspect(ctx context.Context, c Change, data []byte) (string, error) {
	if r.s.o.Inspect == nil || c.Digest == r.allowed {
		return "", nil
	}
	released, err := sqlite.Exists(ctx, r.tx, "SELECT 1 FROM change c JOIN commits s USING(number) WHERE c.digest = ? AND c.op = ? AND s.head ->> '$.cause.operation' = ? LIMIT 1",
		c.Digest, Added, memory.Released)
	if err != nil || released {
		return "", err
	}
	reason := r.s.o.Inspect(ctx, c.Path, data)
	return strings.ToValidUTF8(reason, "\uFFFD"), ctx.Err()
}

// add puts a change into the commit, and the state after it.
func (r *recording) add(ctx context.Context, c Change, stamp memory.Stamp) error {
	r.commit.Changes = append(r.commit.Changes, c)
	err := r.exec(ctx, "INSERT INTO change VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
		blob(c.Path), r.commit.Number, c.Op, c.Kind, c.Digest, c.Previous, c.Size, c.Mode, blob(c.Target), c.Kept, c.Reason)
	if err != nil {
		return err
	}
	switch c.Op {
	case Added, Changed:
		err = r.exec(ctx, "INSERT OR REPLACE INTO file VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?)",
			blob(c.Path), r.commit.Number, c.Kind, c.Digest, c.Size, c.Mode, blob(c.Target), int64(stamp.Inode), stamp.Changed)
	case Removed, Quarantined:
		err = r.exec(ctx, "DELETE FROM file WHERE path = ?", blob(c.Path))
	}
	return err
}

// finish bounds the contents and stores the commit. It returns nil if there is nothing to
// commit.
func (r *recording) finish(ctx context.Context) (*Commit, error) {
	c := &r.commit
	always := c.Cause.Operation == memory.Forked || c.Cause.Operation == memory.Restored || c.Cause.Operation == memory.Checkpoint
	if len(c.Changes) == 0 && len(c.Dropped) == 0 && !always {
		return nil, nil
	}
	if r.s.o.Complete != nil {
		if err := r.s.o.Complete(ctx, r.before, &c.Cause); err != nil {
			return nil, err
		}
		c.Cause = c.Cause.clean()
	}
	if err := errors.Join(r.bound(ctx), r.trim(ctx)); err != nil {
		return nil, err
	}
	slices.SortFunc(c.Changes, func(a, b Change) int { return strings.Compare(a.Path, b.Path) })
	slices.Sort(c.Dropped)
	c.Dropped = slices.Compact(c.Dropped)
	var err error
	if c.Digest, err = c.digestOf(); err != nil {
		return nil, err
	}
	head, err := c.head()
	if err != nil {
		return nil, err
	}
	if err = r.exec(ctx, "INSERT INTO commits VALUES(?, ?, ?, ?)", c.Number, c.Time.UnixNano(), c.Digest, head); err != nil {
		return nil, err
	}
	return c, r.prove(ctx)
}

// trim makes the commit the first one if the store is too large without the contents.
// Each present file may come from any of the destinations then.
func (r *recording) trim(ctx context.Context) error {
	var size int64
	err := r.tx.QueryRowContext(ctx, `SELECT (SELECT page_count FROM pragma_page_count) * (SELECT page_size FROM pragma_page_size)
		- (SELECT freelist_count FROM pragma_freelist_count) * (SELECT page_size FROM pragma_page_size)
		- (SELECT coalesce(sum(stored), 0) FROM content) - (SELECT coalesce(sum(length(sealed)), 0) FROM quarantine)`).Scan(&size)
	if err != nil || size <= r.s.o.MaxLog {
		return err
	}
	state, err := files(ctx, r.tx)
	if err != nil {
		return err
	}
	c := &r.commit
	c.Trimmed, c.Dropped, r.purge = true, nil, true
	err = sqlite.Each(ctx, r.tx, func(scan func(...any) error) error {
		var before Commit
		err := scanHead(scan, &before)
		c.Cause.Contacted = append(c.Cause.Contacted, before.Cause.Contacted...)
		c.Cause.MoreContacted += before.Cause.MoreContacted
		return err
	}, "SELECT number, digest, head FROM commits")
	if err != nil {
		return err
	}
	c.Cause = c.Cause.clean()
	own := slices.DeleteFunc(c.Changes, func(x Change) bool { return x.Op != Quarantined })
	c.Changes = nil
	for _, q := range []string{
		"DELETE FROM commits", "DELETE FROM change", "DELETE FROM file", "DELETE FROM made",
	} {
		if err := r.exec(ctx, q); err != nil {
			return err
		}
	}
	for path, v := range state {
		x := v.change(path)
		x.Op, x.Previous, x.Kept = Added, "", v.Kept
		if err := r.add(ctx, x, v.stamp); err != nil {
			return err
		}
	}
	for _, x := range own {
		if err := r.add(ctx, x, memory.Stamp{}); err != nil {
			return err
		}
	}
	for _, q := range []string{`DELETE FROM content WHERE id NOT IN (WITH RECURSIVE needed(id) AS (SELECT d.id FROM content d JOIN file USING(digest)
			UNION SELECT c.base FROM content c JOIN needed USING(id) WHERE c.base > 0) SELECT id FROM needed)`,
		"UPDATE content SET digest = NULL WHERE digest NOT IN (SELECT digest FROM file)",
	} {
		if err := r.exec(ctx, q); err != nil {
			return err
		}
	}
	return nil
}
