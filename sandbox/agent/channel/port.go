package channel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"sync/atomic"

	"sallyport/sandbox/agent/wire"
)

// Port is a connection to a port of a program's inside. Its bytes are that program's, or
// those of anybody in the agent's place.
type Port struct {
	c       *Channel
	conn    *conn
	half    half
	end     func() error
	in, out atomic.Bool // that direction has ended
}

type half interface {
	io.ReadWriter
	CloseWrite() error
}

// Connect connects to a port of one of the sandbox's own addresses, see
// [wire.PortProtocol]. ctx counts until it is there. It has one of the stream
// places until it is closed. That nothing listens is an *Error.
func (c *Channel) Connect(ctx context.Context, host string, port uint16) (*Port, error) {
	return c.upgrade(ctx, "/ports/"+strconv.Itoa(int(port))+"?"+url.Values{"host": {host}}.Encode(), wire.PortProtocol)
}

// SFTP begins an SFTP session, see [wire.SFTPProtocol]; both arguments may be empty. It
// has one of the stream places until it is closed.
func (c *Channel) SFTP(ctx context.Context, user, folder string) (*Port, error) {
	return c.upgrade(ctx, "/sftp?"+url.Values{"user": {user}, "folder": {folder}}.Encode(), wire.SFTPProtocol)
}

// upgrade has the agent switch a connection to another protocol. ctx counts until it is
// there.
func (c *Channel) upgrade(ctx context.Context, target, protocol string) (*Port, error) {
	p := &Port{c: c}
	trace := &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { p.conn, _ = i.Conn.(*conn) }}
	req, err := http.NewRequestWithContext(httptrace.WithClientTrace(ctx, trace), http.MethodGet, "http://agent"+target, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", protocol)
	resp, err := c.Do(req, true)
	if err != nil {
		return nil, err
	}
	p.end = resp.Body.Close
	if held, ok := resp.Body.(*body); ok && resp.StatusCode == http.StatusSwitchingProtocols && resp.Header.Get("Upgrade") == protocol {
		p.half, _ = held.ReadCloser.(half)
	}
	if p.half == nil || p.conn == nil {
		_ = resp.Body.Close()
		return nil, fmt.Errorf("%w: what it says is no connection", ErrSilent)
	}
	return p, nil
}

func (p *Port) Read(b []byte) (int, error) {
	n, err := p.half.Read(b)
	if errors.Is(err, io.EOF) {
		p.in.Store(true)
	}
	return n, p.explain(err)
}

func (p *Port) Write(b []byte) (int, error) {
	n, err := p.half.Write(b)
	return n, p.explain(err)
}

// explain says where it is so that the sandbox stops or sleeps.
func (p *Port) explain(err error) error {
	if err != nil && !errors.Is(err, io.EOF) && p.c.ctx.Err() != nil {
		return ErrClosed
	}
	return err
}

// CloseWrite ends the input of the program, which may answer still.
func (p *Port) CloseWrite() error {
	p.out.Store(true)
	return p.half.CloseWrite()
}

// Close ends the connection. Where a direction has not ended it breaks off, and the
// program is not to take that for an end.
func (p *Port) Close() error {
	if !p.in.Load() || !p.out.Load() {
		p.conn.reset()
	}
	return p.end()
}
