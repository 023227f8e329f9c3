package agent

import (
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/sandbox/agent/wire"
)

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
