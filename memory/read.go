package memory

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Errors of Read to branch on, besides fs.ErrNotExist.
var (
	ErrBadName  = errors.New("not a name within the memory")
	ErrNotFile  = errors.New("not a regular file")
	ErrTooLarge = errors.New("larger than 16 MiB")
)

const maxRead = 16 << 20

// Read returns a regular file of the memory in dir. The name is relative to the memory. A
// link as the name is refused; links on the way to the file are followed within the memory
// only.
func Read(dir, name string) ([]byte, error) {
	if !filepath.IsLocal(name) {
		return nil, fmt.Errorf("%q: %w: give a path relative to it, without ..", name, ErrBadName)
	}
	root, err := open(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	// O_PATH (open(2)) opens nothing: not a pipe, which would block, nor a device, which
	// might act on it. Only a file is opened then.
	handle, err := root.OpenFile(name, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", name, cause(err))
	}
	defer handle.Close()
	info, err := handle.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%q: %w", name, ErrNotFile)
	}
	f, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", handle.Fd()))
	if err != nil {
		return nil, fmt.Errorf("%q: %w", name, cause(err))
	}
	defer f.Close()
	// The file may grow while it is read.
	data, err := io.ReadAll(io.LimitReader(f, maxRead+1))
	if err != nil {
		return nil, fmt.Errorf("%q: %w", name, cause(err))
	}
	if len(data) > maxRead {
		return nil, fmt.Errorf("%q: %w: read it inside the sandbox", name, ErrTooLarge)
	}
	return data, nil
}

// cause is the error without its path, which the message holds already, escaped.
func cause(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}
