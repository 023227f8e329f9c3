package upstream

import (
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"time"

	"golang.org/x/net/http2"
)

// maxFrame is the largest frame that an upstream of HTTP/2 is sent, in bytes.
// The library has a buffer of a frame's size, up to 512 KiB, for each body that
// is being sent; Go's servers allow 1 MiB.
const maxFrame = 32 << 10

// greeting is a connection whose server's first SETTINGS (RFC 9113, section
// 6.5.2) allow no larger frames than maxFrame, whatever it has said.
type greeting struct {
	net.Conn
	heard bool
	seen  []byte // read from Conn, not yet from here
}

func (g *greeting) Read(p []byte) (int, error) {
	if !g.heard {
		if err := g.hear(); err != nil {
			return 0, err
		}
		g.heard = true
	}
	if len(g.seen) == 0 {
		return g.Conn.Read(p)
	}
	n := copy(p, g.seen)
	if g.seen = g.seen[n:]; len(g.seen) == 0 {
		g.seen = nil
	}
	return n, nil
}

// hear reads the first frame. Any other than SETTINGS of a usual size is left to
// the library, which refuses it.
func (g *greeting) hear() error {
	const head, entry = 9, 6
	frame := make([]byte, head, head+8*entry)
	if _, err := io.ReadFull(g.Conn, frame); err != nil {
		return err
	}
	g.seen = frame
	size := int(frame[0])<<16 | int(frame[1])<<8 | int(frame[2])
	if http2.FrameType(frame[3]) != http2.FrameSettings || size > 64*entry || size%entry != 0 {
		return nil
	}
	frame = append(frame, make([]byte, size)...)
	if _, err := io.ReadFull(g.Conn, frame[head:]); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return err
	}
	for e := frame[head:]; len(e) > 0; e = e[entry:] {
		if http2.SettingID(binary.BigEndian.Uint16(e)) == http2.SettingMaxFrameSize && binary.BigEndian.Uint32(e[2:]) > maxFrame && e[2] == 0 {
			binary.BigEndian.PutUint32(e[2:], maxFrame)
		}
	}
	g.seen = frame
	return nil
}

// Close does not wait long for TLS to say goodbye to a peer that takes nothing.
func (g *greeting) Close() error {
	if t, ok := g.Conn.(*tls.Conn); ok {
		late := time.AfterFunc(250*time.Millisecond, func() { _ = t.NetConn().Close() })
		defer late.Stop()
	}
	return g.Conn.Close()
}
