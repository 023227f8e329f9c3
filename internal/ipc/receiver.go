package ipc

import (
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// maxFiles bounds those that have come and not been taken.
const maxFiles = 16

// receiver reads bytes, and puts aside the files that come along. They arrive
// at the latest with the first byte of their frame (unix(7)), so that they are
// there when the frame has been read.
type receiver struct {
	conn  *net.UnixConn
	take  bool
	files []*os.File
}

func (r *receiver) Read(b []byte) (int, error) {
	if !r.take {
		return r.conn.Read(b) // the kernel closes files for which there is no room
	}
	oob := make([]byte, unix.CmsgSpace(4*4))
	n, m, _, _, err := r.conn.ReadMsgUnix(b, oob)
	n = max(n, 0)
	if m > 0 {
		messages, perr := unix.ParseSocketControlMessage(oob[:m])
		if perr != nil {
			return 0, perr
		}
		for _, message := range messages {
			fds, perr := unix.ParseUnixRights(&message)
			if perr != nil {
				return 0, perr
			}
			for _, fd := range fds {
				unix.CloseOnExec(fd)
				r.files = append(r.files, os.NewFile(uintptr(fd), "passed"))
			}
		}
		if len(r.files) > maxFiles {
			return 0, &protocolError{"too many files"}
		}
	}
	if n == 0 && err == nil && len(b) > 0 {
		return 0, io.EOF
	}
	return n, err
}

// file takes the one that came first, or returns nil.
func (r *receiver) file() *os.File {
	if len(r.files) == 0 {
		return nil
	}
	f := r.files[0]
	r.files = r.files[1:]
	return f
}

func (r *receiver) close() {
	for _, f := range r.files {
		_ = f.Close()
	}
}
