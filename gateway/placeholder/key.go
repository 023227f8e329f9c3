package placeholder

import (
	"crypto/rand"
	"fmt"

	"sallyport/internal/durable"
)

const keySize = 32 // bytes

// OpenKey returns the key in a sealed file, made the first time, that placeholders follow
// from.
func OpenKey(path string, s durable.Sealer) ([]byte, error) {
	key, err := durable.Sealed(path, s, func() ([]byte, error) {
		key := make([]byte, keySize)
		_, _ = rand.Read(key) // never fails (crypto/rand)
		return key, nil
	})
	if err == nil && len(key) != keySize {
		err = fmt.Errorf("%s holds something else", path)
	}
	if err != nil {
		return nil, fmt.Errorf("the placeholders' key: %w", err)
	}
	return key, nil
}
