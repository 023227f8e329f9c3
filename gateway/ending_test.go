package gateway_test

import (
	"crypto/sha1"
	"encoding/base64"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"sallyport/audit"
	"sallyport/internal/test/must"
)

// TestHowAWebSocketEnded holds the completion of each against how it ended: what
// was cut is no success, by whomever.
func TestHowAWebSocketEnded(t *testing.T) {
	t.Parallel()
	eachWebSocket(t, func(t *testing.T, m *versionEnv) {
		told := make(chan func(net.Conn))
		m.mux.HandleFunc("/told", func(w http.ResponseWriter, r *http.Request) {
			sum := sha1.Sum([]byte(r.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
			w.Header().Set("Sec-WebSocket-Accept", base64.StdEncoding.EncodeToString(sum[:]))
			w.Header().Set("Connection", "Upgrade")
			w.Header().Set("Upgrade", "websocket")
			w.WriteHeader(101)
			c, in, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			_, _ = io.ReadFull(in, make([]byte, 2+4+len("hello"))) // or closing would reset
			(<-told)(c)
		})
		stay := func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }
		flood := func(c net.Conn) {
			for frame := append([]byte{0x81, 125}, strings.Repeat("x", 125)...); ; {
				if _, err := c.Write(frame); err != nil {
					return
				}
			}
		}
		for _, tt := range []struct {
			name     string
			upstream func(net.Conn)
			client   func(*socket)
			detail   string // of a failure, "" for success
		}{
			{"the upstream ends it", func(c net.Conn) { _, _ = c.Write([]byte{0x88, 0}) }, func(*socket) {}, ""},
			{"the client ends it", stay, leave, ""},
			{"the client resets", stay, abort, "the sandbox went away"},
			{"the client resets what floods it", flood, abort, "the sandbox went away"},
			{"the client's connection is cut", stay, cut, "the sandbox went away"},
			{"the upstream resets", linger, func(*socket) {}, "the connection broke"},
		} {
			t.Run(tt.name, func(t *testing.T) {
				before := len(m.completions())
				s, _, err := m.upgrade(t, "/told")
				must.OK(t, err)
				must.OK(t, s.send(wsText, []byte("hello")))
				told <- tt.upstream
				tt.client(s)
				go io.Copy(io.Discard, s)
				var all []*audit.Event
				for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
					if all = m.completions(); len(all) > before {
						break
					}
					if time.Now().After(deadline) {
						t.Fatal("no completion")
					}
				}
				e := all[before]
				want := audit.StatusSuccess
				if tt.detail != "" {
					want = audit.StatusFailure
				}
				if e.StatusID != want || e.Detail != tt.detail || e.HTTPResponse.Code != 101 {
					t.Errorf("status %d %q, code %d, want %d %q", e.StatusID, e.Detail, e.HTTPResponse.Code, want, tt.detail)
				}
				s.Close()
			})
		}
	})
}

// completions are those by now.
func (l *env) completions() (list []*audit.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.events {
		if e.Unmapped.Sallyport.Kind == audit.KindCompletion {
			list = append(list, e)
		}
	}
	return list
}

// leave says goodbye as TCP and HTTP/2 do.
func leave(s *socket) { s.Close() }

// abort resets the stream, or the connection where that is it.
func abort(s *socket) {
	if f, ok := s.ReadWriteCloser.(*stream); ok {
		_ = f.write(func() error { return f.frames.WriteRSTStream(f.id, http2.ErrCodeCancel) })
		return
	}
	linger(s.ReadWriteCloser.(net.Conn))
}

// cut resets the connection.
func cut(s *socket) {
	if f, ok := s.ReadWriteCloser.(*stream); ok {
		linger(f.frames.Conn)
		return
	}
	linger(s.ReadWriteCloser.(net.Conn))
}

// linger resets a connection below its TLS.
func linger(c net.Conn) {
	if t, ok := c.(interface{ NetConn() net.Conn }); ok {
		c = t.NetConn()
	}
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetLinger(0)
	}
	_ = c.Close()
}
