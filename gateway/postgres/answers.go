package postgres

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"

	"sallyport/gateway/credential/scrub"
)

const (
	chunk = 16 << 10 // that of a record of TLS
	// maxMessage is the longest message that a server may send, in bytes: its own
	// MaxAllocSize, and what is beside it.
	maxMessage = 1 << 30
	header     = 5 // a type and a length, which counts itself and not the type
)

var errMessage = errors.New("the server's answer is not of PostgreSQL's protocol")

// Answers carries what a server says to a client, each message searched as a text. A
// message of any length is carried as it comes. whole says that the client has all of the
// last message, so that another may follow. err is nil where the server ended the
// connection so.
func Answers(client io.Writer, server io.Reader, texts *scrub.Texts) (whole bool, err error) {
	in, w := bufio.NewReaderSize(server, chunk), bufio.NewWriterSize(client, chunk)
	for {
		if in.Buffered() < header {
			if err := w.Flush(); err != nil {
				return false, err
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
			return len(head) == 0, err
		}
		size := binary.BigEndian.Uint32(head[1:])
		if size < 4 || size > maxMessage {
			return true, errors.Join(errMessage, w.Flush())
		}
		for left := int(size) + 1; left > 0; {
			if in.Buffered() == 0 {
				if err := w.Flush(); err != nil {
					return false, err
				}
			}
			got, err := in.Read(texts.Room(min(left, chunk)))
			left -= got
			if _, failed := w.Write(texts.Add(got, left == 0)); failed != nil {
				return false, failed
			}
			if err != nil && left > 0 {
				_ = w.Flush()
				if err == io.EOF {
					err = io.ErrUnexpectedEOF
				}
				return false, err
			}
		}
	}
}
