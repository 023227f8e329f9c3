package seal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"filippo.io/age"

	"sallyport/internal/durable"
	"sallyport/internal/secretfile"
)

const (
	// Marker is the file in the data directory that holds the fingerprint of the
	// key; it is there once something may have been sealed.
	Marker = "key.id"
	// maxKey is the size in bytes that a key file can have, comments included.
	maxKey = 16 << 10
)

// Open returns the key in keyFile that seals dataDir. On the first start,
// which is when neither keyFile nor the fingerprint in dataDir exists, it makes
// the key, with its parent directories, and it is durable when Open returns.
//
// The key file has one line that begins with AGE-SECRET-KEY-1, as age-keygen
// writes it; lines that begin with # are comments. It must be a regular file of
// root or of the process's user, not readable by anyone else (0600 or less),
// and outside dataDir. Errors wrap ErrKeyMissing, ErrWrongKey or ErrUnsafeKey.
func Open(keyFile, dataDir string) (*Key, error) {
	if keyFile == "" || dataDir == "" {
		return nil, errors.New("opening the key: keyFile and dataDir must both be set")
	}
	if err := apart(keyFile, dataDir); err != nil {
		return nil, err
	}
	idFile := filepath.Join(dataDir, Marker)
	want, err := os.ReadFile(idFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("reading the key's fingerprint: %w", err)
	}
	first := err != nil

	key, err := read(keyFile)
	if errors.Is(err, fs.ErrNotExist) {
		if !first {
			return nil, fmt.Errorf("%w: %s is gone, and %s holds data that only it opens; put the key back from its backup. "+
				"To give that data up, remove %s, and what was sealed with it, and start again",
				ErrKeyMissing, keyFile, dataDir, idFile)
		}
		key, err = create(keyFile)
	}
	if err != nil {
		return nil, err
	}
	if !first {
		if strings.TrimSpace(string(want)) != key.fingerprint() {
			return nil, fmt.Errorf("%w: %s is not the key that %s was sealed with; put the right one back from its backup",
				ErrWrongKey, keyFile, dataDir)
		}
		return key, nil
	}
	if err := durable.MkdirAll(dataDir, 0o700); err != nil {
		return nil, fmt.Errorf("making the data directory: %w", err)
	}
	if err := durable.WriteFile(idFile, []byte(key.fingerprint()+"\n"), 0o600); err != nil {
		return nil, fmt.Errorf("writing the key's fingerprint: %w", err)
	}
	return key, nil
}

// apart refuses a key that a copy of the data directory would carry along.
func apart(keyFile, dataDir string) error {
	key, err := resolve(keyFile)
	if err != nil {
		return fmt.Errorf("looking for the key: %w", err)
	}
	data, err := resolve(dataDir)
	if err != nil {
		return fmt.Errorf("looking for the data directory: %w", err)
	}
	rel, err := filepath.Rel(data, key)
	if err == nil && rel != ".." && !strings.HasPrefix(rel, "../") {
		return fmt.Errorf("%w: %s is inside the data directory %s, whose copy must not open its secrets; set keyFile to a path outside, best on another disk",
			ErrUnsafeKey, keyFile, dataDir)
	}
	return nil
}

// resolve follows the symbolic links of the part of path that exists.
func resolve(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	real, err := filepath.EvalSymlinks(path)
	if !errors.Is(err, fs.ErrNotExist) || path == "/" {
		return real, err
	}
	parent, err := resolve(filepath.Dir(path))
	return filepath.Join(parent, filepath.Base(path)), err
}

func read(path string) (*Key, error) {
	text, err := secretfile.Read(path, maxKey)
	if errors.Is(err, secretfile.ErrUnsafe) {
		return nil, fmt.Errorf("%w: %w", ErrUnsafeKey, err)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the key: %w", err)
	}
	key, ok := parse(string(text))
	if !ok {
		// The cause is left out: it can quote the line.
		return nil, fmt.Errorf("%s does not hold one age X25519 identity (a line AGE-SECRET-KEY-1…); put the key back from its backup", path)
	}
	return key, nil
}

func parse(text string) (*Key, bool) {
	var key *Key
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		identity, err := age.ParseX25519Identity(line)
		if err != nil || key != nil {
			return nil, false
		}
		key = &Key{identity}
	}
	return key, key != nil
}

// create makes a key at path, or returns the one that another process has made
// there meanwhile.
func create(path string) (*Key, error) {
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		return nil, fmt.Errorf("making a key: %w", err)
	}
	hint := "set keyFile to a path that can be written, or put a key there that age-keygen made"
	if err := durable.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("making a key: %w; %s", err, hint)
	}
	text := "# Opens what Sallyport has sealed. Keep a copy somewhere safe, and not beside the data.\n" + identity.String() + "\n"
	draft, err := os.MkdirTemp(filepath.Dir(path), ".key-*")
	if err != nil {
		return nil, fmt.Errorf("making a key: %w; %s", err, hint)
	}
	defer os.RemoveAll(draft)
	file := filepath.Join(draft, "key")
	if err := durable.WriteFile(file, []byte(text), 0o600); err != nil {
		return nil, fmt.Errorf("making a key: %w; %s", err, hint)
	}
	// link(2) fails where a rename would replace another process's key.
	err = os.Link(file, path)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("making a key: %w; %s", err, hint)
	}
	if err := durable.SyncDir(filepath.Dir(path)); err != nil {
		return nil, fmt.Errorf("making a key: %w", err)
	}
	return read(path)
}
