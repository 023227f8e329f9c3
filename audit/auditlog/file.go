package auditlog

import (
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// file is what the writer needs of a segment's file.
type file interface {
	Room(n int, keep int64) error
	io.Writer
	Sync() error // fdatasync(2)
	Truncate(size int64) error
	Close() error
}

// osFile keeps zeros ahead of what it writes. A data sync of bytes that make a file
// longer waits for a commit of the file system's journal, with all that others have in
// it. A data sync of bytes in place waits for the disk alone, which takes a third of the
// time when the machine is busy.
type osFile struct {
	*os.File
	size   int64 // of what was written
	room   int64 // of the file
	held   int64 // how far blocks of the disk are its own; see Room
	unheld bool  // the file system cannot hold any
}

const (
	block = 4096 // what the disk's room is held in, in bytes

	minAhead = 32 << 10 // a log that is hardly used has no zeros ahead
	maxAhead = 1 << 20
	maxSpare = 4 << 20 // what is kept of a buffer, in bytes
)

var zeros [maxAhead]byte

// openFile opens a segment to append to; O_EXCL in flag makes it.
func openFile(path string, flag int) (file, error) {
	o, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW|flag, 0o600)
	if err != nil {
		return nil, err
	}
	size, err := o.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, errors.Join(err, o.Close())
	}
	return newFile(o, size), nil
}

// newFile takes over a file that was written up to size.
func newFile(o *os.File, size int64) file {
	return &osFile{File: o, size: size, room: size, held: size}
}

func (f *osFile) Write(b []byte) (int, error) {
	n, err := f.WriteAt(b, f.size)
	if err != nil {
		return n, err
	}
	f.size += int64(n)
	if f.size <= f.room {
		return n, nil
	}
	f.room = f.size
	if f.size >= minAhead {
		// Nothing is lost with zeros that do not fit.
		ahead, _ := f.WriteAt(zeros[:min(f.size/block*block, maxAhead)], f.room)
		f.room += int64(ahead)
	}
	return n, nil
}

// Sync leaves times out: the size, which the data needs, is synced too.
func (f *osFile) Sync() error {
	for {
		err := unix.Fdatasync(int(f.Fd()))
		if !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("fdatasync", err)
		}
	}
}

func (f *osFile) Truncate(size int64) error {
	if err := f.File.Truncate(size); err != nil {
		return err
	}
	f.size, f.room, f.held = size, size, size
	return nil
}

// Close leaves nothing but what was written.
func (f *osFile) Close() error {
	var err error
	if max(f.room, f.held) > f.size {
		err = f.File.Truncate(f.size)
	}
	return errors.Join(err, f.File.Close())
}
