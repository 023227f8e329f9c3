package gateway_test

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/websocket"

	"sallyport/audit"
	"sallyport/internal/test/must"
	"sallyport/policy"
)

// Kinds of WebSocket frames (RFC 6455, section 5.2).
const (
	wsText  = 1
	wsClose = 8
	wsPing  = 9
	wsPong  = 10
)

// socket is a client's end of a WebSocket.
type socket struct {
	io.ReadWriteCloser
	in *bufio.Reader
}

// send writes one frame, masked as a client's are.
func (s *socket) send(kind byte, payload []byte) error {
	b := []byte{0x80 | kind}
	switch n := len(payload); {
	case n < 126:
		b = append(b, 0x80|byte(n))
	case n < 1<<16:
		b = binary.BigEndian.AppendUint16(append(b, 0x80|126), uint16(n))
	default:
		b = binary.BigEndian.AppendUint64(append(b, 0x80|127), uint64(n))
	}
	var mask [4]byte
	_, _ = rand.Read(mask[:])
	b = append(b, mask[:]...)
	for i, c := range payload {
		b = append(b, c^mask[i%4])
	}
	_, err := s.Write(b)
	return err
}

// receive reads one frame.
func (s *socket) receive() (kind byte, payload []byte, err error) {
	var head [2]byte
	if _, err := io.ReadFull(s.in, head[:]); err != nil {
		return 0, nil, err
	}
	n := uint64(head[1] & 0x7f)
	switch n {
	case 126:
		var b [2]byte
		_, err = io.ReadFull(s.in, b[:])
		n = uint64(binary.BigEndian.Uint16(b[:]))
	case 127:
		var b [8]byte
		_, err = io.ReadFull(s.in, b[:])
		n = binary.BigEndian.Uint64(b[:])
	}
	if err != nil || n > 1<<24 {
		return 0, nil, fmt.Errorf("a frame of %d bytes: %v", n, err)
	}
	payload = make([]byte, n)
	_, err = io.ReadFull(s.in, payload)
	return head[0] & 0xf, payload, err
}

// echoes sends text and pings and wants them back.
func (s *socket) echoes(t *testing.T, text string) {
	t.Helper()
	for _, f := range []struct {
		kind, back byte
		payload    string
	}{{wsText, wsText, text}, {wsPing, wsPong, "are you there"}} {
		must.OK(t, s.send(f.kind, []byte(f.payload)))
		kind, payload, err := s.receive()
		if err != nil || kind != f.back || string(payload) != f.payload {
			t.Fatalf("frame of kind %d, %d bytes, %v; want kind %d, %d bytes", kind, len(payload), err, f.back, len(f.payload))
		}
	}
}

// stream is a stream of HTTP/2 as the client of a WebSocket has it.
type stream struct {
	*frames
	mu   sync.Mutex
	id   uint32
	pipe *io.PipeReader
	room chan uint32 // for what the client sends
	has  uint32
}

func (s *stream) Read(p []byte) (int, error) { return s.pipe.Read(p) }

func (s *stream) Write(p []byte) (int, error) {
	total := len(p)
	for len(p) > 0 {
		for s.has == 0 {
			more, ok := <-s.room
			if !ok {
				return 0, net.ErrClosed
			}
			s.has += more
		}
		n := min(len(p), int(s.has), 16<<10)
		if err := s.write(func() error { return s.WriteData(s.id, false, p[:n]) }); err != nil {
			return 0, err
		}
		s.has -= uint32(n)
		p = p[n:]
	}
	return total, nil
}

func (s *stream) Close() error { return s.write(func() error { return s.WriteData(s.id, true, nil) }) }

// write keeps frames apart that two goroutines write.
func (s *stream) write(f func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return f()
}

var errRefused = errors.New("refused")

// upgrade begins a WebSocket by either version of HTTP. It returns the response to a refused
// one.
func (m *versionEnv) upgrade(t *testing.T, path string, header ...field) (*socket, *http.Response, error) {
	t.Helper()
	host := fmt.Sprintf("%s:%d", m.origin.name, m.port)
	if m.version == "h2" {
		return m.extend(t, path, host, header...)
	}
	raw, err := m.dial(t.Context(), "tcp", host)
	must.OK(t, err)
	c := raw
	if m.scheme == "https" {
		c = tls.Client(raw, &tls.Config{RootCAs: m.ca.pool, ServerName: m.origin.name})
	}
	t.Cleanup(func() { c.Close() })
	key := base64.StdEncoding.EncodeToString([]byte("0123456789abcdef"))
	var b bytes.Buffer
	fmt.Fprintf(&b, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %s\r\nOrigin: http://x\r\n", path, host, key)
	for _, h := range header {
		fmt.Fprintf(&b, "%s: %s\r\n", h.name, h.value)
	}
	b.WriteString("\r\n")
	if _, err := c.Write(b.Bytes()); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(c)
	resp, err := http.ReadResponse(in, nil)
	must.OK(t, err)
	if resp.StatusCode != 101 {
		return nil, resp, errRefused
	}
	return &socket{c, in}, resp, nil
}

func (m *versionEnv) extend(t *testing.T, path, host string, header ...field) (*socket, *http.Response, error) {
	t.Helper()
	raw, err := m.dial(t.Context(), "tcp", host)
	must.OK(t, err)
	c := raw
	if m.scheme == "https" {
		c = tls.Client(raw, &tls.Config{RootCAs: m.ca.pool, ServerName: m.origin.name, NextProtos: []string{"h2"}})
	}
	t.Cleanup(func() { c.Close() })
	f, err := newFrames(c)
	must.OK(t, err)
	fields := append([]field{
		{":method", "CONNECT"}, {":protocol", "websocket"}, {":scheme", m.scheme}, {":path", path}, {":authority", host},
		{"sec-websocket-version", "13"}, {"origin", "http://x"},
	}, header...)
	id, err := f.open(false, fields...)
	must.OK(t, err)
	r, w := io.Pipe()
	t.Cleanup(func() { r.Close() })
	s := &stream{frames: f, id: id, pipe: r, room: make(chan uint32, 1000), has: 65535}
	head := make(chan *http.Response, 1)
	go func() {
		defer close(s.room)
		for {
			frame, err := f.ReadFrame()
			if err != nil {
				w.CloseWithError(err)
				return
			}
			switch frame := frame.(type) {
			case *http2.SettingsFrame:
				if v, ok := frame.Value(http2.SettingEnableConnectProtocol); !frame.IsAck() && (!ok || v != 1) {
					w.CloseWithError(errors.New("the gateway does not offer RFC 8441"))
					return
				}
			case *http2.WindowUpdateFrame:
				if frame.StreamID == id {
					s.room <- frame.Increment
				}
			case *http2.MetaHeadersFrame:
				resp := &http.Response{Header: http.Header{}, ProtoMajor: 2}
				for _, h := range frame.Fields {
					if h.Name == ":status" {
						_, _ = fmt.Sscan(h.Value, &resp.StatusCode)
					} else {
						resp.Header.Add(h.Name, h.Value)
					}
				}
				resp.Body = io.NopCloser(r)
				head <- resp
				if frame.StreamEnded() {
					w.Close()
				}
			case *http2.DataFrame:
				_, _ = w.Write(frame.Data())
				_ = s.write(func() error {
					_ = f.WriteWindowUpdate(0, uint32(len(frame.Data())))
					return f.WriteWindowUpdate(id, uint32(len(frame.Data())))
				})
				if frame.StreamEnded() {
					w.Close()
				}
			case *http2.RSTStreamFrame:
				w.CloseWithError(http2.StreamError{StreamID: id, Code: frame.ErrCode})
			}
		}
	}()
	select {
	case resp := <-head:
		if resp.StatusCode != 200 {
			return nil, resp, errRefused
		}
		return &socket{s, bufio.NewReader(s)}, resp, nil
	case <-time.After(patience):
		t.Fatal("no answer")
		return nil, nil, nil
	}
}

// eachWebSocket runs a test for every way in and version of the client. WebSockets go
// to the upstream by HTTP/1.1.
func eachWebSocket(t *testing.T, test func(t *testing.T, m *versionEnv)) {
	for _, way := range []string{"transparent", "explicit"} {
		for _, scheme := range []string{"https", "http"} {
			for _, version := range []string{"h1", "h2"} {
				t.Run(fmt.Sprint(way, "/", scheme, "/", version), func(t *testing.T) {
					t.Parallel()
					m := newVersionEnv(t, way, version, "h1", scheme)
					if m.explicit {
						m.dial = m.connect
					}
					test(t, m)
				})
			}
		}
	}
}

// echoing answers every message with itself, and pings with pongs.
var echoing = websocket.Handler(func(ws *websocket.Conn) {
	for {
		var message string
		if websocket.Message.Receive(ws, &message) != nil || websocket.Message.Send(ws, message) != nil {
			return
		}
	}
})

func TestWebSockets(t *testing.T) {
	t.Parallel()
	eachWebSocket(t, func(t *testing.T, m *versionEnv) {
		m.mux.Handle("/ws", echoing)
		var protocols atomic.Value
		m.mux.Handle("/chat", websocket.Server{Handshake: func(c *websocket.Config, r *http.Request) error {
			protocols.Store(fmt.Sprint(c.Protocol, r.Header.Get("Cookie")))
			c.Protocol = []string{"chat.v2"}
			return nil
		}, Handler: echoing})
		s, _, err := m.upgrade(t, "/ws")
		must.OK(t, err)
		s.echoes(t, "hello")
		s.echoes(t, strings.Repeat("long ", 100_000))
		must.OK(t, s.send(wsClose, []byte{3, 232}))
		if _, err := io.Copy(io.Discard, s.in); err != nil {
			t.Errorf("the end: %v", err)
		}
		decisions, completions := m.settled(t)
		if len(decisions) != 1 {
			t.Fatalf("%d decisions", len(decisions))
		}
		d := decisions[0]
		c := completions[d.ID()]
		if d.HTTPRequest.Method != "GET" || d.HTTPRequest.URL.Path != "/ws" || c.HTTPResponse.Code != 101 || c.StatusID != audit.StatusSuccess ||
			c.Traffic.BytesOut < 500_000 || c.Traffic.BytesIn < 500_000 {
			t.Errorf("%+v completed by %+v %+v %+v", d.HTTPRequest, c, c.HTTPResponse, c.Traffic)
		}

		s, resp, err := m.upgrade(t, "/chat", field{"sec-websocket-protocol", "chat.v1, chat.v2"}, field{"cookie", "a=b"})
		must.OK(t, err)
		s.echoes(t, "hello")
		if got := resp.Header.Get("Sec-Websocket-Protocol"); got != "chat.v2" || protocols.Load() != "[chat.v1 chat.v2]a=b" {
			t.Errorf("subprotocol %s of %s", got, protocols.Load())
		}
		s.Close()
	})
}

func TestWebSocketThatIsRefused(t *testing.T) {
	t.Parallel()
	eachWebSocket(t, func(t *testing.T, m *versionEnv) {
		m.credential("key", token)
		m.policy(func(in policy.Input) policy.Decision {
			d := m.allow(in)
			switch {
			case in.Request == nil:
			case in.Request.Path == "/denied":
				return policy.Decision{Reason: "not this path"}
			}
			if in.Request != nil && in.Request.Method != "GET" {
				t.Errorf("policy saw %s", in.Request.Method)
			}
			return d
		})
		m.handle("/ok", func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "no WebSocket") })
		m.handle("/away", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/ws", 302) })
		m.handle("/wrong", func(w http.ResponseWriter, r *http.Request) {
			c, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: wrong\r\n\r\n")
		})
		for _, test := range []struct {
			path   string
			h1, h2 int
			header field
		}{
			{"/denied", 403, 403, field{"x-a", "b"}},
			{"/nowhere", 404, 404, field{"x-a", "b"}},
			{"/away", 302, 302, field{"x-a", "b"}},
			{"/ok", 200, 502, field{"x-a", "b"}},    // to HTTP/2 success would be a WebSocket
			{"/wrong", 502, 502, field{"x-a", "b"}}, // it is no answer to this handshake
			{"/ok", 403, 403, field{"x-original-url", "/denied"}},
		} {
			_, resp, err := m.upgrade(t, test.path, test.header)
			want := map[string]int{"h1": test.h1, "h2": test.h2}[m.version]
			if resp.StatusCode != want || err == nil && want != 101 {
				t.Errorf("%s: %d, want %d", test.path, resp.StatusCode, want)
			}
		}
		m.settled(t)
	})
}

// TestWebSocketThatEnds ends one from either side while the other goes on
// sending, again and again: whoever writes then must not write to what is gone.
func TestWebSocketThatEnds(t *testing.T) {
	eachWebSocket(t, func(t *testing.T, m *versionEnv) {
		ended := make(chan struct{}, 1)
		m.mux.Handle("/flood", websocket.Handler(func(ws *websocket.Conn) {
			for websocket.Message.Send(ws, strings.Repeat("x", 1000)) == nil {
			}
			ended <- struct{}{}
		}))
		m.mux.Handle("/end", websocket.Handler(func(ws *websocket.Conn) {
			_ = websocket.Message.Send(ws, "bye")
			ended <- struct{}{}
		}))
		for i := range 9 {
			s, _, err := m.upgrade(t, "/flood")
			must.OK(t, err)
			if _, _, err := s.receive(); err != nil {
				t.Fatal(err)
			}
			switch f, ok := s.ReadWriteCloser.(*stream); {
			case i%3 == 0:
				s.Close()
			case i%3 == 1 && ok:
				_ = f.write(func() error { return f.WriteRSTStream(f.id, http2.ErrCodeCancel) })
			case ok:
				f.frames.Conn.Close()
			default:
				s.Close()
			}
			await(t, ended)
		}
		for range 5 {
			s, _, err := m.upgrade(t, "/end")
			must.OK(t, err)
			start := time.Now()
			if kind, payload, err := s.receive(); err != nil || kind != wsText || string(payload) != "bye" {
				t.Errorf("%d %q %v", kind, payload, err)
			}
			await(t, ended)
			if _, _, err := s.receive(); err != io.EOF || time.Since(start) > soon {
				t.Errorf("the end: %v after %v", err, time.Since(start))
			}
		}
		m.settled(t)
	})
}

// The client of a WebSocket that takes nothing stops its upstream, and holds up
// nobody when the upstream ends.
func TestWebSocketWhoseClientDoesNotRead(t *testing.T) {
	w := newNetEnv(t)
	o := w.origin("api.example.test", "h1", true)
	var sent atomic.Int64
	ended := make(chan struct{}, 1)
	o.mux.Handle("/flood", websocket.Handler(func(ws *websocket.Conn) {
		for ; websocket.Message.Send(ws, strings.Repeat("x", 1000)) == nil; sent.Add(1000) {
		}
		ended <- struct{}{}
	}))
	c := w.frames(w.steer, o)
	host := fmt.Sprintf("%s:%d", o.name, o.port)
	id, err := c.open(false, field{":method", "CONNECT"}, field{":protocol", "websocket"}, field{":scheme", "https"}, field{":path", "/flood"},
		field{":authority", host}, field{"sec-websocket-version", "13"}, field{"origin", "http://x"})
	must.OK(t, err)
	if n := stalled(sent.Load); n == 0 || n > buffered {
		t.Errorf("%d bytes were taken", n)
	}
	must.OK(t, c.WriteRSTStream(id, http2.ErrCodeCancel))
	await(t, ended)
	w.settled(t)
}

// A sandbox's own credential does not go where browsers put one.
func TestSubprotocolThatIsACredential(t *testing.T) {
	t.Parallel()
	for offered, want := range map[string]string{
		"realtime, openai-insecure-api-key.sk-own, openai-beta.realtime-v1": "realtime, openai-beta.realtime-v1",
		"v4.channel.k8s.io, base64url.bearer.authorization.k8s.io.c2stb3du": "v4.channel.k8s.io",
		"mqtt, " + strings.Repeat("a", 64):                                  "mqtt",
		"Bearer.sk-own":                                                     "",
	} {
		w := newNetEnv(t)
		w.credential("key", token)
		w.policy(func(in policy.Input) policy.Decision {
			d := inject("key")(in)
			d.Upstream = w.reach
			return d
		})
		o := w.origin("api.example.test", "h1", true)
		got := make(chan http.Header, 1)
		o.handle("/", func(w http.ResponseWriter, r *http.Request) {
			got <- r.Header.Clone()
			w.WriteHeader(http.StatusTeapot)
		})
		r, err := http.NewRequest(http.MethodGet, o.url("https", "/"), nil)
		must.OK(t, err)
		for name, value := range map[string]string{
			"Connection": "Upgrade", "Upgrade": "websocket", "Sec-Websocket-Version": "13", "Sec-Websocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
			"Sec-Websocket-Protocol": offered,
		} {
			r.Header.Set(name, value)
		}
		resp, err := w.agent("h1", true, w.steer, false).Do(r)
		must.OK(t, err)
		resp.Body.Close()
		if got := strings.Join((<-got)["Sec-Websocket-Protocol"], ", "); got != want {
			t.Errorf("%q became %q", offered, got)
		}
	}
}

// A credential that is sent with the handshake does not come back in a message,
// nor while the client goes away.
func TestWebSocketWithACredential(t *testing.T) {
	eachWebSocket(t, func(t *testing.T, m *versionEnv) {
		if m.scheme == "http" {
			t.Skip("no credential goes in the clear")
		}
		m.credential("key", token)
		m.policy(func(in policy.Input) policy.Decision {
			d := m.allow(in)
			d.Inject = inject("key")(in).Inject
			return d
		})
		ended := make(chan struct{}, 1)
		m.mux.Handle("/", websocket.Handler(func(ws *websocket.Conn) {
			for websocket.Message.Send(ws, ws.Request().Header.Get("Authorization")+strings.Repeat(" ", 1000)) == nil {
			}
			ended <- struct{}{}
		}))
		for range 5 {
			s, resp, err := m.upgrade(t, "/", field{"sec-websocket-extensions", "permessage-deflate"})
			if err != nil {
				t.Fatal(resp, err)
			}
			if _, payload, err := s.receive(); err != nil || strings.TrimRight(string(payload), " ") != strings.Repeat("*", len("Bearer "+token)) {
				t.Errorf("%q %v", payload, err)
			}
			s.Close()
			await(t, ended)
		}
		_, completions := m.settled(t)
		for _, c := range completions {
			if c.SeverityID < audit.SeverityMedium || c.Unmapped.Sallyport.Credentials == nil {
				t.Errorf("completion %+v", c)
			}
		}
	})
}
