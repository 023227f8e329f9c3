package gatehouse

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/gateway"
	"sallyport/internal/ipc"
)

// What listens on a sandbox's loopback address is reached by the sandbox's agent, and
// whom that listens to is the daemon's secret. So the daemon connects, and carries
// the bytes between that connection and a socket that the process gets.
//
// Towards the process they are in pieces (ipc.Pieces): half an answer is not to pass
// for one. Towards the sandbox they are as they are.

// Stream is a connection to a port of a sandbox, made from inside. Close breaks off
// what has not ended.
type Stream interface {
	io.ReadWriteCloser
	CloseWrite() error
}

// Bounds of such connections. A sandbox's agent has 64, of which commands and
// forwarded ports are to find some.
const (
	maxInsideOfOne = 32 // sandbox
	maxInside      = 256
	insideWithin   = 10 * time.Second // to connect
	// lookEvery is how often it is looked whether the process has left a connection:
	// who waits for a sandbox that neither takes nor says anything is not told.
	lookEvery = 250 * time.Millisecond
	// exposedEvery is how often it is looked whether the port is exposed still, in
	// looks: a process that has been taken over ends nothing.
	exposedEvery = 4
)

type PortRequest struct {
	ID   string
	Port uint16
}

// Worker connects to a port that is exposed, whatever else the process would like,
// and returns a socket.
func (w *Supervisor) inside(ctx context.Context, c PortRequest) (ipc.None, *os.File, error) {
	e, is := w.opened(c.ID, c.Port)
	if !is || w.o.Loopback == nil {
		return ipc.None{}, nil, errUnexposed
	}
	if !w.loopbacks.Enter(c.ID, e.Owner) {
		return ipc.None{}, nil, gateway.ErrInsideBusy
	}
	leave := func() { w.loopbacks.Leave(c.ID, e.Owner) }
	far, err := w.connect(ctx, c, leave)
	if err != nil {
		return ipc.None{}, nil, err
	}
	here, there, err := ipc.Pair()
	if err != nil {
		_ = far.Close()
		leave()
		return ipc.None{}, nil, err
	}
	go func() {
		defer leave()
		carry(ctx, here, far, func() bool { _, is := w.opened(c.ID, c.Port); return is })
	}()
	return ipc.None{}, there, nil
}

// reach begins to connect to a port that is exposed, and returns the socket.
func (w *Supervisor) reach(_ context.Context, c PortRequest) (ipc.None, *os.File, error) {
	if _, is := w.opened(c.ID, c.Port); !is || w.o.Dial == nil {
		return ipc.None{}, nil, errUnexposed
	}
	f, err := w.o.Dial(c.ID, c.Port)
	return ipc.None{}, f, err
}

// connect does not go on for longer than the process, as wake does not. The place is
// left where nothing comes of it.
func (w *Supervisor) connect(ctx context.Context, c PortRequest, leave func()) (Stream, error) {
	ctx, cancel := context.WithTimeout(ctx, insideWithin)
	type made struct {
		Stream
		err error
	}
	done := make(chan made, 1)
	go func() {
		s, err := w.o.Loopback(ctx, c.ID, c.Port)
		done <- made{s, err}
	}()
	select {
	case m := <-done:
		cancel()
		if m.err != nil {
			leave()
		}
		return m.Stream, m.err
	case <-ctx.Done():
		go func() {
			defer leave()
			defer cancel()
			if m := <-done; m.err == nil {
				_ = m.Close()
			}
		}()
		return nil, ctx.Err()
	}
}

// carry carries bytes both ways until both have ended, one breaks off, ctx is done, or
// the port is not exposed any more.
func carry(ctx context.Context, here *net.UnixConn, far Stream, exposed func() bool) {
	end := func() { _ = here.Close(); _ = far.Close() }
	defer end()
	defer context.AfterFunc(ctx, end)()
	over := make(chan struct{})
	var both sync.WaitGroup
	defer both.Wait()
	both.Go(func() {
		gone, look := false, time.NewTicker(lookEvery)
		for n := 1; ; n++ {
			select {
			case <-over:
				look.Stop()
				return
			case <-look.C:
			}
			// What it sent last is on its way for a moment.
			if is := left(here); is && gone || n%exposedEvery == 0 && !exposed() {
				end()
			} else {
				gone = is
			}
		}
	})
	defer close(over)
	var ways sync.WaitGroup
	ways.Go(func() {
		if _, err := io.Copy(struct{ io.Writer }{far}, here); err == nil {
			_ = far.CloseWrite()
			return
		}
		// A program that takes no more may have said why.
		_, _ = io.Copy(io.Discard, here)
	})
	ways.Go(func() {
		if _, err := ipc.WritePieces(here, far); err != nil {
			_ = here.Close()
		}
	})
	ways.Wait()
}

// left tells whether the other side has closed the socket (poll(2), POLLHUP).
func left(c *net.UnixConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return true
	}
	is := false
	err = raw.Control(func(fd uintptr) {
		state := []unix.PollFd{{Fd: int32(fd)}}
		n, err := unix.Poll(state, 0)
		is = err == nil && n > 0 && state[0].Revents&unix.POLLHUP != 0
	})
	return err != nil || is
}

// Dial connects to a port at the sandbox's own address, which the daemon knows.
func (w Sandboxes) Dial(ctx context.Context, id string, to netip.AddrPort) (net.Conn, error) {
	f, err := w.peer.CallFile(ctx, MethodDial, PortRequest{id, to.Port()}, &ipc.None{})
	if err != nil {
		return nil, err
	}
	if f == nil {
		return nil, errNone
	}
	defer f.Close()
	if err := connected(ctx, f); err != nil {
		return nil, fmt.Errorf("connecting to port %d of a sandbox: %w", to.Port(), err)
	}
	return net.FileConn(f)
}

// connected waits until a socket that connects has done so (connect(2), EINPROGRESS).
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

var errNone = errors.New("no connection came")

// Connect implements gateway.Inside.
func (w Sandboxes) Connect(ctx context.Context, id string, port uint16) (net.Conn, error) {
	f, err := w.peer.CallFile(ctx, MethodLoopback, PortRequest{id, port}, &ipc.None{})
	if err != nil {
		return nil, err
	}
	if f == nil {
		return nil, errNone
	}
	c, err := ipc.Inherited(f)
	if err != nil {
		return nil, err
	}
	return ipc.NewPieces(c), nil
}
