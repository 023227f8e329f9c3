package history

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/aymanbagabas/go-udiff"

	"sallyport/internal/sqlite"
	"sallyport/memory"
)

// maxDiff is the size in bytes of the text that Diff returns.
const maxDiff = 8 << 20

// Diff returns what differs between two commits at or below a path, or everywhere; 0 is
// before the first commit.
func (s *Store) Diff(ctx context.Context, from, to uint64, path string) ([]FileDiff, error) {
	tx, err := s.read.BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	defer tx.Rollback()
	a, err := at(ctx, tx, from)
	if err != nil {
		return nil, err
	}
	b, err := at(ctx, tx, to)
	if err != nil {
		return nil, err
	}
	both := map[string]bool{}
	for _, m := range []map[string]Version{a, b} {
		for p := range m {
			both[p] = true
		}
	}
	paths := []string{}
	if path = strings.TrimSuffix(path, "/"); path != "" {
		paths = []string{path}
	}
	chosen, err := choose(both, paths)
	if err != nil {
		return nil, err
	}
	var list []FileDiff
	size := 0
	for _, p := range chosen {
		x, was := a[p]
		y, is := b[p]
		if was && is && x.Commit == y.Commit {
			continue
		}
		d := FileDiff{Path: p, Op: Changed}
		if was {
			d.From = &x
		} else {
			d.Op = Added
		}
		if is {
			d.To = &y
		} else {
			d.Op = Removed
		}
		if d.Op == Changed && x.equal(y) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if size >= maxDiff {
			d.Note = "left out: the whole is longer than 8 MiB"
		} else if err := d.compare(ctx, tx); err != nil {
			return nil, err
		}
		size += len(d.Text)
		list = append(list, d)
	}
	return list, nil
}

// equal says whether two versions are alike in all but their commits. Of two files without
// a digest that is not known.
func (v Version) equal(w Version) bool {
	v.Commit, w.Commit, v.Kept, w.Kept = 0, 0, false, false
	return v == w && (v.Digest != "" || v.Kind != memory.KindFile)
}

func (d *FileDiff) compare(ctx context.Context, q sqlite.Querier) error {
	var text [2]string
	name := strconv.Quote(d.Path)
	if plain := name[1 : len(name)-1]; plain == d.Path {
		name = plain
	}
	labels := [2]string{"/dev/null", "/dev/null"}
	for i, v := range []*Version{d.From, d.To} {
		if v == nil {
			continue
		}
		labels[i] = name
		if v.Kind != memory.KindFile {
			continue
		}
		data, err := content(ctx, q, v.Digest)
		if errors.Is(err, ErrNotKept) {
			d.Note = "the contents are not kept"
			return nil
		}
		if err != nil {
			return err
		}
		if text[i] = string(data); !utf8.ValidString(text[i]) || strings.Contains(text[i], "\x00") {
			d.Note = "binary"
			return nil
		}
	}
	d.Text = udiff.Unified(labels[0], labels[1], text[0], text[1])
	return nil
}

// Rollback makes the memory, or some paths of it, what they were at a commit. Record comes
// before it, so that what is there can be gone back to as well: what was written since that,
// at these paths, is recorded first, and other new files stay. If contents are needed
// that are not kept, its error wraps [ErrNotKept] and names the files, and nothing is
// written, unless the target leaves them out. Each file is the old or the new one at any
// time; after a crash some may be the old ones. Pipes and devices are not made again. If
// the sandbox keeps changing a file meanwhile, the error wraps [memory.ErrChanged]. The end
// of ctx does not part what is written from its commit: it is of effect before that.
func (s *Store) Rollback(ctx context.Context, f *memory.Folder, t Target, c Cause) (*Commit, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	ctx = context.WithoutCancel(ctx)
	c.Operation, c.FromCommit = memory.RolledBack, t.To
	for try := 0; ; try++ {
		err := s.apply(ctx, f, t)
		if err == nil {
			c.Contacted, c.MoreContacted = nil, 0 // those are of what was there
			return s.record(ctx, f, c)
		}
		if try == 3 || !errors.Is(err, memory.ErrChanged) && !errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("rolling back: %w", err)
		}
		if _, err := s.record(ctx, f, found(c)); err != nil {
			return nil, err
		}
	}
}

func (s *Store) apply(ctx context.Context, f *memory.Folder, t Target) error {
	then, err := s.At(ctx, t.To)
	if err != nil {
		return err
	}
	now, err := files(ctx, s.write)
	if err != nil {
		return err
	}
	both := map[string]bool{}
	var missing []string
	for p, v := range then {
		both[p] = true
		if old, is := now[p]; v.Kind == memory.KindFile && !v.Kept && !(is && (old.Commit == v.Commit || old.Digest == v.Digest && v.Digest != "")) {
			missing = append(missing, p)
		}
	}
	for p := range now {
		both[p] = true
	}
	chosen, err := choose(both, t.Paths)
	if err != nil {
		return err
	}
	missing = slices.DeleteFunc(missing, func(p string) bool { return !slices.Contains(chosen, p) })
	if len(missing) > 0 && !t.LeaveOut {
		slices.Sort(missing)
		return fmt.Errorf("%w: of %d files, such as %q; leave them out, or choose other paths", ErrNotKept, len(missing), missing[:min(len(missing), 10)])
	}
	chosen = slices.DeleteFunc(chosen, func(p string) bool {
		old, is := now[p]
		v, was := then[p]
		return slices.Contains(missing, p) || is && was && (old.Commit == v.Commit || old.equal(v)) || !is && !was
	})
	for _, p := range slices.Backward(chosen) { // what is in a folder before the folder
		v, was := then[p]
		if old, is := now[p]; is && (!was || old.Kind != v.Kind || v.Kind == memory.KindLink) {
			if err := remove(f, p, old); err != nil {
				return err
			}
		}
	}
	for _, p := range chosen {
		if v, was := then[p]; was {
			if err := s.restore(ctx, f, p, v, now[p]); err != nil {
				return err
			}
		}
	}
	return nil
}

// remove removes what is recorded, and a folder only if nothing is in it.
func remove(f *memory.Folder, p string, v file) error {
	var err error
	switch {
	case v.Kind == memory.KindFile && v.Digest != "":
		err = f.RemoveFile(p, v.Digest)
	case v.Kind == memory.KindFolder:
		if err = f.Rmdir(p); errors.Is(err, fs.ErrExist) {
			err = errors.Join(memory.ErrChanged, err)
		}
	default:
		err = f.Remove(p)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (s *Store) restore(ctx context.Context, f *memory.Folder, p string, v Version, old file) error {
	switch v.Kind {
	case memory.KindFolder:
		if err := f.Mkdir(p); err != nil {
			return err
		}
	case memory.KindLink:
		return f.Symlink(v.Target, p)
	case memory.KindOther:
		return nil
	default:
		if old.Kind != memory.KindFile {
			old.Digest = ""
		}
		if v.Digest != old.Digest || v.Digest == "" {
			data, err := s.Content(ctx, v.Digest)
			if err != nil {
				return err
			}
			if old.Kind == memory.KindFile && old.Digest == "" { // it has no digest to compare
				if err := f.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
					return err
				}
			}
			if err := f.Write(p, data, old.Digest); err != nil {
				return err
			}
		}
	}
	return f.Chmod(p, parseMode(v.Mode))
}

func parseMode(text string) fs.FileMode {
	m, _ := strconv.ParseUint(text, 8, 32)
	return fs.FileMode(m) & fs.ModePerm
}
