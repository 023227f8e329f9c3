package ssh

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/pkg/sftp"

	"sallyport/sandbox/agent/wire"
)

// contents are those of an open file, from one end to the other: frames on a
// socket of the Door's, see [streamCall].
type contents struct {
	conn   *net.UnixConn
	r      *bufio.Reader
	frames *wire.Writer
	buf    []byte
	rest   []byte // of a frame
}

func newContents(c *net.UnixConn) *contents {
	return &contents{conn: c, r: bufio.NewReader(c), frames: wire.NewWriter(c), buf: make([]byte, wire.MaxFrame)}
}

func (c *contents) Read(p []byte) (int, error) {
	for len(c.rest) == 0 {
		k, b, err := wire.Read(c.r, c.buf)
		switch {
		case err != nil:
			return 0, sftp.ErrSSHFxConnectionLost // not the file's end
		case k == wire.Stdout:
			c.rest = b
		case k == wire.Exit:
			if err := verdict(b); err != nil {
				return 0, err
			}
			return 0, io.EOF
		}
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// verdict is the error of an ending.
func verdict(text []byte) error {
	var e ending
	if err := json.Unmarshal(text, &e); err != nil {
		return err
	}
	if e.Error == "" {
		return nil
	}
	if is := known[e.Known]; is != nil {
		return is
	}
	return errors.New(e.Error)
}

func (c *contents) Write(p []byte) (int, error) { return c.frames.Stream(wire.Stdin).Write(p) }

func (c *contents) Close() error { return c.conn.Close() }

// finish ends what was written, and says what became of it.
func (c *contents) finish() error {
	_ = c.frames.Write(wire.Stdin, nil) // who does not take it says why
	for {
		k, b, err := wire.Read(c.r, c.buf)
		if err != nil {
			return sftp.ErrSSHFxConnectionLost
		}
		if k == wire.Exit {
			return verdict(b)
		}
	}
}

// Clients ask for several parts at once, in order, and those parts are worked on at
// the same time: who is early waits. A part is a jump when nobody asks for what comes
// before it.
const (
	jumpAfter = 200 * time.Millisecond // with nothing before it
	maxBack   = 16                     // jumps back of one reader: each reads from the start again
)

// errOrder refuses what is not written in order.
var errOrder = errors.New("files are written from one end to the other here")

// turn lets the parts of one file go in order.
type turn struct {
	mu    sync.Mutex
	at    int64         // where the next part begins
	moved chan struct{} // closed when it has
	err   error         // why there is no next
}

// wait returns with t.mu held: when it is the turn of the part at off, when there is
// none (t.err), or, false, when that part is a jump.
func (t *turn) wait(off int64) bool {
	t.mu.Lock()
	for off > t.at && t.err == nil {
		at, moved := t.at, t.moved
		t.mu.Unlock()
		late := time.NewTimer(jumpAfter)
		select {
		case <-moved:
			late.Stop()
			t.mu.Lock()
		case <-late.C:
			t.mu.Lock()
			if t.at == at && t.err == nil {
				return false
			}
		}
	}
	return off == t.at
}

// move is to be called with t.mu held.
func (t *turn) move(to int64, err error) {
	t.at, t.err = to, err
	close(t.moved)
	t.moved = make(chan struct{})
}

// reader reads a file that is sent from its start to its end.
type reader struct {
	turn
	open func() (io.ReadCloser, error)
	in   io.ReadCloser
	back int
}

func (r *reader) begin() (err error) {
	r.in, err = r.open()
	r.moved = make(chan struct{})
	return err
}

func (r *reader) ReadAt(p []byte, off int64) (int, error) {
	orderly := r.wait(off)
	defer r.mu.Unlock()
	if errors.Is(r.err, io.EOF) && off >= r.at {
		return 0, io.EOF
	}
	if r.err != nil && !errors.Is(r.err, io.EOF) {
		return 0, r.err
	}
	if !orderly {
		if err := r.jump(off); err != nil {
			return 0, status(err)
		}
	}
	n, err := io.ReadFull(r.in, p)
	if errors.Is(err, io.ErrUnexpectedEOF) && n > 0 {
		err = io.EOF
	}
	if err != nil && !errors.Is(err, io.EOF) {
		err = status(err)
	}
	r.move(r.at+int64(n), err)
	return n, err
}

// jump goes to another place. r.mu is held.
func (r *reader) jump(off int64) error {
	if off < r.at {
		if r.back++; r.back > maxBack {
			return errors.New("files are read from one end to the other here")
		}
		in, err := r.open()
		if err != nil {
			return err
		}
		_ = r.in.Close()
		r.in, r.at, r.err = in, 0, nil
	}
	n, err := io.CopyN(io.Discard, r.in, off-r.at)
	if err != nil {
		r.move(r.at+n, err)
		return err
	}
	r.at = off
	return nil
}

func (r *reader) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.in.Close()
}
