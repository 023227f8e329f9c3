// Package file is the embedded store of secrets: the credential source that needs
// only a disk.
//
// Each secret is a file in <dataDir>/secrets, sealed with a key that is kept elsewhere
// (package seal). A copy of the data directory reveals the names of the credentials
// and the times of their last change, and nothing else. A file that was renamed to
// another secret's name does not open. An older version of a file that was put back
// does.
package file

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"sallyport/gateway/credential"
	"sallyport/internal/durable"
	"sallyport/internal/seal"
)

// Errors to branch on.
var (
	ErrBadName  = errors.New("not a credential name: it has 1 to 64 letters, digits, dots, dashes and underscores and begins with a letter or digit")
	ErrBadField = errors.New("not a field name: it has 1 to 64 letters, digits and underscores and begins with a letter")
	ErrTooBig   = errors.New("a secret has 1 to 32 fields with 1 to 65,536 bytes in each")
)

const (
	maxFields = 32
	maxValue  = 64 << 10
	// maxFile is more than Set can write, escaped and sealed.
	maxFile = 16 << 20
	suffix  = ".age"
)

var (
	nameForm  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)
	fieldForm = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_]{0,63}$`)
)

// Store keeps secrets. It is safe for concurrent use, also by several processes.
type Store struct {
	dir string
	key *seal.Key
	mu  sync.Mutex // of the writers

	changes atomic.Uint64 // made by this process
}

// Info is a secret in a listing.
type Info struct {
	Name    string    `json:"name"`
	Version uint64    `json:"version"`
	Updated time.Time `json:"updated"`
}

// Change is a version of a secret: when it was set or removed, and by whom.
type Change struct {
	Version uint64    `json:"version"`
	Time    time.Time `json:"time"`
	By      string    `json:"by,omitempty"` // an operator's name; empty: not known, or the daemon
	Removed bool      `json:"removed,omitempty"`
}

// maxHistory is how many changes of a secret are kept.
const maxHistory = 100

// record is the sealed content. A deleted secret keeps its record without
// fields, so that a version never means two values.
type record struct {
	Name    string            `json:"name"`
	Version uint64            `json:"version"`
	Updated time.Time         `json:"updated"`
	Fields  map[string][]byte `json:"fields,omitempty"`
	History []Change          `json:"history,omitempty"` // the newest last
}

// New opens the store in dataDir and makes its folder the first time.
func New(dataDir string, key *seal.Key) (*Store, error) {
	dir := filepath.Join(dataDir, "secrets")
	if err := durable.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the folder of secrets: %w", err)
	}
	// One that was made by hand, or restored, may be open to others.
	if err := os.Chmod(dir, 0o700); err != nil {
		return nil, fmt.Errorf("closing the folder of secrets to others: %w", err)
	}
	return &Store{dir: dir, key: key}, nil
}

// Set stores a secret in place of an earlier version, durably, and returns its version.
// After an error the earlier version stands. Values are stored as they are: the caller
// removes the final newline of a terminal or a file.
func (s *Store) Set(name string, fields map[string]credential.Secret) (uint64, error) {
	return s.SetBy("", name, fields)
}

// SetBy is Set, by an operator whom the secret's history names.
func (s *Store) SetBy(by, name string, fields map[string]credential.Secret) (uint64, error) {
	return s.set(by, name, fields, func(*record) error { return nil })
}

// errNewer is of a version that is not the last any more.
var errNewer = errors.New("there is a newer version")

// Replace is Set if version after, "" for none, is the newest. Otherwise it changes nothing
// and returns false.
func (s *Store) Replace(name, after string, fields map[string]credential.Secret) (bool, error) {
	_, err := s.set("", name, fields, func(old *record) error {
		if len(old.Fields) > 0 && strconv.FormatUint(old.Version, 10) == after || len(old.Fields) == 0 && after == "" {
			return nil
		}
		return errNewer
	})
	if errors.Is(err, errNewer) {
		return false, nil
	}
	return err == nil, err
}

// set stores a secret if may allows it to be the version after the last one.
func (s *Store) set(by, name string, fields map[string]credential.Secret, may func(*record) error) (uint64, error) {
	if !nameForm.MatchString(name) {
		return 0, fmt.Errorf("setting secret %.80q: %w", name, ErrBadName)
	}
	if len(fields) == 0 || len(fields) > maxFields {
		return 0, fmt.Errorf("setting secret %q: %w", name, ErrTooBig)
	}
	values := make(map[string][]byte, len(fields))
	for field, value := range fields {
		if !fieldForm.MatchString(field) {
			return 0, fmt.Errorf("setting secret %q, field %.80q: %w", name, field, ErrBadField)
		}
		values[field] = []byte(value.Reveal())
		if n := len(values[field]); n == 0 || n > maxValue {
			return 0, fmt.Errorf("setting secret %q, field %q: %w", name, field, ErrTooBig)
		}
	}
	version, err := s.change(by, name, func(old *record) (map[string][]byte, error) { return values, may(old) })
	if err != nil {
		return 0, fmt.Errorf("setting secret %q: %w", name, err)
	}
	return version, nil
}

// Delete removes a secret's values. The error wraps credential.ErrNoSecret when
// there is none.
func (s *Store) Delete(name string) error { return s.DeleteBy("", name) }

// DeleteBy is Delete, by an operator whom the secret's history names.
func (s *Store) DeleteBy(by, name string) error {
	if !nameForm.MatchString(name) {
		return fmt.Errorf("removing secret %.80q: %w", name, ErrBadName)
	}
	_, err := s.change(by, name, func(old *record) (map[string][]byte, error) {
		if len(old.Fields) == 0 {
			return nil, credential.ErrNoSecret
		}
		return nil, nil
	})
	if err != nil {
		return fmt.Errorf("removing secret %q: %w", name, err)
	}
	return nil
}

// History returns the last 100 changes of a secret, the newest last, also of one that was
// removed. The error wraps credential.ErrNoSecret when there never was one.
func (s *Store) History(name string) ([]Change, error) {
	if !nameForm.MatchString(name) {
		return nil, fmt.Errorf("secret %.80q: %w", name, ErrBadName)
	}
	r, err := s.load(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("secret %q: %w", name, credential.ErrNoSecret)
	}
	if err != nil {
		return nil, fmt.Errorf("secret %q: %w", name, err)
	}
	return r.past(), nil
}

// past is the history of a record, also of one that was written before there was any.
func (r *record) past() []Change {
	if len(r.History) == 0 && r.Version > 0 {
		return []Change{{Version: r.Version, Time: r.Updated, Removed: len(r.Fields) == 0}}
	}
	return r.History
}

// change writes the next version of a secret, with the fields that next returns
// for the last one.
func (s *Store) change(by, name string, next func(*record) (map[string][]byte, error)) (uint64, error) {
	unlock, err := s.lock()
	if err != nil {
		return 0, err
	}
	defer unlock()
	old, err := s.load(name)
	if errors.Is(err, fs.ErrNotExist) {
		old, err = &record{}, nil
	}
	if err != nil {
		return 0, err
	}
	fields, err := next(old)
	if err != nil {
		return 0, err
	}
	// Updated grows with each version, though the clock may be set back.
	now := time.Now().UTC()
	if !now.After(old.Updated) {
		now = old.Updated.Add(time.Nanosecond)
	}
	version := old.Version + 1
	past := append(old.past(), Change{Version: version, Time: now, By: by, Removed: len(fields) == 0})
	past = past[max(0, len(past)-maxHistory):]
	plain, err := json.Marshal(record{Name: name, Version: version, Updated: now, Fields: fields, History: past})
	if err != nil {
		return 0, err
	}
	sealed, err := s.sealed(plain)
	if err != nil {
		return 0, err
	}
	defer s.changes.Add(1)
	return version, durable.WriteFile(s.path(name), sealed, 0o600)
}

// List returns every secret in the order of names. One that cannot be opened is
// an error, after the others.
func (s *Store) List() ([]Info, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("listing secrets: %w", err)
	}
	var all []Info
	var errs []error
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), suffix)
		if !ok || !nameForm.MatchString(name) {
			continue
		}
		r, err := s.load(name)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("secret %q: %w", name, err))
		case len(r.Fields) > 0:
			all = append(all, Info{name, r.Version, r.Updated})
		}
	}
	return all, errors.Join(errs...)
}

func (s *Store) path(name string) string { return filepath.Join(s.dir, name+suffix) }

// load reads one secret's record, without a look at any cache.
func (s *Store) load(name string) (*record, error) {
	plain, err := s.plain(name)
	if err != nil {
		return nil, err
	}
	defer clear(plain)
	var r record
	if err := json.Unmarshal(plain, &r); err != nil || r.Name != name {
		// The cause is left out: it can quote the content.
		return nil, fmt.Errorf("%w: %s holds another secret than its name says; put it back from its backup, or remove it and set the secret again",
			seal.ErrDamaged, s.path(name))
	}
	return &r, nil
}

// plain opens one secret's record.
func (s *Store) plain(name string) ([]byte, error) {
	info, err := os.Stat(s.path(name))
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxFile {
		return nil, fmt.Errorf("%s is not a file that the store wrote; remove it and set the secret again", s.path(name))
	}
	sealed, err := os.ReadFile(s.path(name))
	if err != nil {
		return nil, err
	}
	plain, err := s.opened(sealed)
	if err != nil {
		return nil, fmt.Errorf("%w; put %s back from its backup, or remove it and set the secret again", err, s.path(name))
	}
	return plain, nil
}
