package checkpoint

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// flushEvery is how many bytes are written between two requests to the kernel to bring
// them to the disk.
const flushEvery = 8 << 20

// NewWriter returns a writer to a file of many gigabytes. Every 8 MiB it starts to write
// the file back, so that the Sync at the end need not wait for all of it, and calls
// checkDisk, whose error it returns.
func NewWriter(f *os.File, checkDisk func() error) io.Writer {
	return &writer{f: f, checkDisk: checkDisk}
}

type writer struct {
	f         *os.File
	checkDisk func() error
	at        int64
	pending   int64
}

func (w *writer) Write(p []byte) (int, error) {
	n, err := w.f.Write(p)
	if w.pending += int64(n); w.pending >= flushEvery {
		writeBack(w.f, w.at, w.pending)
		w.at, w.pending = w.at+w.pending, 0
		if err == nil {
			err = w.checkDisk()
		}
	}
	return n, err
}

// writeBack starts to write a part of a file to its disk and does not wait
// (sync_file_range(2)). Its result does not matter: Sync follows.
func writeBack(f *os.File, at, n int64) {
	raw, err := f.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) { _ = unix.SyncFileRange(int(fd), at, n, unix.SYNC_FILE_RANGE_WRITE) })
}
