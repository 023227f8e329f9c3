package durable

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// Sealer encrypts what lasts, with a key that is kept elsewhere: see package seal.
type Sealer interface {
	Seal(plain []byte) ([]byte, error)
	Open(sealed []byte) ([]byte, error)
}

// ReadSealed returns what the sealed file at path holds. An error names the file.
func ReadSealed(path string, s Sealer) ([]byte, error) {
	sealed, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	plain, err := s.Open(sealed)
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", path, err)
	}
	return plain, nil
}

// WriteSealed seals what replaces the file at path, with mode 0600: see [WriteFile].
func WriteSealed(path string, s Sealer, plain []byte) error {
	sealed, err := s.Seal(plain)
	if err != nil {
		return err
	}
	return WriteFile(path, sealed, 0o600)
}

// Sealed returns what the sealed file at path holds: the first time what first returns.
func Sealed(path string, s Sealer, first func() ([]byte, error)) ([]byte, error) {
	plain, err := ReadSealed(path, s)
	if !errors.Is(err, fs.ErrNotExist) {
		return plain, err
	}
	if plain, err = first(); err != nil {
		return nil, err
	}
	return plain, WriteSealed(path, s, plain)
}
