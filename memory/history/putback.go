package history

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"unicode/utf8"

	"sallyport/internal/sqlite"
	"sallyport/memory"
)

// PutBack has what may stay of files in their places, which a commit has put in quarantine:
// the version before, if its contents are kept, or else the lines in which Inspect finds
// nothing, if these are as a whole nothing to find either. These have the taint of the
// file. A file that was new stays away, and one that the sandbox has written anew meanwhile
// is not replaced. The commit is nil if nothing was put back.
func (s *Store) PutBack(ctx context.Context, f *memory.Folder, of *Commit, c Cause) (*Commit, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	some := false
	c.Operation, c.FromCommit = memory.RolledBack, of.Number-1
	for _, ch := range of.Changes {
		if ch.Op != Quarantined || ch.Previous == "" || of.Trimmed {
			continue
		}
		data, err := s.Content(ctx, ch.Previous)
		if errors.Is(err, ErrNotKept) {
			if data, err = s.harmless(ctx, ch); err == nil && data != nil {
				var x lineage
				x, err = s.lineage(ctx, s.read, pathVersion{ch.Path, of.Number})
				c.Contacted, c.MoreContacted = append(c.Contacted, x.contacted...), c.MoreContacted+x.more
			}
		}
		if err == nil && data != nil {
			if err = f.Write(ch.Path, data, ""); err == nil {
				some, err = true, f.Chmod(ch.Path, parseMode(ch.Mode))
			}
		}
		if err != nil && !replaced(err) && !errors.Is(err, fs.ErrExist) && !errors.Is(err, memory.ErrChanged) {
			return nil, err
		}
	}
	if !some {
		return nil, nil
	}
	return s.record(ctx, f, c)
}

// harmless are the lines of a text in quarantine in which nothing is found, or nil.
func (s *Store) harmless(ctx context.Context, ch Change) ([]byte, error) {
	id := uint64(0)
	err := sqlite.Each(ctx, s.read, func(scan func(...any) error) error { return scan(&id) },
		"SELECT id FROM quarantine WHERE path = ? AND digest = ?", blob(ch.Path), ch.Digest)
	if err != nil || id == 0 || s.o.Inspect == nil {
		return nil, err
	}
	_, data, err := s.inQuarantine(ctx, id)
	if err != nil || !utf8.Valid(data) || bytes.IndexByte(data, 0) >= 0 {
		return nil, err
	}
	left := s.without(ctx, ch.Path, data)
	if len(left) == 0 || s.o.Inspect(ctx, ch.Path, left) != "" {
		left = nil
	}
	return left, ctx.Err()
}

// without looks at halves of lines, and their halves, until those with something to find
// are alone.
func (s *Store) without(ctx context.Context, path string, lines []byte) []byte {
	if len(lines) == 0 || s.o.Inspect(ctx, path, lines) == "" {
		return lines
	}
	half := len(lines) / 2
	at := bytes.LastIndexByte(lines[:half], '\n') + 1
	if end := bytes.IndexByte(lines[half:], '\n') + 1; at == 0 && half+end < len(lines) {
		at = half + end
	}
	if at == 0 || at == half && lines[half-1] != '\n' || ctx.Err() != nil {
		return nil
	}
	return append(bytes.Clone(s.without(ctx, path, lines[:at])), s.without(ctx, path, lines[at:])...)
}
