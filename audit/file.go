package audit

import (
	"errors"
	"io"
	"os"
	"unsafe"

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

// osFile spares a data sync what it can.
//
// It keeps zeros ahead of what it writes. A data sync of bytes that make a file
// longer waits for a commit of the file system's journal, with all that others
// have in it; one of bytes in place waits for the disk alone, a third of the
// time when the machine is busy.
//
// And it writes past the page cache (O_DIRECT of open(2)) where the file system
// lets it: nothing reads soon what was written, and a page's way into the cache
// and from there to the disk is a fifth of what a data sync takes of the
// processor. Whole blocks are written then, the last one filled up with zeros
// and written again, with what follows, the next time. A disk that loses power
// meanwhile has the old block or the new one, as it has of a cached page: they
// differ where nothing was acknowledged yet.
type osFile struct {
	*os.File
	size   int64  // of what was written
	room   int64  // of the file
	held   int64  // how far blocks of the disk are its own; see Room
	unheld bool   // the file system cannot
	direct bool   // past the page cache
	buf    []byte // for that: aligned, and begins with the block that is not full
}

const (
	// block is what direct writes are aligned to, in bytes: the largest sector
	// that disks commonly have. One that wants more gets no direct writes.
	block = 4096

	minAhead = 32 << 10 // a log that is hardly used has no more zeros than a block
	maxAhead = 1 << 20
	maxSpare = 4 << 20 // what is kept of a buffer, in bytes
)

var (
	zeroed [maxAhead + block]byte
	zeros  = align(zeroed[:], maxAhead)
)

// align is the part of b, n bytes long, that begins where direct writes may.
// Memory does not move in Go.
func align(b []byte, n int) []byte {
	skip := -uintptr(unsafe.Pointer(unsafe.SliceData(b))) % block
	return b[skip:][:n:n]
}

func aligned(n int) []byte { return align(make([]byte, n+block), n) }

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
	return newFile(o, size)
}

// newFile takes over a file that was written up to size. It closes what it
// cannot use.
func newFile(o *os.File, size int64) (file, error) {
	f := &osFile{File: o, direct: true}
	if err := f.begin(size); err != nil {
		return nil, errors.Join(err, o.Close())
	}
	return f, nil
}

// begin has writes follow the first size bytes, which are all there is.
func (f *osFile) begin(size int64) error {
	f.size, f.room, f.held = size, size, size
	if !f.direct {
		return nil
	}
	if f.buf == nil {
		f.buf = aligned(block)
	}
	if err := f.setDirect(false); err != nil {
		return err
	}
	if n := size % block; n > 0 {
		if _, err := f.ReadAt(f.buf[:n], size-n); err != nil {
			return err
		}
	}
	// Not by open, which makes a file before it says that it may not be direct.
	f.direct = f.setDirect(true) == nil
	return nil
}

func (f *osFile) setDirect(on bool) error {
	flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
	if err != nil {
		return os.NewSyscallError("fcntl", err)
	}
	flags &^= unix.O_DIRECT
	if on {
		flags |= unix.O_DIRECT
	}
	_, err = unix.FcntlInt(f.Fd(), unix.F_SETFL, flags)
	return os.NewSyscallError("fcntl", err)
}

func (f *osFile) Write(b []byte) (int, error) {
	err := f.write(b)
	if f.direct && errors.Is(err, unix.EINVAL) {
		// It may not be direct after all, which the kernel finds before it
		// writes.
		if err = f.setDirect(false); err == nil {
			f.direct, f.buf = false, nil
			err = f.write(b)
		}
	}
	if err != nil {
		return 0, err
	}
	f.size += int64(len(b))
	if f.size <= f.room {
		return len(b), nil
	}
	f.room = f.size
	if f.direct {
		f.room = (f.size + block - 1) / block * block
	}
	if f.size >= minAhead {
		// What does not fit is nothing lost.
		n, _ := f.WriteAt(zeros[:min(f.size/block*block, maxAhead)], f.room)
		f.room += int64(n)
	}
	return len(b), nil
}

func (f *osFile) write(b []byte) error {
	if !f.direct {
		_, err := f.WriteAt(b, f.size)
		return err
	}
	begun := int(f.size % block)
	end := begun + len(b)
	full := end / block * block
	whole := (end + block - 1) / block * block
	if whole > len(f.buf) {
		larger := aligned(whole)
		copy(larger, f.buf[:begun])
		f.buf = larger
	}
	copy(f.buf[begun:], b)
	clear(f.buf[end:whole])
	if _, err := f.WriteAt(f.buf[:whole], f.size-int64(begun)); err != nil {
		return err
	}
	rest := f.buf[full:end]
	if len(f.buf) > maxSpare {
		f.buf = aligned(block)
	}
	copy(f.buf, rest)
	return nil
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
	return f.begin(size)
}

// Close leaves nothing but what was written.
func (f *osFile) Close() error {
	var err error
	if max(f.room, f.held) > f.size {
		err = f.File.Truncate(f.size)
	}
	return errors.Join(err, f.File.Close())
}
