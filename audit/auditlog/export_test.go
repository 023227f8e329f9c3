package auditlog

import (
	"os"

	"golang.org/x/sys/unix"

	"sallyport/audit"
)

// File is what the log needs of a segment's file.
type File = file

// OpenFile opens a segment as the log does.
var OpenFile = openFile

// WithFiles has the log open its segments by open.
func (o Options) WithFiles(open func(path string, flag int) (File, error)) Options {
	o.open = open
	return o
}

// WithGroup has groups be no more than so many bytes.
func (o Options) WithGroup(bytes int) Options {
	o.group = bytes
	return o
}

// CopyLock is what a process has of the log's lock between fork and execve.
func (l *Log) CopyLock() (*os.File, error) {
	fd, err := unix.Dup(int(l.lock.Fd()))
	return os.NewFile(uintptr(fd), "lock"), err
}

// MinEvent is what any event takes at least.
const MinEvent = minEvent

// Encode appends an event as the log does, under the number 0.
func Encode(dst []byte, e *audit.Event) []byte {
	b, _, err := appendEvent(dst, e)
	if err != nil {
		panic(err)
	}
	return b
}

// Decode reads a line of the log.
var Decode = decode
