package disk

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"sallyport/internal/durable"
)

// The content of a disk is its blocks, and never a tree of files: whatever a sandbox
// makes of its files (paths deeper than the kernel can name, names of any bytes,
// millions of links to one file), the same bytes are copied, and nothing of it is
// read as a name.

// Freeze keeps a disk as it is until thaw: the file system is whole on the host's disk,
// and writes to it wait (ioctl FIFREEZE, fsfreeze(8)). Of a disk that is not attached, who attaches it
// waits. A process that ends does not thaw it: see Thaw.
func Freeze(folder string) (thaw func() error, err error) {
	unlock, err := lock(folder)
	if err != nil {
		return nil, err
	}
	at := filepath.Join(folder, point)
	if !mounted(at) {
		return func() error { unlock(); return nil }, nil
	}
	defer unlock() // whoever looks at its memory need not wait
	if err := freezing(at, fiFreeze); err != nil {
		return nil, fmt.Errorf("freezing %s: %w", at, err)
	}
	return func() error { return Thaw(folder) }, nil
}

// Thaw undoes Freeze, also that of a process that has ended since. It may be called
// again.
func Thaw(folder string) error {
	at := filepath.Join(folder, point)
	if !mounted(at) {
		return nil
	}
	if err := freezing(at, fiThaw); err != nil && !errors.Is(err, unix.EINVAL) { // it is not frozen
		return fmt.Errorf("thawing %s: %w", at, err)
	}
	return nil
}

// ioctls of linux/fs.h.
const (
	fiFreeze = 0xc0045877 // FIFREEZE
	fiThaw   = 0xc0045878 // FITHAW
)

func freezing(at string, request uint) error {
	f, err := os.Open(at)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.IoctlSetInt(int(f.Fd()), request, 0)
}

// A packed disk: packMagic, its size, then parts, each an offset, a length and so many
// bytes, by rising offsets; a part without bytes at the size is the end. Numbers are 64
// bits, big endian. Ranges that no part has are zeros.
const (
	packMagic = "sallyport disk 1\n"
	partSize  = 1 << 20 // bytes of a part, at most
)

var errPacked = errors.New("it is no disk that Sallyport has packed")

// Pack writes what is on the disk of a folder, of those blocks that take any room. The
// disk is frozen or detached.
func Pack(ctx context.Context, folder string, w io.Writer) error {
	f, err := os.Open(filepath.Join(folder, image))
	if err != nil {
		return fmt.Errorf("reading a disk: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("reading a disk: %w", err)
	}
	out := bufio.NewWriterSize(w, partSize+16)
	number := func(n int64) { _ = binary.Write(out, binary.BigEndian, n) } // the next Flush has its error
	_, _ = out.WriteString(packMagic)
	number(info.Size())
	err = parts(ctx, f, info.Size(), func(at int64, data []byte) error {
		number(at)
		number(int64(len(data)))
		_, err := out.Write(data)
		return err
	})
	if err != nil {
		return fmt.Errorf("reading a disk: %w", err)
	}
	number(info.Size())
	number(0)
	return out.Flush()
}

var zeros [partSize]byte

// parts reads what a sparse file has (lseek(2): SEEK_DATA).
func parts(ctx context.Context, f *os.File, size int64, take func(at int64, data []byte) error) error {
	buf := make([]byte, partSize)
	for at := int64(0); at < size; {
		data, err := f.Seek(at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil
		}
		if err != nil {
			return err
		}
		end, err := f.Seek(data, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		for at = data; at < end; {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			part := buf[:min(partSize, end-at)]
			if _, err := f.ReadAt(part, at); err != nil {
				return err
			}
			if !bytes.Equal(part, zeros[:len(part)]) {
				if err := take(at, part); err != nil {
					return err
				}
			}
			at += int64(len(part))
		}
	}
	return nil
}

// Unpack makes the disk of a folder, which must be detached, what Pack wrote, wherever
// it was packed, having read r to its end. The disk that was there is replaced at once,
// or stays when it fails. checkSpace is asked every few megabytes whether to go on.
func Unpack(ctx context.Context, folder string, r io.Reader, checkSpace func() error) error {
	return replace(folder, func(to *os.File) error { return unpack(ctx, to, r, checkSpace) })
}

func unpack(ctx context.Context, to *os.File, r io.Reader, checkSpace func() error) error {
	in := bufio.NewReaderSize(r, 256<<10)
	magic := make([]byte, len(packMagic))
	if _, err := io.ReadFull(in, magic); err != nil || string(magic) != packMagic {
		return errors.Join(errPacked, err)
	}
	var size int64
	if err := binary.Read(in, binary.BigEndian, &size); err != nil || size < 0 {
		return errors.Join(errPacked, err)
	}
	if err := to.Truncate(size); err != nil {
		return err
	}
	buf := make([]byte, partSize)
	for end, pending := int64(0), int64(0); ; {
		var part [2]int64 // offset and length
		if err := binary.Read(in, binary.BigEndian, &part); err != nil {
			return errors.Join(errPacked, err)
		}
		at, n := part[0], part[1]
		if at < end || n < 0 || n > partSize || at > size-n {
			return errPacked
		}
		if n == 0 {
			if at != size {
				return errPacked
			}
			break
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if _, err := io.ReadFull(in, buf[:n]); err != nil {
			return errors.Join(errPacked, err)
		}
		if _, err := to.WriteAt(buf[:n], at); err != nil {
			return err
		}
		end = at + n
		if pending += n; pending >= diskCheckEvery {
			pending = 0
			if err := checkSpace(); err != nil {
				return err
			}
		}
	}
	if n, err := io.Copy(io.Discard, in); err != nil || n > 0 { // to where a seal says that it is whole
		return errors.Join(errPacked, err)
	}
	return nil
}

const diskCheckEvery = 8 << 20 // bytes

// Copy makes the disk of a folder, which must be detached, what another is, which is
// frozen or detached; of the same blocks, where the host's file system can share them
// (ioctl_ficlone(2)).
func Copy(ctx context.Context, from, to string, checkSpace func() error) error {
	in, err := os.Open(filepath.Join(from, image))
	if err != nil {
		return fmt.Errorf("copying a disk: %w", err)
	}
	defer in.Close()
	return replace(to, func(out *os.File) error {
		if err := unix.IoctlFileClone(int(out.Fd()), int(in.Fd())); err == nil {
			return nil
		}
		info, err := in.Stat()
		if err != nil {
			return err
		}
		if err := out.Truncate(info.Size()); err != nil {
			return err
		}
		pending := 0
		return parts(ctx, in, info.Size(), func(at int64, data []byte) error {
			_, err := out.WriteAt(data, at)
			if pending += len(data); err == nil && pending >= diskCheckEvery {
				pending, err = 0, checkSpace()
			}
			return err
		})
	})
}

// replace has fill make a disk's file anew, which takes the place of the one there is.
func replace(folder string, fill func(*os.File) error) (err error) {
	path := filepath.Join(folder, image)
	part := path + partSuffix
	if err := os.Remove(part); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(part, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("making a disk: %w", err)
	}
	err = fill(f)
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	unlock := func() {}
	if err == nil {
		unlock, err = lock(folder) // of the one that there is
	}
	defer func() { unlock() }()
	if at := filepath.Join(folder, point); err == nil && mounted(at) {
		err = &os.PathError{Op: "replace", Path: at, Err: unix.EBUSY}
	}
	if err == nil {
		err = os.Rename(part, path)
	}
	if err != nil {
		return fmt.Errorf("making a disk: %w", errors.Join(err, os.Remove(part)))
	}
	return durable.SyncDir(folder)
}

const partSuffix = ".part"

// Move gives the disk of a folder, which must be detached, to another that has none, as
// it is. It copies nothing, so that it needs no room. It may be called again.
func Move(from, to string) error {
	if Exists(to) { // it has been moved
		return nil
	}
	unlock, err := lock(from)
	if err != nil {
		return err
	}
	defer unlock()
	if at := filepath.Join(from, point); mounted(at) {
		return fmt.Errorf("moving the disk at %s: %w", at, unix.EBUSY)
	}
	if err := os.Rename(filepath.Join(from, image), filepath.Join(to, image)); err != nil {
		return err
	}
	return errors.Join(durable.SyncDir(to), durable.SyncDir(from))
}

// Drop removes the disk of a folder, which must be detached, if it has one.
func Drop(folder string) error {
	unlock, err := lock(folder)
	if err != nil {
		return err
	}
	defer unlock()
	if at := filepath.Join(folder, point); mounted(at) {
		return fmt.Errorf("removing the disk at %s: %w", at, unix.EBUSY)
	}
	if err := os.Remove(filepath.Join(folder, image)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// Look opens the root of the disk of a folder that is nobody's but the caller's, to be
// read only, and removes that folder. The files are there until root is closed, or the
// process ends, and have no path.
func Look(folder string) (root *os.File, err error) {
	defer func() {
		err = errors.Join(err, os.RemoveAll(folder))
		if err != nil && root != nil {
			err, root = errors.Join(err, root.Close()), nil
		}
	}()
	at := filepath.Join(folder, point)
	if err := os.Mkdir(at, 0o700); err != nil {
		return nil, err
	}
	if err := run("mount", "-t", "ext4", "-o", "loop,ro,"+options, "--", filepath.Join(folder, image), at); err != nil {
		return nil, fmt.Errorf("looking at %s: %w", folder, err)
	}
	root, err = os.Open(at)
	return root, errors.Join(err, unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW))
}
