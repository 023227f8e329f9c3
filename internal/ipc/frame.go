package ipc

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
)

const (
	version    = 1
	headerSize = 16
)

type kind uint8

const (
	call kind = 1 + iota
	reply
	fail
)

// header is a frame's.
type header struct {
	kind   kind
	method Method
	file   bool
	size   int // of the body
	id     uint64
}

func (h header) append(to []byte) []byte {
	var file byte
	if h.file {
		file = 1
	}
	to = append(to, version, byte(h.kind), byte(h.method), file)
	to = binary.BigEndian.AppendUint32(to, uint32(h.size))
	return binary.BigEndian.AppendUint64(to, h.id)
}

// readHeader reads and checks one. It is io.EOF at a regular end.
func readHeader(r *bufio.Reader, max int) (h header, err error) {
	var b [headerSize]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return h, err
	}
	h = header{kind(b[1]), Method(b[2]), b[3] == 1, int(binary.BigEndian.Uint32(b[4:])), binary.BigEndian.Uint64(b[8:])}
	switch {
	case b[0] != version:
		return h, &protocolError{fmt.Sprintf("version %d", b[0])}
	case h.kind < call || h.kind > fail:
		return h, &protocolError{fmt.Sprintf("a frame of kind %d", b[1])}
	case b[3] > 1:
		return h, &protocolError{fmt.Sprintf("a frame with %d files", b[3])}
	case h.size > max-headerSize:
		return h, &protocolError{fmt.Sprintf("a frame of %d bytes", h.size)}
	case h.id == 0:
		return h, &protocolError{"a call without id"}
	}
	return h, nil
}
