package supervisor

import (
	"context"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/gateway"
	"sallyport/gateway/workerapi"
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

// Worker connects to a port that is exposed, whatever else the process would like,
// and returns a socket.
func (s *Supervisor) loopback(ctx context.Context, c workerapi.PortRequest) (ipc.None, *os.File, error) {
	e, is := s.published(c.ID, c.Port)
	if !is || s.o.Loopback == nil {
		return ipc.None{}, nil, errNotPublished
	}
	if !s.loopbacks.Enter(c.ID, e.Owner) {
		return ipc.None{}, nil, gateway.ErrInsideBusy
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

// dial begins to connect to a port that is exposed, and returns the socket.
func (s *Supervisor) dial(_ context.Context, c workerapi.PortRequest) (ipc.None, *os.File, error) {
	if _, is := s.published(c.ID, c.Port); !is || s.o.Dial == nil {
		return ipc.None{}, nil, errNotPublished
	}
	f, err := s.o.Dial(c.ID, c.Port)
	return ipc.None{}, f, err
}

// connect does not go on for longer than the process, as wake does not. The place is
// left where nothing comes of it.
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

// splice carries bytes both ways until both have ended, one breaks off, ctx is done, or
// the port is not exposed any more.
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
			// What it sent last is on its way for a moment.
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

// hungUp tells whether the other side has closed the socket (poll(2), POLLHUP).
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
