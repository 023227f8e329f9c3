package durable_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sallyport/internal/durable"
	"sallyport/internal/test/must"
)

// marked is a Sealer that puts a mark before a text.
type marked string

func (m marked) Seal(plain []byte) ([]byte, error) { return append([]byte(m), plain...), nil }

func (m marked) Open(sealed []byte) ([]byte, error) {
	plain, ok := bytes.CutPrefix(sealed, []byte(m))
	if !ok {
		return nil, errors.New("another key")
	}
	return plain, nil
}

func TestSealed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	made := 0
	first := func() ([]byte, error) { made++; return []byte("what is kept"), nil }
	for range 2 {
		if got, err := durable.Sealed(path, marked("one:"), first); string(got) != "what is kept" || err != nil || made != 1 {
			t.Errorf("got %q, %v, made %d times", got, err, made)
		}
	}
	info, err := os.Stat(path)
	must.OK(t, err)
	if text, err := os.ReadFile(path); string(text) != "one:what is kept" || err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("on disk: %q, %v, %v", text, info.Mode(), err)
	}
	// A file that cannot be opened is not made anew.
	if got, err := durable.Sealed(path, marked("two:"), first); err == nil || !strings.Contains(err.Error(), path) || got != nil || made != 1 {
		t.Errorf("with another key: %q, %v, made %d times", got, err, made)
	}
}
