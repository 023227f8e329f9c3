package tree

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/mod/sumdb/note"

	"sallyport/internal/durable"
	"sallyport/internal/seal"
)

// Key is a log's public key.
type Key struct {
	text     string
	verifier note.Verifier
}

// ParseKey reads a key as String writes it.
func ParseKey(text string) (Key, error) {
	text = strings.TrimSpace(text)
	v, err := note.NewVerifier(text)
	if err != nil {
		return Key{}, fmt.Errorf("%w: it has the form sallyport/ID+HASH+BASE64, as `sallyport audit key` prints it", err)
	}
	return Key{text, v}, nil
}

// String is the key in the form of a note's verifier (golang.org/x/mod/sumdb/note).
func (k Key) String() string { return k.text }

// Name names the key: the log and the key's hash, as notes do that it signs.
func (k Key) Name() string { return fmt.Sprintf("%s+%08x", k.verifier.Name(), k.verifier.KeyHash()) }

// Log names the log.
func (k Key) Log() string { return k.verifier.Name() }

// ReadKey reads the public key of the log in a folder.
func ReadKey(logDir string) (Key, error) {
	b, err := os.ReadFile(filepath.Join(Dir(logDir), publicFile))
	if errors.Is(err, fs.ErrNotExist) {
		return Key{}, fmt.Errorf("%w: %s: the daemon makes one when it starts", ErrNoKey, Dir(logDir))
	}
	if err != nil {
		return Key{}, err
	}
	k, err := ParseKey(string(b))
	if err != nil {
		return Key{}, fmt.Errorf("%s: %w", filepath.Join(Dir(logDir), publicFile), err)
	}
	return k, nil
}

// Signer signs the checkpoints of one log.
type Signer struct {
	Key
	signer note.Signer
}

// OpenSigner opens the sealed key of the log in a folder. It makes key and log ID at the
// first start only: a key that is gone is an error, since who has older checkpoints
// could not tell a new one from a forger's.
func OpenSigner(logDir string, with *seal.Key) (*Signer, error) {
	dir := Dir(logDir)
	secret, err := durable.ReadSealed(filepath.Join(dir, keyFile), with)
	if errors.Is(err, fs.ErrNotExist) {
		for _, other := range []string{publicFile, checkpointFile} {
			if _, err := os.Stat(filepath.Join(dir, other)); !errors.Is(err, fs.ErrNotExist) {
				return nil, fmt.Errorf("%w: %s is gone, and checkpoints were signed with it: put it back from a backup",
					ErrNoKey, filepath.Join(dir, keyFile))
			}
		}
		secret, err = newKey(dir, with)
	}
	if err != nil {
		return nil, fmt.Errorf("opening the audit log's key: %w", err)
	}
	text, public, _ := strings.Cut(string(secret), "\n")
	s := new(Signer)
	if s.signer, err = note.NewSigner(text); err != nil {
		return nil, fmt.Errorf("opening the audit log's key: %w", err)
	}
	if s.Key, err = ParseKey(public); err != nil {
		return nil, fmt.Errorf("opening the audit log's key: %w", err)
	}
	if have, err := ReadKey(logDir); err == nil && have.text == s.text {
		return s, nil
	}
	return s, durable.WriteFile(filepath.Join(dir, publicFile), []byte(s.text+"\n"), 0o644)
}

func newKey(dir string, with *seal.Key) ([]byte, error) {
	id := make([]byte, 8)
	rand.Read(id) // never fails
	secret, public, err := note.GenerateKey(rand.Reader, "sallyport/"+hex.EncodeToString(id))
	if err != nil {
		return nil, err
	}
	plain := []byte(secret + "\n" + public)
	return plain, durable.WriteSealed(filepath.Join(dir, keyFile), with, plain)
}
