package agent

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"sallyport/sandbox/agent/wire"
)

// unfinished begins the names of files that are being written.
const unfinished = ".sallyport-"

// write puts a file in the place of what is there, in one step: a program that opens it
// has the old one or the whole new one.
func (s *files) write(w http.ResponseWriter, r *http.Request) {
	defer s.using()()
	path, err := named(r)
	var mode wire.Mode
	if m := r.URL.Query().Get("mode"); err == nil && m != "" {
		err = mode.UnmarshalText([]byte(m))
	}
	var out wire.File
	if err == nil {
		err = asUser(s.whose(r), func() error {
			if r.URL.Query().Get("parents") == "1" {
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					return err
				}
			}
			if err := replace(path, r.Body, mode); err != nil {
				return err
			}
			out, err = stated(path, true)
			return err
		})
	}
	if err != nil {
		refuseFile(w, err)
		return
	}
	answer(w, http.StatusOK, out)
}

// replace writes a file beside its place and moves it there. Without a mode it
// has that of the file before it, or 0644. A symbolic link stays: what it leads
// to is replaced.
func replace(path string, from io.Reader, mode wire.Mode) error {
	r, err := replacing(path, mode)
	if err != nil {
		return err
	}
	_, err = io.CopyBuffer(writeOnly{r.f}, readOnly{from}, make([]byte, copySize))
	return r.done(err)
}

// replacement is a file that is written beside its place.
type replacement struct {
	f    *os.File
	path string
	old  fs.FileInfo // nil if there is none
	mode wire.Mode   // 0: that of old, or 0644
}

// replacing begins a replacement of what is at a path.
func replacing(path string, mode wire.Mode) (*replacement, error) {
	old, err := os.Lstat(path)
	if err == nil && old.Mode()&fs.ModeSymlink != 0 {
		if path, err = filepath.EvalSymlinks(path); err == nil {
			old, err = os.Lstat(path)
		}
	} else if errors.Is(err, fs.ErrNotExist) {
		old, err = nil, nil
	}
	if err != nil {
		return nil, err
	}
	if old != nil && !old.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: %w", path, errKind)
	}
	if base := filepath.Base(path); base == "." || base == "/" {
		return nil, fmt.Errorf("%s: %w", path, errKind)
	}
	part := filepath.Join(filepath.Dir(path), unfinished+uuid.NewString())
	f, err := os.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if of := new(fs.PathError); errors.As(err, &of) {
		of.Path = filepath.Dir(path) // nobody has asked for that name
	}
	if err != nil {
		return nil, err
	}
	return &replacement{f, path, old, mode}, nil
}

// done moves the file to its place, unless writing it has failed.
func (r *replacement) done(err error) error {
	mode := r.mode
	if r.old != nil {
		st := r.old.Sys().(*syscall.Stat_t)
		if mode == 0 {
			mode = wire.Mode(st.Mode & 0o777)
		}
		// A user that may not give the file away owns it then, as after any other rewriting.
		_ = r.f.Chown(int(st.Uid), int(st.Gid))
	} else if mode == 0 {
		mode = 0o644
	}
	if err == nil {
		err = syscall.Fchmod(int(r.f.Fd()), uint32(mode))
	}
	if err = errors.Join(err, r.f.Close()); err == nil {
		err = os.Rename(r.f.Name(), r.path)
	}
	if err != nil {
		_ = os.Remove(r.f.Name())
	}
	return err
}

// readOnly hides WriteTo, which would make a buffer of its own.
type readOnly struct{ io.Reader }

// attributes are what is to be set of a file; nil: it stays.
type attributes struct {
	size               *int64 // in bytes: what is beyond is cut off, what is missing is zeros
	mode               *wire.Mode
	accessed, modified *time.Time
}

// set makes a file what it is to be, as far as its user may. A symbolic link is followed.
func set(path string, in attributes) error {
	if in.size != nil {
		// Opened and looked at, so that nothing but a regular file is cut off.
		f, err := writable(path, 0)
		if err != nil {
			return err
		}
		err = f.Truncate(*in.size)
		_ = f.Close()
		if err != nil {
			return err
		}
	}
	if in.mode != nil {
		if err := unix.Chmod(path, uint32(*in.mode)); err != nil {
			return &fs.PathError{Op: "chmod", Path: path, Err: err}
		}
	}
	if in.accessed == nil && in.modified == nil {
		return nil
	}
	when := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Nsec: unix.UTIME_OMIT}}
	for i, t := range []*time.Time{in.accessed, in.modified} {
		if t == nil {
			continue
		}
		spec, err := unix.TimeToTimespec(*t)
		if err != nil {
			return &fs.PathError{Op: "utimes", Path: path, Err: err}
		}
		when[i] = spec
	}
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, path, when, 0); err != nil {
		return &fs.PathError{Op: "utimes", Path: path, Err: err}
	}
	return nil
}

// writable opens a regular file to be written as it is. Opening anything else
// neither waits nor changes it.
func writable(path string, flags int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|unix.O_NONBLOCK|unix.O_NOCTTY|flags, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s: %w", path, errKind)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}
