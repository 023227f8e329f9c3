package channel

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"fmt"

	"sallyport/internal/durable"
)

// keyName is the content's first line: a sealed file says nothing of its place.
const keyName = "sallyport agent key/1\n"

// OpenKey returns the host's private key in a sealed file, made the first time.
func OpenKey(path string, s durable.Sealer) (ed25519.PrivateKey, error) {
	plain, err := durable.Sealed(path, s, func() ([]byte, error) {
		_, key, err := ed25519.GenerateKey(nil)
		return append([]byte(keyName), key.Seed()...), err
	})
	if err != nil {
		return nil, fmt.Errorf("the agents' key: %w", err)
	}
	seed, ok := bytes.CutPrefix(plain, []byte(keyName))
	if !ok || len(seed) != ed25519.SeedSize {
		return nil, fmt.Errorf("%s holds something else than the agents' key", path)
	}
	return ed25519.NewKeyFromSeed(seed), nil
}

// Public is the file that agents read, see [wire.KeyFile].
func Public(key ed25519.PrivateKey) []byte {
	pub := key.Public().(ed25519.PublicKey)
	return append([]byte(base64.StdEncoding.EncodeToString(pub)), '\n')
}
