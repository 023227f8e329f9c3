package ipc

import (
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// Pair returns the two ends of a new socket: one for this process, one to be
// inherited by another, which makes a connection of it with Inherited.
func Pair() (here *net.UnixConn, there *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("making a link: %w", err)
	}
	mine, there := os.NewFile(uintptr(fds[0]), "link"), os.NewFile(uintptr(fds[1]), "link")
	here, err = Inherited(mine)
	if err != nil {
		return nil, nil, errors.Join(err, there.Close())
	}
	return here, there, nil
}

// Inherited makes a connection of an end of a socket, and closes the file.
func Inherited(f *os.File) (*net.UnixConn, error) {
	c, err := net.FileConn(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("taking a link over: %w", err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(errors.New("taking a link over: not a unix socket"), c.Close())
	}
	return u, nil
}
