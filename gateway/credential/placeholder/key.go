package placeholder

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"sallyport/internal/durable"
)

const keySize = 32 // bytes

// Sealer encrypts what is on disk.
type Sealer interface {
	Seal(plain []byte) ([]byte, error)
	Open(sealed []byte) ([]byte, error)
}

// OpenKey returns the key in a sealed file, made the first time, that placeholders follow
// from.
func OpenKey(path string, s Sealer) ([]byte, error) {
	sealed, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return makeKey(path, s)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the placeholders' key: %w", err)
	}
	key, err := s.Open(sealed)
	if err == nil && len(key) != keySize {
		err = errors.New("it holds something else")
	}
	if err != nil {
		return nil, fmt.Errorf("opening the placeholders' key %s: %w", path, err)
	}
	return key, nil
}

func makeKey(path string, s Sealer) ([]byte, error) {
	key := make([]byte, keySize)
	_, _ = rand.Read(key) // never fails (crypto/rand)
	sealed, err := s.Seal(key)
	if err == nil {
		err = durable.WriteFile(path, sealed, 0o600)
	}
	if err != nil {
		return nil, fmt.Errorf("making the placeholders' key: %w", err)
	}
	return key, nil
}
