package placeholder

import (
	"io"
	"strings"

	"sallyport/gateway/websocket"
	"sallyport/policy"
)

// messages are those that the sandbox sends on a WebSocket.
type messages struct {
	*Stream
	of     *Request
	broken func()
	text   bool
	opened bool // a piece of the message has come
}

// WebSocket returns the upstream of a WebSocket, in whose messages placeholders are
// replaced. It calls broken when a message holds one that is not replaced, which ends the
// WebSocket.
func (h *Request) WebSocket(conn io.ReadWriteCloser, broken func()) io.ReadWriteCloser {
	if h == nil {
		return conn
	}
	m := &messages{of: h, broken: broken, Stream: h.set.Stream(Raw, nil)}
	return struct {
		io.Reader
		io.Writer
		io.Closer
	}{conn, &websocket.Rewriter{Writer: conn, Messages: m}, conn}
}

// Begin implements websocket.Messages.
func (m *messages) Begin(text bool) { m.text, m.opened = text, false }

// Feed implements websocket.Messages. A message that begins like JSON is taken for that.
func (m *messages) Feed(p []byte, last bool) {
	if !m.opened && (len(p) > 0 || last) {
		m.opened = true
		kind, spell := Raw, spelling(raw)
		if begin := strings.TrimLeft(string(p[:min(len(p), 64)]), " \t\r\n"); m.text && begin != "" && (begin[0] == '{' || begin[0] == '[') {
			kind, spell = JSON, quoted
		}
		var instead func(string) ([]byte, error)
		if h := m.of; m.text && h.replacesBody() {
			instead = h.instead(policy.PlaceBody, "", spell)
		}
		m.Stream.Reset(kind, instead)
	}
	m.Stream.Feed(p, last)
}

// Next implements websocket.Messages.
func (m *messages) Next() ([]byte, error) {
	p, err := m.Stream.Next()
	if err != nil {
		m.of.note(err)
		m.broken()
	}
	return p, err
}
