package gateway_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http2"
)

// scenario is what a client of a soak does. It returns what was not as it should
// be.
type scenario struct {
	name string
	do   func(*inboundConn, context.Context) error
}

// honest are those of clients that stay until the end.
var honest = []scenario{
	{"request", (*inboundConn).asks},
	{"request, once more", (*inboundConn).asks}, // the most common thing there is
	{"no body", (*inboundConn).bodiless},
	{"plain HTTP", (*inboundConn).plainly},
	{"events", (*inboundConn).listens},
	{"download", (*inboundConn).downloads},
	{"compressed answer", (*inboundConn).unpacks},
	{"upload", (*inboundConn).uploads},
	{"upload that is refused", (*inboundConn).offers},
	{"gRPC", (*inboundConn).calls},
	{"WebSocket", (*inboundConn).talks},
	{"tunnel", (*inboundConn).tunnels},
	{"denial", (*inboundConn).trespasses},
	{"sometimes allowed", (*inboundConn).tries},
	{"upstream that says goodbye", (*inboundConn).parts},
	{"upstream without a connection", (*inboundConn).fails},
	{"upstream that goes wrong", (*inboundConn).suffers},
}

var scenarios = append(slices.Clone(honest), []scenario{
	{"upstream that takes no end", (*inboundConn).waits},
	{"client that gives up", (*inboundConn).leaves},
	{"client that resets", (*inboundConn).vanishes},
	{"client of HTTP/2 that resets", (*inboundConn).vanishesInFrames},
	{"WebSocket or tunnel that resets", (*inboundConn).vanishesTalking},
}...)

var errStalePolicy = errors.New("the policy was loaded in between")

// ask sends a request and reads all of the answer. The answer is searched for the secret
// whatever becomes of it.
func (v *inboundConn) ask(r *http.Request, c *http.Client) (*http.Response, []byte, error) {
	resp, err := c.Do(r)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	v.search(fmt.Append(nil, resp.Header, resp.Trailer), r.URL.Path)
	v.search(body, r.URL.Path)
	if resp.StatusCode == http.StatusServiceUnavailable && (r.Method == http.MethodHead || bytes.Contains(body, []byte("loaded anew"))) {
		return resp, body, errStalePolicy
	}
	return resp, body, err
}

func (v *inboundConn) request(ctx context.Context, method, url string, body io.Reader) *http.Request {
	r, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		panic(err)
	}
	return r
}

func (v *inboundConn) agent() agent { return v.clients[v.IntN(len(v.clients))] }

func (v *inboundConn) version() string { return []string{"h1", "h2"}[v.IntN(2)] }

func (v *inboundConn) soon(most time.Duration) time.Duration {
	return time.Duration(v.Int64N(int64(most)))
}

// unlike is the error of an answer that is not the one wanted.
func unlike(resp *http.Response, body []byte, err error) error {
	if resp == nil || err != nil {
		return err
	}
	return fmt.Errorf("%d %v %.200q %v", resp.StatusCode, resp.Header, body, resp.Trailer)
}

func (v *inboundConn) asks(ctx context.Context) error {
	resp, body, err := v.ask(v.request(ctx, "GET", v.well[v.version()].url("https", "/open/echo"), nil), v.agent().Client)
	if err != nil || resp.StatusCode != 200 || resp.Header.Get("X-Saw") != "true" || !bytes.HasPrefix(body, []byte("you sent Bearer *")) {
		return unlike(resp, body, err)
	}
	return nil
}

func (v *inboundConn) bodiless(ctx context.Context) error {
	method, path, status := "HEAD", "/open/echo", 200
	if v.IntN(2) == 0 {
		method, path, status = "DELETE", "/open/none", 204
	}
	resp, body, err := v.ask(v.request(ctx, method, v.well[v.version()].url("https", path), nil), v.agent().Client)
	if err != nil || resp.StatusCode != status || len(body) > 0 {
		return unlike(resp, body, err)
	}
	return nil
}

// plainly sends no credential where it could be read.
func (v *inboundConn) plainly(ctx context.Context) error {
	c := v.clients[2*v.IntN(2)] // of HTTP/1.1
	resp, body, err := v.ask(v.request(ctx, "GET", v.plain.url("http", "/open/echo"), nil), c.Client)
	if err != nil || resp.StatusCode != 200 || string(body) != "you sent |." {
		return unlike(resp, body, err)
	}
	return nil
}

func (v *inboundConn) listens(ctx context.Context) error {
	resp, body, err := v.ask(v.request(ctx, "GET", v.well[v.version()].url("https", "/open/events"), nil), v.agent().Client)
	if err != nil || resp.StatusCode != 200 || bytes.Count(body, []byte("data: ")) != 5 {
		return unlike(resp, body, err)
	}
	return nil
}

func (v *inboundConn) downloads(ctx context.Context) error {
	n := v.IntN(len(pattern))
	resp, body, err := v.ask(v.request(ctx, "GET", v.well[v.version()].url("https", fmt.Sprintf("/open/bytes?n=%d", n)), nil), v.agent().Client)
	if err != nil || resp.StatusCode != 200 || len(body) != n || sum(body) != resp.Header.Get("X-Sum") {
		return unlike(resp, body, err)
	}
	return nil
}

func (v *inboundConn) unpacks(ctx context.Context) error {
	resp, body, err := v.ask(v.request(ctx, "GET", v.well[v.version()].url("https", "/open/gzip"), nil), v.agent().Client)
	if err == nil && resp.Header.Get("Content-Encoding") == "gzip" {
		var z *gzip.Reader
		if z, err = gzip.NewReader(bytes.NewReader(body)); err == nil {
			body, err = io.ReadAll(z)
			v.search(body, "the packed answer")
		}
	}
	if err != nil || resp.StatusCode != 200 || !bytes.HasPrefix(body, []byte("you sent Bearer *")) {
		return unlike(resp, body, err)
	}
	return nil
}

// uploads sends chunks, after 100 (Continue) at times, with a trailer at times:
// not beside a credential, where none goes out.
func (v *inboundConn) uploads(ctx context.Context) error {
	sent := pattern[:v.IntN(len(pattern))]
	a, o, scheme := v.agent(), v.well[v.version()], "https"
	plain := v.IntN(3) == 0
	if plain {
		a, o, scheme = v.clients[2*v.IntN(2)], v.plain, "http"
	}
	r := v.request(ctx, "POST", o.url(scheme, "/open/upload"), io.MultiReader(bytes.NewReader(sent)))
	if v.IntN(2) == 0 {
		r.Header.Set("Expect", "100-continue")
	}
	want := sum(sent)
	if plain {
		r.Trailer = http.Header{"X-Check": {"+"}}
		want += "+"
	}
	resp, body, err := v.ask(r, a.Client)
	if err == errStalePolicy {
		return err
	}
	if err != nil || resp.StatusCode != 200 || string(body) != fmt.Sprint(len(sent), " <nil>") || resp.Trailer.Get("X-Sum") != want {
		return fmt.Errorf("%w, want %s", unlike(resp, body, err), want)
	}
	return nil
}

// offers a body that its upstream does not want. A client of HTTP/1.1 may be
// cut off while it sends, and not see the answer (RFC 9112, section 9.6).
func (v *inboundConn) offers(ctx context.Context) error {
	r := v.request(ctx, "PUT", v.well[v.version()].url("https", "/open/early"), bytes.NewReader(pattern))
	r.Header.Set("Expect", "100-continue")
	resp, body, err := v.ask(r, v.agent().Client)
	if err == errStalePolicy || err == nil && resp.StatusCode != http.StatusRequestEntityTooLarge {
		return unlike(resp, body, err)
	}
	return nil
}

// calls has some messages go to and fro, as a stream of gRPC does.
func (v *inboundConn) calls(ctx context.Context) error {
	in, out := io.Pipe()
	defer out.CloseWithError(context.Canceled)
	r := v.request(ctx, "POST", v.well["h2"].url("https", "/open/call"), in)
	r.Header.Set("Content-Type", "application/grpc")
	r.Header.Set("Te", "trailers")
	resp, err := v.clients[1+2*v.IntN(2)].Do(r) // of HTTP/2
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.Header.Get("Grpc-Status") != "" && strings.Contains(fmt.Sprint(resp.Header), "anew") {
		return errStalePolicy
	}
	for range 1 + v.IntN(5) {
		message := append([]byte{0, 0, 0, 0, byte(v.IntN(250))}, pattern...)
		message = message[:5+int(message[4])]
		if _, err := out.Write(message); err != nil {
			return err
		}
		back := make([]byte, len(message))
		if _, err := io.ReadFull(resp.Body, back); err != nil || !bytes.Equal(back, message) {
			return fmt.Errorf("%.20q of %.20q: %w; %v %v", back, message, err, resp.Header, resp.Trailer)
		}
	}
	out.Close()
	body, err := io.ReadAll(resp.Body)
	v.search(fmt.Append(nil, resp.Header, resp.Trailer), "gRPC")
	if err != nil || len(body) > 0 || resp.Trailer.Get("Grpc-Status") != "0" {
		return unlike(resp, body, err)
	}
	return nil
}

// secure opens a connection to an origin by a client's way in.
func (v *inboundConn) secure(ctx context.Context, a agent, o *origin) (*tls.Conn, error) {
	raw, err := a.dial(ctx, "tcp", o.address())
	if err != nil {
		return nil, err
	}
	_ = raw.SetDeadline(time.Now().Add(patience))
	c := tls.Client(raw, &tls.Config{RootCAs: v.ca.pool, ServerName: o.name, NextProtos: []string{map[string]string{"h1": "http/1.1", "h2": "h2"}[a.version]}})
	if err := c.HandshakeContext(ctx); err != nil {
		raw.Close()
		return nil, err
	}
	return c, nil
}

// socket is a WebSocket with what ends it.
func (v *inboundConn) socket(ctx context.Context, a agent) (*socket, *tls.Conn, error) {
	o := v.well["h1"]
	c, err := v.secure(ctx, a, o)
	if err != nil {
		return nil, nil, err
	}
	fail := func(resp *http.Response, err error) (*socket, *tls.Conn, error) {
		defer c.Close()
		if err != nil {
			return nil, nil, err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		v.search(fmt.Append(nil, resp.Header), "WebSocket")
		if bytes.Contains(body, []byte("anew")) {
			return nil, nil, errStalePolicy
		}
		return nil, nil, unlike(resp, body, err)
	}
	header := http.Header{"Sec-Websocket-Version": {"13"}, "Origin": {"http://x"}}
	if a.version == "h2" {
		h2, err := new(http2.Transport).NewClientConn(c)
		if err != nil {
			return fail(nil, err)
		}
		in, out := io.Pipe()
		r := v.request(ctx, "CONNECT", o.url("https", "/open/ws"), in)
		r.Header = header
		r.Header[":protocol"] = []string{"websocket"}
		resp, err := h2.RoundTrip(r)
		if err != nil || resp.StatusCode != 200 {
			out.Close()
			return fail(resp, err)
		}
		return &socket{struct {
			io.Reader
			io.WriteCloser
		}{resp.Body, out}, bufio.NewReader(resp.Body)}, c, nil
	}
	r := v.request(ctx, "GET", o.url("https", "/open/ws"), nil)
	r.Header = header
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", "websocket")
	r.Header.Set("Sec-WebSocket-Key", base64.StdEncoding.EncodeToString(pattern[:16]))
	if err := r.Write(c); err != nil {
		return fail(nil, err)
	}
	in := bufio.NewReader(c)
	resp, err := http.ReadResponse(in, nil)
	if err != nil || resp.StatusCode != 101 {
		return fail(resp, err)
	}
	return &socket{c, in}, c, nil
}

func (v *inboundConn) talks(ctx context.Context) error {
	s, c, err := v.socket(ctx, v.agent())
	if err != nil {
		return err
	}
	defer c.Close()
	defer s.Close()
	for range 1 + v.IntN(5) {
		said := []byte(base64.StdEncoding.EncodeToString(pattern[:v.IntN(3000)]))
		if err := s.send(wsText, said); err != nil {
			return err
		}
		if kind, heard, err := s.receive(); err != nil || kind != wsText || !bytes.Equal(heard, said) {
			return fmt.Errorf("kind %d, %d of %d bytes: %w", kind, len(heard), len(said), err)
		}
	}
	return nil
}

func (v *inboundConn) tunnels(ctx context.Context) error {
	c, err := v.agent().dial(ctx, "tcp", v.raw.address())
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	said := append([]byte{0}, pattern[:v.IntN(len(pattern))]...)
	wrote := make(chan error, 1)
	go func() {
		_, err := c.Write(said)
		_ = c.(*net.TCPConn).CloseWrite() // the rest comes all the same
		wrote <- err
	}()
	heard, err := io.ReadAll(c)
	if err := errors.Join(<-wrote, err); err != nil || !bytes.Equal(heard, said) {
		return fmt.Errorf("%d of %d bytes: %w", len(heard), len(said), err)
	}
	return nil
}

func (v *inboundConn) trespasses(ctx context.Context) error {
	r := v.request(ctx, "POST", v.well[v.version()].url("https", "/closed"), strings.NewReader("body"))
	if v.IntN(3) == 0 {
		r = v.request(ctx, "GET", v.well[v.version()].url("https", "/open/echo"), nil)
		r.Header.Set("X-Original-Url", "/closed")
	}
	resp, body, err := v.ask(r, v.agent().Client)
	if err != nil || resp.StatusCode != 403 || resp.Header.Get("Sallyport-Decision") == "" {
		return unlike(resp, body, err)
	}
	return nil
}

func (v *inboundConn) tries(ctx context.Context) error {
	resp, body, err := v.ask(v.request(ctx, "GET", v.well[v.version()].url("https", "/sometimes"), nil), v.agent().Client)
	if err != nil || resp.StatusCode != 403 && resp.StatusCode != 404 { // the upstream has none
		return unlike(resp, body, err)
	}
	return nil
}

// parts from an upstream that says goodbye. Others' requests that had not begun
// there are sent once more; those with a body could not be.
func (v *inboundConn) parts(ctx context.Context) error {
	path, want := "/open/bye", "bye"
	if v.IntN(3) > 0 {
		path, want = "/open/echo", "you sent Bearer *"
	}
	resp, body, err := v.ask(v.request(ctx, "GET", v.leaving.url("https", path), nil), v.agent().Client)
	if err != nil || resp.StatusCode != 200 || !bytes.HasPrefix(body, []byte(want)) {
		return unlike(resp, body, err)
	}
	return nil
}

// fails wants an upstream that cannot be connected to, or that must not be.
func (v *inboundConn) fails(ctx context.Context) error {
	all := v.refused
	if soaking() { // to wait for a handshake takes longer than the others' whole run
		all = append(slices.Clip(all), v.mutes)
	}
	o := all[v.IntN(len(all))]
	resp, body, err := v.ask(v.request(ctx, "GET", o.url("https", "/open/echo"), nil), v.agent().Client)
	if err != nil || resp.StatusCode != 502 && resp.StatusCode != 504 {
		return unlike(resp, body, err)
	}
	return nil
}

// suffers wants that what an upstream has broken off never looks whole.
func (v *inboundConn) suffers(ctx context.Context) error {
	ill := ills[v.IntN(len(ills)-2)]
	r := v.request(ctx, "POST", v.ill[v.version()].url("https", "/open/"+ill), nil)
	if ill == "eats" {
		r = v.request(ctx, "POST", r.URL.String(), io.MultiReader(bytes.NewReader(pattern)))
	}
	resp, body, err := v.ask(r, v.agent().Client)
	if err == errStalePolicy || err == nil && resp.StatusCode != 502 {
		return fmt.Errorf("%s: %w", ill, unlike(resp, body, err))
	}
	return nil
}
