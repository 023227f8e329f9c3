package worker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/gateway/workerapi"
	"sallyport/internal/ipc"
)

// Dial connects to a published port at the sandbox's own address, which the supervisor
// knows.
func (s Sandboxes) Dial(ctx context.Context, id string, to netip.AddrPort) (net.Conn, error) {
	f, err := s.Peer.CallFile(ctx, workerapi.MethodDial, workerapi.PortRequest{ID: id, Port: to.Port()}, &ipc.None{})
	if err != nil {
		return nil, err
	}
	if f == nil {
		return nil, errNoConnection
	}
	defer f.Close()
	if err := connected(ctx, f); err != nil {
		return nil, fmt.Errorf("connecting to port %d of a sandbox: %w", to.Port(), err)
	}
	return net.FileConn(f)
}

// connected waits until a connecting socket is connected (connect(2), EINPROGRESS).
func connected(ctx context.Context, f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = f.SetWriteDeadline(time.Unix(1, 0)) })()
	var failed error
	err = raw.Write(func(fd uintptr) bool {
		code, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		if err == nil && code != 0 {
			err = unix.Errno(code)
		}
		if failed = err; err != nil {
			return true
		}
		_, err = unix.Getpeername(int(fd))
		return err == nil
	})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return errors.Join(err, failed)
}

var errNoConnection = errors.New("no connection came")

// Connect implements inbound.Loopback: it connects to a published port on the sandbox's
// loopback address.
func (s Sandboxes) Connect(ctx context.Context, id string, port uint16) (net.Conn, error) {
	f, err := s.Peer.CallFile(ctx, workerapi.MethodLoopback, workerapi.PortRequest{ID: id, Port: port}, &ipc.None{})
	if err != nil {
		return nil, err
	}
	if f == nil {
		return nil, errNoConnection
	}
	c, err := ipc.Inherited(f)
	if err != nil {
		return nil, err
	}
	return ipc.NewPieces(c), nil
}
