// Package durable writes files that a crash or a power cut leaves either as
// they were or as they were meant to be.
//
// When a function returns nil, its effect is on stable storage, the directory
// entries included. When it returns an error, what stood under the path before
// still stands; a temporary file may be left behind only by a crash.
package durable

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// WriteFile replaces the file at path by data. The file gets exactly the mode
// perm, whatever the umask is, before the first byte is in it. A symbolic link
// at path is replaced, not followed.
func WriteFile(path string, data []byte, perm fs.FileMode) (err error) {
	dir := filepath.Dir(path)
	// CreateTemp opens with O_EXCL and mode 0600.
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+".tmp-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
		}
	}()
	if err := f.Chmod(perm); err != nil {
		return err
	}
	if _, err := f.Write(data); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return SyncDir(dir)
}

// RemoveUnfinished removes the files that a crash of WriteFile has left in
// directories, which dirs is a pattern of (filepath.Match).
func RemoveUnfinished(dirs string) error {
	files, err := filepath.Glob(filepath.Join(dirs, ".*.tmp-*"))
	for _, f := range files {
		err = errors.Join(err, os.Remove(f))
	}
	return err
}

// MkdirAll makes path and the parents that are missing, each with mode perm
// less the umask. A directory that exists keeps its mode.
func MkdirAll(path string, perm fs.FileMode) error {
	path = filepath.Clean(path)
	switch info, err := os.Stat(path); {
	case err == nil && info.IsDir():
		return nil
	case err == nil:
		return fmt.Errorf("%s is not a directory", path)
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	parent := filepath.Dir(path)
	if err := MkdirAll(parent, perm); err != nil {
		return err
	}
	if err := os.Mkdir(path, perm); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return SyncDir(parent)
}

// Remove removes a file durably. It is no error if there is none.
func Remove(path string) error {
	err := os.Remove(path)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = SyncDir(filepath.Dir(path))
	}
	if errors.Is(err, fs.ErrNotExist) { // nor its folder
		return nil
	}
	return err
}

// SyncDir makes the names in a directory durable: after a file in it was made,
// renamed or removed (fsync(2): syncing a file does not sync its entry).
func SyncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	err = d.Sync()
	return errors.Join(err, d.Close())
}

// ReadJSON decodes the JSON file at path into v and reports whether there is such a file.
// An error names the file.
func ReadJSON(path string, v any) (found bool, err error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err == nil {
		if err = json.Unmarshal(data, v); err != nil {
			err = fmt.Errorf("reading %s: %w", path, err)
		}
	}
	return err == nil, err
}

// WriteJSON replaces the file at path by v in JSON, with mode 0600: see [WriteFile].
func WriteJSON(path string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return WriteFile(path, append(data, '\n'), 0o600)
}
