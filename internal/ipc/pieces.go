package ipc

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"net"
)

// pieceSize bounds what WritePieces sends at once, in bytes.
const pieceSize = 32 << 10

// WritePieces writes all that from says to a socket, and its end, for the other side
// to read as [Pieces]: pieces, each after its length as 32 bits big-endian, and one of
// no length as the end. It returns how many bytes of from's it has written.
//
// A unix socket does not tell an end from what broke off, as TCP does by a reset: its
// reader gets io.EOF for both.
func WritePieces(to *net.UnixConn, from io.Reader) (sum int64, err error) {
	buf := make([]byte, 4+pieceSize)
	for {
		n, err := from.Read(buf[4:])
		if n > 0 {
			binary.BigEndian.PutUint32(buf, uint32(n))
			if _, err := to.Write(buf[:4+n]); err != nil {
				return sum, err
			}
			sum += int64(n)
		}
		if errors.Is(err, io.EOF) {
			_, err = to.Write(make([]byte, 4))
			return sum, errors.Join(err, to.CloseWrite())
		}
		if err != nil {
			return sum, err
		}
	}
}

// Pieces is an end of a socket whose other side writes with [WritePieces]. Bytes written to
// it go as they are.
type Pieces struct {
	*net.UnixConn
	in    *bufio.Reader
	piece int // bytes to come of it
	ended bool
}

// NewPieces reads what comes by a socket as pieces.
func NewPieces(c *net.UnixConn) *Pieces {
	return &Pieces{UnixConn: c, in: bufio.NewReaderSize(c, 4<<10)}
}

// Read gives what is in the pieces. Its error is io.EOF where the other side has said
// that this is the end, and io.ErrUnexpectedEOF where the socket has ended before.
func (p *Pieces) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	if p.piece == 0 && !p.ended {
		var size [4]byte
		if _, err := io.ReadFull(p.in, size[:]); err != nil {
			return 0, noEOF(err)
		}
		p.piece = int(binary.BigEndian.Uint32(size[:]))
		p.ended = p.piece == 0
	}
	if p.ended {
		return 0, io.EOF
	}
	n, err := p.in.Read(b[:min(len(b), p.piece)])
	p.piece -= n
	return n, noEOF(err)
}

// WriteTo hides the socket's own, which would give the pieces with their lengths.
func (p *Pieces) WriteTo(w io.Writer) (int64, error) {
	return io.Copy(w, struct{ io.Reader }{p})
}
