package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Space is the host's file system that the disks below a folder take from.
type Space struct{ Dir string }

// Free is how much of it is left for the host, in bytes, less what disks hold in
// the page cache and have yet to take. Room that only root may use does not count.
func (s Space) Free() (free int64, err error) {
	// Only one of two looks would see pages that the kernel writes back between them.
	for range 10 {
		var before, after, pending int64
		if before, _, err = s.disks(); err != nil {
			return 0, err
		}
		var st unix.Statfs_t
		if err := unix.Statfs(s.Dir, &st); err != nil {
			return 0, fmt.Errorf("asking how much of the disk is left: %w", err)
		}
		if after, pending, err = s.disks(); err != nil {
			return 0, err
		}
		// Were it to go on, less is left than this says by what has been taken meanwhile.
		if free = int64(st.Bavail)*st.Bsize - pending - max(0, after-before); after == before {
			break
		}
	}
	return free, nil
}

// disks is what all disks take of the host's, and what they have yet to take.
func (s Space) disks() (taken, pending int64, err error) {
	folders, err := filepath.Glob(filepath.Join(s.Dir, "*", image))
	if err != nil {
		return 0, 0, err
	}
	for _, f := range folders {
		d, err := look(filepath.Dir(f))
		if err != nil {
			return 0, 0, err
		}
		taken, pending = taken+d.taken, pending+max(0, d.written-d.taken)
	}
	return taken, pending, nil
}

// Used is how much the disk of a sandbox takes of the host's or will, in bytes.
func (Space) Used(folder string) (int64, error) {
	d, err := look(folder)
	return max(d.taken, d.written), err
}

// kept is a file of the host's disk that is given up when nothing else is left.
const (
	kept      = ".kept"
	keptBytes = 32 << 20
)

// Yield gives up what Settle keeps.
func (s Space) Yield() error {
	f, err := os.OpenFile(filepath.Join(s.Dir, kept), os.O_WRONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	// A file's former room is free once the journal has it.
	return errors.Join(f.Truncate(0), f.Sync(), f.Close())
}

// Settle keeps room on the file system: 32 MiB, or what there is of it.
func (s Space) Settle() error {
	f, err := os.OpenFile(filepath.Join(s.Dir, kept), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	for n := int64(1 << 20); err == nil && info.Size() < keptBytes && n <= keptBytes; n += 1 << 20 {
		err = unix.Fallocate(int(f.Fd()), 0, 0, n)
	}
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		err = nil
	}
	return errors.Join(err, f.Close())
}

// Size is how much the file system holds altogether, in bytes.
func (s Space) Size() (int64, error) {
	var st unix.Statfs_t
	err := unix.Statfs(s.Dir, &st)
	return int64(st.Blocks) * st.Bsize, err
}

// occupied is what a disk takes of the host's, in bytes, and what is written to
// it: files are counted at once (ext4_statfs in fs/ext4/super.c takes delayed
// allocations off), and reach the host's disk when the kernel writes them back.
type occupied struct{ taken, written int64 }

func look(folder string) (o occupied, err error) {
	if o.taken, err = Used(folder); err != nil {
		return o, err
	}
	at := filepath.Join(folder, point)
	before := mounted(at)
	var st unix.Statfs_t
	if err := unix.Statfs(at, &st); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return o, fmt.Errorf("asking what is on a sandbox's disk: %w", err)
	}
	if before && mounted(at) { // else it is the host's that was asked
		o.written = int64(st.Blocks-st.Bfree) * st.Bsize
	}
	return o, nil
}
