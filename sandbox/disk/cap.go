package disk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Cap keeps a disk that is attached from growing: what would take more blocks of it
// ends as on a full disk (ENOSPC), also for root, and nothing else does. Removed bytes can
// be written again. It lasts until Uncap, or until the disk is detached, and may be
// called again: it is at what the disk had the first time.
//
// All blocks that are free become the file system's own reserve, which it takes only to
// bring to the disk what it has accepted (reserved_clusters in
// Documentation/ABI/testing/sysfs-fs-ext4).
func (Space) Cap(folder string) error {
	at := filepath.Join(folder, point)
	if !mounted(at) {
		return nil
	}
	var st unix.Statfs_t
	if err := unix.Statfs(at, &st); err != nil {
		return fmt.Errorf("asking what is on a sandbox's disk: %w", err)
	}
	usual := usualReserve(&st)
	path, err := reserveFile(at)
	if err != nil {
		return err
	}
	now, err := readNumber(path)
	if err != nil || now > usual {
		return err // it is done
	}
	return writeNumber(path, min(max(st.Bfree, usual+1), st.Blocks-1))
}

// Uncap undoes Cap. It may be called again.
func (Space) Uncap(folder string) error {
	at := filepath.Join(folder, point)
	if !mounted(at) {
		return nil
	}
	var st unix.Statfs_t
	if err := unix.Statfs(at, &st); err != nil {
		return fmt.Errorf("asking what is on a sandbox's disk: %w", err)
	}
	path, err := reserveFile(at)
	if err != nil {
		return err
	}
	now, err := readNumber(path)
	if err != nil || now <= usualReserve(&st) {
		return err
	}
	return writeNumber(path, usualReserve(&st))
}

// usualReserve is what ext4 keeps of a file system by itself (ext4_set_resv_clusters in
// fs/ext4/super.c), or a little more.
func usualReserve(st *unix.Statfs_t) uint64 { return min(st.Blocks/40, 4096) }

// reserveFile is where the kernel has the reserve of the ext4 that is mounted at a folder.
func reserveFile(at string) (string, error) {
	var st unix.Stat_t
	if err := unix.Lstat(at, &st); err != nil {
		return "", &os.PathError{Op: "stat", Path: at, Err: err}
	}
	device, err := os.Readlink(fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev)))
	if err != nil {
		return "", err
	}
	return filepath.Join("/sys/fs/ext4", filepath.Base(device), "reserved_clusters"), nil
}

func readNumber(path string) (uint64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
}

func writeNumber(path string, n uint64) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(strconv.FormatUint(n, 10))
	return errors.Join(err, f.Close())
}
