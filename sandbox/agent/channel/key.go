package channel

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"sallyport/internal/durable"
)

// Sealer encrypts what lasts.
type Sealer interface {
	Seal(plain []byte) ([]byte, error)
	Open(sealed []byte) ([]byte, error)
}

// keyName is the content's first line: a sealed file says nothing of its place.
const keyName = "sallyport agent key/1\n"

// OpenKey returns the host's private key in a sealed file, made the first time.
func OpenKey(path string, s Sealer) (ed25519.PrivateKey, error) {
	sealed, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return makeKey(path, s)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the agents' key: %w", err)
	}
	plain, err := s.Open(sealed)
	if err != nil {
		return nil, fmt.Errorf("opening the agents' key %s: %w", path, err)
	}
	seed, ok := bytes.CutPrefix(plain, []byte(keyName))
	if !ok || len(seed) != ed25519.SeedSize {
		return nil, fmt.Errorf("%s holds something else than the agents' key", path)
	}
	return ed25519.NewKeyFromSeed(seed), nil
}

func makeKey(path string, s Sealer) (ed25519.PrivateKey, error) {
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		return nil, fmt.Errorf("making the agents' key: %w", err)
	}
	sealed, err := s.Seal(append([]byte(keyName), key.Seed()...))
	if err != nil {
		return nil, fmt.Errorf("making the agents' key: %w", err)
	}
	if err := durable.WriteFile(path, sealed, 0o600); err != nil {
		return nil, fmt.Errorf("making the agents' key: %w", err)
	}
	return key, nil
}

// Public is the file that agents read, see [wire.KeyFile].
func Public(key ed25519.PrivateKey) []byte {
	pub := key.Public().(ed25519.PublicKey)
	return append([]byte(base64.StdEncoding.EncodeToString(pub)), '\n')
}
