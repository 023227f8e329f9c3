package file

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"sallyport/internal/durable"
	"sallyport/internal/seal"
)

// keysFile holds the store's own keys, a line for each and the newest first, sealed with the
// key of the data directory. Without it that key seals the secrets itself.
const keysFile = ".keys"

// keys are the keys that secrets may be sealed with, the newest first.
func (s *Store) keys() ([]*seal.Key, error) {
	path := filepath.Join(s.dir, keysFile)
	plain, err := durable.ReadSealed(path, s.key)
	if errors.Is(err, fs.ErrNotExist) {
		return []*seal.Key{s.key}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%w; put it back from its backup", err)
	}
	var keys []*seal.Key
	for line := range strings.Lines(string(plain)) {
		key, ok := seal.Parse(line)
		if !ok {
			return nil, fmt.Errorf("%w: %s; put it back from its backup", seal.ErrDamaged, path)
		}
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("%w: %s is empty; put it back from its backup", seal.ErrDamaged, path)
	}
	return keys, nil
}

func (s *Store) writeKeys(keys ...*seal.Key) error {
	var text strings.Builder
	for _, k := range keys {
		text.WriteString(k.Text() + "\n")
	}
	return durable.WriteSealed(filepath.Join(s.dir, keysFile), s.key, []byte(text.String()))
}

// sealed seals with the newest key.
func (s *Store) sealed(plain []byte) ([]byte, error) {
	keys, err := s.keys()
	if err != nil {
		return nil, err
	}
	return keys[0].Seal(plain)
}

// opened opens with the key that fits.
func (s *Store) opened(sealed []byte) (plain []byte, err error) {
	keys, err := s.keys()
	if err != nil {
		return nil, err
	}
	for _, k := range keys {
		if plain, err = k.Open(sealed); !errors.Is(err, seal.ErrWrongKey) {
			break
		}
	}
	return plain, err
}

// RotateKey makes a new key and seals every secret with it anew, and returns their number.
// The old key is forgotten when all are. A crash or an error on the way leaves all of them
// readable; what is left is done by the next RotateKey.
func (s *Store) RotateKey() (int, error) {
	unlock, err := s.lock()
	if err != nil {
		return 0, err
	}
	defer unlock()
	defer s.changes.Add(1)
	old, err := s.keys()
	if err != nil {
		return 0, err
	}
	key, err := seal.Generate()
	if err != nil {
		return 0, err
	}
	if err := s.writeKeys(append([]*seal.Key{key}, old...)...); err != nil {
		return 0, fmt.Errorf("keeping the new key: %w", err)
	}
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return 0, err
	}
	done := 0
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), suffix)
		if !ok || !nameForm.MatchString(name) {
			continue
		}
		plain, err := s.plain(name)
		if err != nil {
			return done, fmt.Errorf("secret %q, so that the old key stays: %w", name, err)
		}
		again, err := key.Seal(plain)
		clear(plain)
		if err == nil {
			err = durable.WriteFile(s.path(name), again, 0o600)
		}
		if err != nil {
			return done, fmt.Errorf("sealing secret %q anew, so that the old key stays: %w", name, err)
		}
		done++
	}
	if err := s.writeKeys(key); err != nil {
		return done, fmt.Errorf("forgetting the old key: %w", err)
	}
	return done, nil
}

// lock keeps other writers out: the mutex this process's, the file's lock others'.
func (s *Store) lock() (unlock func(), err error) {
	s.mu.Lock()
	lock, err := os.OpenFile(filepath.Join(s.dir, ".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		s.mu.Unlock()
		return nil, err
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		lock.Close()
		s.mu.Unlock()
		return nil, fmt.Errorf("locking %s: %w", lock.Name(), err)
	}
	return func() { lock.Close(); s.mu.Unlock() }, nil
}
