package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"sallyport/gateway/credential"
	"sallyport/internal/secretfile"
)

// File is a file, whose content is the field token, or a folder with a file for each
// field, as Kubernetes mounts a secret. It is read for each lease.
type File struct{ path string }

// NewFile returns the source of a path. It does not read it.
func NewFile(path string) *File { return &File{path} }

// Read implements credential.Source. A final newline is no part of a value, and files whose
// names begin with a dot are none. All files have to be kept as [secretfile.Read] wants.
func (f *File) Read(context.Context) (credential.Material, error) {
	path := f.path
	info, err := os.Stat(path)
	if err != nil {
		return credential.Material{}, f.explain(err)
	}
	m := credential.Material{Fields: map[string]credential.Secret{}}
	if !info.IsDir() {
		if m.Fields["token"], err = read(path); err != nil {
			return credential.Material{}, f.explain(err)
		}
		m.Version = version(info.ModTime())
		return m, nil
	}
	// Kubernetes exchanges all files at once, by the link ..data that theirs lead through.
	if data, err := filepath.EvalSymlinks(filepath.Join(path, "..data")); err == nil {
		path = data
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return credential.Material{}, f.explain(err)
	}
	var newest time.Time
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		if len(m.Fields) == maxFields {
			return credential.Material{}, fmt.Errorf("%w: %s has more than %d files, each of them a field", credential.ErrNoSecret, f.path, maxFields)
		}
		file := filepath.Join(path, e.Name())
		info, err := os.Stat(file)
		if err == nil {
			m.Fields[e.Name()], err = read(file)
		}
		if err != nil {
			return credential.Material{}, f.explain(err)
		}
		if info.ModTime().After(newest) {
			newest = info.ModTime()
		}
	}
	m.Version = version(newest)
	return m, nil
}

func version(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

func read(path string) (credential.Secret, error) {
	text, err := secretfile.Read(path, maxValue+2)
	if err != nil {
		return credential.Secret{}, err
	}
	value := strings.TrimSuffix(strings.TrimSuffix(string(text), "\n"), "\r")
	if n := len(value); n == 0 || n > maxValue {
		return credential.Secret{}, fmt.Errorf("%s does not have 1 to %d bytes", path, maxValue)
	}
	return credential.NewSecret(value), nil
}

func (f *File) explain(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: %s is not there", credential.ErrNoSecret, f.path)
	case errors.Is(err, secretfile.ErrUnsafe):
		return fmt.Errorf("%w: %w", credential.ErrRefused, err)
	}
	return fmt.Errorf("%w: %w", credential.ErrNoSecret, err)
}
