// Package seal encrypts what lasts in the data directory with a key that is
// kept apart from it, so that a copy of the data directory opens nothing.
//
// The key is an age X25519 identity (https://age-encryption.org/v1) in a file
// of its own. The data directory holds only a fingerprint of it, by which a
// missing or exchanged key is told from a first start: a new key is never made
// silently over data that an older one sealed. The recipient that the key
// encrypts to is not in the data directory either, so that who can write there
// cannot seal a file of their own.
//
// Sealing says nothing about which file the content belongs in, nor whether it
// is the newest: the caller puts a name into the content where that matters.
// It does not protect from who can read the key file, such as root.
package seal

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"

	"filippo.io/age"
)

// Errors to branch on. Each is wrapped with the path and what to do.
var (
	// ErrKeyMissing: the data directory was sealed with a key that is not there.
	ErrKeyMissing = errors.New("the key is missing")
	// ErrWrongKey: the key is not the one that sealed the data.
	ErrWrongKey = errors.New("the data was sealed with another key")
	// ErrUnsafeKey: the key file is where, or is such that, others could read it.
	ErrUnsafeKey = errors.New("the key is not kept safe")
	// ErrDamaged: the sealed data was cut or changed.
	ErrDamaged = errors.New("the sealed data is damaged")
)

// Key seals and opens. It is safe for concurrent use.
type Key struct {
	identity *age.X25519Identity
}

// Generate makes a key for what is kept beside other sealed data; see Open for the key
// of a data directory.
func Generate() (*Key, error) {
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		return nil, fmt.Errorf("making a key: %w", err)
	}
	return &Key{identity}, nil
}

// Text is the key itself, as Parse reads it. Seal it before it is kept.
func (k *Key) Text() string { return k.identity.String() }

// Parse reads what Text returned, or a key file's content.
func Parse(text string) (*Key, bool) { return parse(text) }

// Seal encrypts plain into a binary age file. The result is some 200 bytes
// longer.
func (k *Key) Seal(plain []byte) ([]byte, error) {
	var out bytes.Buffer
	w, err := age.Encrypt(&out, k.identity.Recipient())
	if err != nil {
		return nil, fmt.Errorf("sealing: %w", err)
	}
	if _, err := w.Write(plain); err != nil {
		return nil, fmt.Errorf("sealing: %w", err)
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("sealing: %w", err)
	}
	return out.Bytes(), nil
}

// Open decrypts what Seal returned. Its errors wrap ErrWrongKey or ErrDamaged.
func (k *Key) Open(sealed []byte) ([]byte, error) {
	r, err := age.Decrypt(bytes.NewReader(sealed), k.identity)
	var none *age.NoIdentityMatchError
	if errors.As(err, &none) {
		return nil, ErrWrongKey
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	plain, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return plain, nil
}

// fingerprint names the key without revealing it or its recipient.
func (k *Key) fingerprint() string {
	sum := sha256.Sum256([]byte("sallyport key id\x00" + k.identity.Recipient().String()))
	return "sha256:" + hex.EncodeToString(sum[:])
}
