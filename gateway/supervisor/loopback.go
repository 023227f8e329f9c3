package supervisor

import (
	"context"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/gateway/inbound"
	"sallyport/gateway/workerapi"
	"sallyport/internal/ipc"
)

// A sandbox's agent connects to ports on the sandbox's loopback address, and only
// the daemon may ask it. So the daemon connects, and copies the bytes between that
// connection and a socket that the worker gets.
//
// Towards the worker the bytes are framed (ipc.Pieces), so that half an answer does
// not pass for a whole one. Towards the sandbox they are not.

// Stream is a connection to a port on a sandbox's loopback address. Close breaks it off.
type Stream interface {
	io.ReadWriteCloser
	CloseWrite() error
}

// Bounds of such connections. A sandbox's agent has 64, of which commands and
// forwarded ports are to find some.
const (
	maxLoopbackPerSandbox = 32 // sandbox
	maxLoopback           = 256
	loopbackWithin        = 10 * time.Second // to connect
	// lookEvery is how often it is looked whether the process has left a connection:
	// who waits for a sandbox that neither takes nor says anything is not told.
	lookEvery = 250 * time.Millisecond
	// exposedEvery is how often it is looked whether the port is exposed still, in
	// looks: a process that has been taken over ends nothing.
	exposedEvery = 4
)

// loopback connects to a published port through the sandbox's agent and returns a socket
// for the worker.
func (s *Supervisor) loopback(ctx context.Context, c workerapi.PortRequest) (ipc.None, *os.File, error) {
	e, is := s.published(c.ID, c.Port)
	if !is || s.o.Loopback == nil {
		return ipc.None{}, nil, errNotPublished
	}
	if !s.loopbacks.Enter(c.ID, e.Owner) {
		return ipc.None{}, nil, inbound.ErrLoopbackBusy
	}
	leave := func() { s.loopbacks.Leave(c.ID, e.Owner) }
	far, err := s.connect(ctx, c, leave)
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
		splice(ctx, here, far, func() bool { _, is := s.published(c.ID, c.Port); return is })
	}()
	return ipc.None{}, there, nil
}

// dial begins to connect to a published port and returns the socket.
func (s *Supervisor) dial(_ context.Context, c workerapi.PortRequest) (ipc.None, *os.File, error) {
	if _, is := s.published(c.ID, c.Port); s.o.Dial == nil || !is && !s.routable(c.ID, c.Port) {
		return ipc.None{}, nil, errNotPublished
	}
	f, err := s.o.Dial(c.ID, c.Port)
	return ipc.None{}, f, err
}

// connect lasts no longer than the worker, as wake does not. It calls leave if it returns
// an error.
func (s *Supervisor) connect(ctx context.Context, c workerapi.PortRequest, leave func()) (Stream, error) {
	ctx, cancel := context.WithTimeout(ctx, loopbackWithin)
	type made struct {
		Stream
		err error
	}
	done := make(chan made, 1)
	go func() {
		stream, err := s.o.Loopback(ctx, c.ID, c.Port)
		done <- made{stream, err}
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

// splice copies both ways until both have ended, one breaks off, ctx is done, or the port
// is not published any more.
func splice(ctx context.Context, here *net.UnixConn, far Stream, exposed func() bool) {
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
			// Its last bytes are on their way for a moment.
			if is := hungUp(here); is && gone || n%exposedEvery == 0 && !exposed() {
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

// hungUp reports whether the other side has closed the socket (poll(2), POLLHUP).
func hungUp(c *net.UnixConn) bool {
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
