package agent

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/sandbox/agent/wire"
)

// set makes a file what it is to be, as far as its user may.
func set(path string, in wire.Attributes) error {
	if in.Size != nil {
		// Opened and looked at, so that nothing but a regular file is cut off.
		f, err := writable(path, 0, 0)
		if err != nil {
			return err
		}
		err = f.Truncate(*in.Size)
		_ = f.Close()
		if err != nil {
			return err
		}
	}
	if in.Mode != nil {
		if err := unix.Chmod(path, uint32(*in.Mode)); err != nil {
			return &fs.PathError{Op: "chmod", Path: path, Err: err}
		}
	}
	if in.Accessed == nil && in.Modified == nil {
		return nil
	}
	when := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Nsec: unix.UTIME_OMIT}}
	for i, t := range []*time.Time{in.Accessed, in.Modified} {
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
func writable(path string, flags int, mode wire.Mode) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|unix.O_NONBLOCK|unix.O_NOCTTY|flags, fs.FileMode(mode&0o777))
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

// errEnd: the file does not end where the caller says.
var errEnd = errors.New("it does not end there")

// append writes at a file's end as it comes: what has come stays when the rest does
// not. A file that is not there is made. With at, it is refused where the file does
// not end there.
func (s *files) append(w http.ResponseWriter, r *http.Request) {
	s.filled(w, r, 0o644, func(path string, mode wire.Mode) error {
		at := int64(-1)
		if v := r.URL.Query().Get("at"); v != "" {
			var err error
			if at, err = strconv.ParseInt(v, 10, 64); err != nil {
				return err
			}
		}
		return appended(path, r.Body, mode, at)
	})
}

func appended(path string, from io.Reader, mode wire.Mode, at int64) (err error) {
	_, there := os.Stat(path)
	how := os.O_APPEND
	if at <= 0 { // one that was longer and is gone is not begun anew
		how |= os.O_CREATE
	}
	f, err := writable(path, how, mode)
	if err != nil {
		return err
	}
	defer func() {
		if cerr := f.Close(); err == nil {
			err = cerr
		}
	}()
	if info, err := f.Stat(); err != nil {
		return err
	} else if at >= 0 && info.Size() != at {
		return fmt.Errorf("%s: %w but at %d", path, errEnd, info.Size())
	}
	if errors.Is(there, fs.ErrNotExist) {
		if err := unix.Fchmod(int(f.Fd()), uint32(mode)); err != nil { // whatever our mask is
			return err
		}
	}
	_, err = io.CopyBuffer(writeOnly{f}, readOnly{from}, make([]byte, copySize))
	return err
}
