// Package websocket has the gateway's part of WebSockets (RFC 6455): their handshake,
// their frames, and how they end, over HTTP/1.1 and inside of HTTP/2 (RFC 8441).
package websocket

import (
	"crypto/rand"
	"crypto/sha1"
	"encoding/base64"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"sallyport/gateway/form"
)

// FromHTTP2 turns a WebSocket that is begun inside of HTTP/2 (RFC 8441) into the
// handshake of HTTP/1.1 that it stands for: policy sees it as such, and it is what
// every upstream speaks. It returns nil for other requests. golang.org/x/net/http2
// offers it to clients when the environment has GODEBUG=http2xconnect=1 as the process
// starts.
func FromHTTP2(w http.ResponseWriter, r *http.Request) *Stream {
	if r.ProtoMajor != 2 || r.Method != http.MethodConnect || r.Header.Get(":protocol") != "websocket" {
		return nil
	}
	delete(r.Header, ":protocol")
	r.Method = http.MethodGet
	r.Header["Connection"], r.Header["Upgrade"] = []string{"Upgrade"}, []string{"websocket"}
	var random [16]byte
	_, _ = rand.Read(random[:]) // never fails
	key := base64.StdEncoding.EncodeToString(random[:])
	r.Header["Sec-Websocket-Key"] = []string{key}
	s := &Stream{ReadCloser: r.Body, w: w}
	r.Body, r.ContentLength = http.NoBody, 0
	return s
}

// closeTime is how long a write that is under way may hold up Stream.Close.
const closeTime = 500 * time.Millisecond

// Stream is a stream of HTTP/2 as a connection.
type Stream struct {
	io.ReadCloser
	w http.ResponseWriter

	mu   sync.Mutex // held while writing
	over bool       // the handler may have returned
}

// CheckRequest refuses the request of a WebSocket that is not as RFC 6455, section 4.1, has it. A
// body would be read as frames by some servers, and as a body by others.
func CheckRequest(r *http.Request) *form.Error {
	keys := r.Header["Sec-Websocket-Key"]
	var key []byte
	if len(keys) == 1 {
		key, _ = base64.StdEncoding.DecodeString(keys[0])
	}
	switch {
	case r.Body != nil && r.Body != http.NoBody:
		return &form.Error{Status: http.StatusBadRequest, Rule: "websocket", Reason: "a WebSocket's handshake has no body"}
	case r.Method != http.MethodGet || r.ProtoMajor == 1 && r.ProtoMinor == 0:
		return &form.Error{Status: http.StatusBadRequest, Rule: "websocket", Reason: "a WebSocket's handshake is a GET by HTTP/1.1 or later"}
	case len(key) != 16:
		return &form.Error{Status: http.StatusBadRequest, Rule: "websocket", Reason: "a WebSocket's handshake has one Sec-WebSocket-Key of 16 bytes in base64"}
	}
	return nil
}

// Accepts tells whether a response switches to a WebSocket in answer to the handshake whose
// key that is (RFC 6455, section 4.1).
func Accepts(resp *http.Response, key string) bool {
	const suffix = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
	sum := sha1.Sum([]byte(key + suffix))
	accept := resp.Header["Sec-Websocket-Accept"]
	return resp.StatusCode == http.StatusSwitchingProtocols && form.IsWebSocket(resp.Header) &&
		len(accept) == 1 && accept[0] == base64.StdEncoding.EncodeToString(sum[:])
}

// Accept turns the header of a 101 response into that of the stream's.
func (t *Stream) Accept(h http.Header) {
	for _, name := range []string{"Connection", "Upgrade", "Sec-Websocket-Accept"} {
		delete(h, name)
	}
}

// Write fails once the stream is closed: the library panics when somebody writes
// after the handler has returned.
func (t *Stream) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return 0, net.ErrClosed
	}
	n, err := t.w.Write(p)
	if err == nil {
		err = http.NewResponseController(t.w).Flush()
	}
	return n, err
}

// Close waits a while for a write that is under way, which the client may have
// to make room for, and breaks it off then.
func (t *Stream) Close() error {
	broken := make(chan struct{})
	late := time.AfterFunc(closeTime, func() {
		defer close(broken)
		_ = t.SetWriteDeadline(time.Unix(1, 0))
	})
	t.mu.Lock()
	t.over = true
	t.mu.Unlock()
	if !late.Stop() {
		<-broken
	}
	return t.ReadCloser.Close()
}

func (t *Stream) LocalAddr() net.Addr  { return &net.TCPAddr{} }
func (t *Stream) RemoteAddr() net.Addr { return &net.TCPAddr{} }
func (t *Stream) SetReadDeadline(d time.Time) error {
	return http.NewResponseController(t.w).SetReadDeadline(d)
}
func (t *Stream) SetWriteDeadline(d time.Time) error {
	return http.NewResponseController(t.w).SetWriteDeadline(d)
}
func (t *Stream) SetDeadline(d time.Time) error {
	if err := t.SetReadDeadline(d); err != nil {
		return err
	}
	return t.SetWriteDeadline(d)
}

// maxSubprotocol bounds a token that is a subprotocol's name rather than a
// credential, in bytes.
const maxSubprotocol = 40

// KeepPlainProtocols removes credentials of the sandbox's own from Sec-WebSocket-Protocol,
// where browsers have to put them: names that services are known to read a credential
// behind, and tokens that are too long for a name.
func KeepPlainProtocols(h http.Header) {
	const name = "Sec-Websocket-Protocol"
	var kept []string
	for _, line := range h[name] {
		for token := range strings.SplitSeq(line, ",") {
			token = strings.TrimSpace(token)
			secret := len(token) > maxSubprotocol || slices.ContainsFunc(carryingProtocols, func(prefix string) bool {
				return len(token) >= len(prefix) && strings.EqualFold(token[:len(prefix)], prefix)
			})
			if token != "" && !secret {
				kept = append(kept, token)
			}
		}
	}
	if kept == nil {
		delete(h, name)
		return
	}
	h[name] = []string{strings.Join(kept, ", ")}
}

// carryingProtocols are the beginnings of such tokens.
var carryingProtocols = []string{
	"openai-insecure-api-key.", "openai-ephemeral-api-key.", "base64url.bearer.", "bearer.", "access_token.", "token.", "jwt.", "apikey.", "api-key.", "auth.",
	"authorization.", "base64.", "base64url.",
}
