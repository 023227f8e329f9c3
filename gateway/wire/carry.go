package wire

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"sallyport/gateway/live"
)

// Up carries all that a client says to its server.
type Up func(server io.Writer, client io.Reader) error

// Down carries all that a server says to its client. whole says that something else may
// follow what the client has.
type Down func(client io.Writer, server io.Reader) (whole bool, err error)

// errPanic ends a session where carrying what the client says panicked.
var errPanic = errors.New("the gateway failed to carry what the client said")

// Carry carries a session between a client, which is c or what is inside of it, and a server
// that g dialled, until both directions have ended. sent is the error of up, and err is that
// of down, nil where the client's side has ended it. The session ends with the lease of its
// login. A client that does not take what the
// server says is closed a while after g is revoked.
func Carry(c Conn, g Grant, client net.Conn, server *tls.Conn, up Up, down Down) (whole bool, sent, err error) {
	defer g.Hold()()
	var late *time.Timer
	var mu sync.Mutex
	stop := context.AfterFunc(g.Context(), func() {
		mu.Lock()
		defer mu.Unlock()
		late = time.AfterFunc(live.Grace, func() { _ = c.Close() })
	})
	defer func() {
		stop()
		mu.Lock()
		defer mu.Unlock()
		if late != nil {
			late.Stop()
		}
	}()
	var done sync.WaitGroup
	c.Go(&done, func() {
		sent = errPanic // unless up returns
		defer func() {
			if sent != nil {
				_ = server.Close()
				return
			}
			_ = server.CloseWrite()
		}()
		sent = up(writer{server, g.Sent}, client)
	})
	whole, err = down(client, reader{server, g.Received})
	_ = client.SetReadDeadline(time.Unix(1, 0)) // ends up
	_ = server.Close()
	done.Wait()
	switch {
	case sent == errPanic:
		err = errPanic
	case errors.Is(err, net.ErrClosed) && sent != nil:
		err = nil // the client's side has ended it
	}
	return whole, sent, err
}

// writer counts what is written.
type writer struct {
	io.Writer
	count func(int) error
}

func (w writer) Write(p []byte) (int, error) {
	if err := w.count(len(p)); err != nil {
		return 0, err
	}
	return w.Writer.Write(p)
}

// reader counts what is read.
type reader struct {
	io.Reader
	count func(int) error
}

func (r reader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if over := r.count(n); over != nil {
		return 0, over
	}
	return n, err
}
