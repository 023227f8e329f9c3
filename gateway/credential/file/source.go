package file

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"sync"
	"syscall"

	"sallyport/gateway/credential"
)

// Source is one secret of a Store as a credential source. It reads the file again when it
// was replaced, by whatever process, so that a new version holds from the next lease on.
type Source struct {
	store *Store
	name  string

	mu       sync.Mutex
	seen     fs.FileInfo // of the file that material is from
	changes  uint64      // of the store then
	material credential.Material
}

// Source returns the named secret as a source, whether it has been set or not.
func (s *Store) Source(name string) *Source { return &Source{store: s, name: name} }

// Read returns the secret's current version.
func (s *Source) Read(context.Context) (credential.Material, error) {
	if !nameForm.MatchString(s.name) {
		return credential.Material{}, fmt.Errorf("%w: %w", credential.ErrNoSecret, ErrBadName)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// Before the content: a change between the two is seen next time.
	changes := s.store.changes.Load()
	now, err := os.Stat(s.store.path(s.name))
	if err == nil && s.seen != nil && s.changes == changes && unchanged(s.seen, now) {
		return s.material, nil
	}
	s.seen, s.material = nil, credential.Material{}
	var r *record
	if err == nil {
		r, err = s.store.load(s.name)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist) || err == nil && len(r.Fields) == 0:
		return credential.Material{}, fmt.Errorf("%w: set it with: sallyport secret set %s", credential.ErrNoSecret, s.name)
	case err != nil:
		return credential.Material{}, fmt.Errorf("%w: %w", credential.ErrUnavailable, err)
	}
	fields := make(map[string]credential.Secret, len(r.Fields))
	for field, value := range r.Fields {
		fields[field] = credential.NewSecret(string(value))
		clear(value)
	}
	s.seen, s.changes = now, changes
	s.material = credential.Material{Fields: fields, Version: strconv.FormatUint(r.Version, 10)}
	return s.material, nil
}

// unchanged says whether a path still leads to the same file with the same
// content. The store replaces files and never writes into one; the times tell
// a new file that got the number of an old one.
func unchanged(a, b fs.FileInfo) bool {
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime()) && ctime(a) == ctime(b)
}

func ctime(i fs.FileInfo) syscall.Timespec { return i.Sys().(*syscall.Stat_t).Ctim }
