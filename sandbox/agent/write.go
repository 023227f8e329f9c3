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

	"github.com/google/uuid"

	"sallyport/sandbox/agent/wire"
)

// unfinished begins the names of files that are being written.
const unfinished = ".sallyport-"

// write puts a file in the place of what is there, in one step: who opens it
// has the old one or the whole new one.
func (s *files) write(w http.ResponseWriter, r *http.Request) {
	s.filled(w, r, 0, func(path string, mode wire.Mode) error {
		if r.URL.Query().Get("parents") == "1" {
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				return err
			}
		}
		return replace(path, r.Body, mode)
	})
}

// filled has f fill the file that a request names, as its user, with the mode that it
// asks for or this one, and answers with what the file is then.
func (s *files) filled(w http.ResponseWriter, r *http.Request, mode wire.Mode, f func(path string, mode wire.Mode) error) {
	defer s.using()()
	path, err := named(r)
	if m := r.URL.Query().Get("mode"); err == nil && m != "" {
		err = mode.UnmarshalText([]byte(m))
	}
	var out wire.File
	if err == nil {
		err = as(s.whose(r), func() error {
			if err := f(path, mode); err != nil {
				return err
			}
			out, err = stated(path, true)
			return err
		})
	}
	if err != nil {
		unfiled(w, err)
		return
	}
	answer(w, http.StatusOK, out)
}

// replace writes a file beside its place and moves it there. Without a mode it
// has that of the file before it, or 0644. A symbolic link stays: what it leads
// to is replaced.
func replace(path string, from io.Reader, mode wire.Mode) (err error) {
	old, err := os.Lstat(path)
	if err == nil && old.Mode()&fs.ModeSymlink != 0 {
		if path, err = filepath.EvalSymlinks(path); err == nil {
			old, err = os.Lstat(path)
		}
	} else if errors.Is(err, fs.ErrNotExist) {
		old, err = nil, nil
	}
	if err != nil {
		return err
	}
	if old != nil && !old.Mode().IsRegular() {
		return fmt.Errorf("%s: %w", path, errKind)
	}
	if base := filepath.Base(path); base == "." || base == "/" {
		return fmt.Errorf("%s: %w", path, errKind)
	}
	part := filepath.Join(filepath.Dir(path), unfinished+uuid.NewString())
	f, err := os.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if of := new(fs.PathError); errors.As(err, &of) {
		of.Path = filepath.Dir(path) // nobody has asked for that name
	}
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(part)
		}
	}()
	_, err = io.CopyBuffer(writeOnly{f}, readOnly{from}, make([]byte, copySize))
	if old != nil {
		st := old.Sys().(*syscall.Stat_t)
		if mode == 0 {
			mode = wire.Mode(st.Mode & 0o777)
		}
		// Who may not give it away owns it then, as after any other rewriting.
		_ = f.Chown(int(st.Uid), int(st.Gid))
	} else if mode == 0 {
		mode = 0o644
	}
	if err == nil {
		err = syscall.Fchmod(int(f.Fd()), uint32(mode))
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(part, path)
}

// readOnly hides WriteTo, which would make a buffer of its own.
type readOnly struct{ io.Reader }
