package postgres

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"

	"sallyport/gateway/credential/scrub"
)

const (
	chunk = 32 << 10
	// maxMessage is the longest message that a server may send, in bytes: its own
	// MaxAllocSize, and what is beside it.
	maxMessage = 1 << 30
	header     = 5 // a type and a length, which counts itself and not the type
)

var errMessage = errors.New("the server's answer is not of PostgreSQL's protocol")

// Answers carries what a server says to a client, each message searched as a text. A
// message of any length is carried as it comes. next, unless nil, is called before the
// first message and after each that ends an answer (ReadyForQuery). n is what the client
// was sent, in bytes; whole says that it has all of the last message, so that another may
// follow. err is nil where the server ended the connection so.
func Answers(client io.Writer, server io.Reader, texts *scrub.Texts, next func()) (n int64, whole bool, err error) {
	in, out := bufio.NewReaderSize(server, chunk), &counted{w: client}
	w := bufio.NewWriterSize(out, chunk)
	if next == nil {
		next = func() {}
	}
	next()
	for {
		if in.Buffered() < header {
			if err := w.Flush(); err != nil {
				return out.n, false, err
			}
		}
		head, err := in.Peek(header)
		if err != nil {
			switch {
			case len(head) > 0:
				err = io.ErrUnexpectedEOF
			case err == io.EOF:
				err = nil
			}
			return out.n, len(head) == 0, err
		}
		kind, size := head[0], binary.BigEndian.Uint32(head[1:])
		if size < 4 || size > maxMessage {
			return out.n, true, errors.Join(errMessage, w.Flush())
		}
		for left := int(size) + 1; left > 0; {
			if in.Buffered() == 0 {
				if err := w.Flush(); err != nil {
					return out.n, false, err
				}
			}
			got, err := in.Read(texts.Room(min(left, chunk)))
			left -= got
			if _, failed := w.Write(texts.Add(got, left == 0)); failed != nil {
				return out.n, false, failed
			}
			if err != nil && left > 0 {
				_ = w.Flush()
				if err == io.EOF {
					err = io.ErrUnexpectedEOF
				}
				return out.n, false, err
			}
		}
		if kind == 'Z' {
			next()
		}
	}
}

// counted counts what is written.
type counted struct {
	w io.Writer
	n int64
}

func (c *counted) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}
