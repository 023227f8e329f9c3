package sandbox

import (
	"os"

	"golang.org/x/sys/unix"
)

// writeBack starts writing a part of a file to its disk, and does not wait
// (sync_file_range(2)). Whether it does is of no matter: Sync follows.
func writeBack(f *os.File, at, n int64) {
	raw, err := f.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) { _ = unix.SyncFileRange(int(fd), at, n, unix.SYNC_FILE_RANGE_WRITE) })
}
