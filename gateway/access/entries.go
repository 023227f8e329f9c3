// Package access keeps what may use the gateway by a token: clients of the explicit proxy,
// and published ports of sandboxes, which clients of this host visit. Of a token only the
// SHA-256 is kept: it has 256 random bits, so that nothing slower is needed.
//
// The daemon keeps both in files. The gateway's process has them in memory, as the daemon
// says.
package access

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"sync"

	"sallyport/internal/durable"
)

// entries are a list in one JSON file, or in memory where there is no path.
type entries[T any] struct {
	path string
	mu   sync.RWMutex
	list []T
}

// read reads the file. A file that is not there holds nothing; its folder must exist.
// check returns an entry's name, and whether the entry is whole.
func (s *entries[T]) read(what string, check func(T) (name string, ok bool)) error {
	if _, err := durable.ReadJSON(s.path, &s.list); err != nil {
		return fmt.Errorf("reading %s: %w: mend it or remove it, which revokes every token", what, err)
	}
	for _, e := range s.list {
		if name, ok := check(e); !ok {
			return fmt.Errorf("reading %s: %s: the entry of %q is damaged: remove it", what, s.path, name)
		}
	}
	return nil
}

// write makes next the list, once it is on disk. s.mu is held.
func (s *entries[T]) write(next []T) error {
	if s.path != "" {
		if err := durable.WriteJSON(s.path, next); err != nil {
			return err
		}
	}
	s.list = next
	return nil
}

// newToken returns a token that begins with mark.
func newToken(mark string) string {
	var raw [32]byte
	_, _ = rand.Read(raw[:]) // never fails (crypto/rand)
	return mark + base64.RawURLEncoding.EncodeToString(raw[:])
}

// digestOf is the SHA-256 of a token in hex.
func digestOf(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

func isDigest(s string) bool {
	raw, err := hex.DecodeString(s)
	return err == nil && len(raw) == sha256.Size
}
