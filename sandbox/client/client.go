// Package client calls a Sallyport daemon: on the same host over the control socket, or
// from elsewhere over TLS with an API key. Platforms that run work in sandboxes use it,
// and so does the command line.
//
// The key is sent only to the server that was named: the server's certificate is verified,
// or compared with a fingerprint, before the first request, and redirects are not
// followed. The client does not retry. A request with [WithIdempotencyKey] can safely be
// sent again.
package client

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"

	"sallyport/internal/hostname"
)

// ErrNoDaemon is returned when nothing listens on the socket.
var ErrNoDaemon = errors.New("no daemon is running")

// ErrServer is returned when the server's certificate is not the expected one.
var ErrServer = errors.New("the server is another one")

// Remote is a daemon on another host: its address, the API key for it, and its certificate.
type Remote struct {
	URL string // https://host:port
	// KeyFile holds the API key; Dial reads it, and refuses one that others can read.
	KeyFile string
	// Fingerprint is sha256:HEX of the server's certificate, as `sallyport status`
	// shows it on the server. Without it the system's certificate authorities are trusted.
	Fingerprint string
}

// Client talks to a daemon. Its methods' errors are ErrNoDaemon, ErrServer, a
// *Problem when the daemon answered with an error, or of the connection. It is
// safe for concurrent use.
type Client struct {
	base string // without a path
	key  string // empty on a socket
	http *http.Client
}

// Unix returns a client of the daemon behind a unix socket.
func Unix(socket string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
		switch {
		case err == nil:
			return answered{conn}, nil
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
			return nil, fmt.Errorf("%w on %s: start it with `sallyport up`", ErrNoDaemon, socket)
		case errors.Is(err, fs.ErrPermission):
			return nil, fmt.Errorf("reaching the daemon on %s: %w: run this as root, or have your user named under api.users", socket, err)
		}
		return nil, fmt.Errorf("reaching the daemon on %s: %w", socket, err)
	}
	return &Client{base: "http://sallyport", http: newHTTP(&http.Transport{DialContext: dial})}
}

func newHTTP(t *http.Transport) *http.Client {
	t.ExpectContinueTimeout, t.IdleConnTimeout = continueTimeout, idleTimeout
	return &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, Transport: t}
}

// Dial returns a client of a daemon elsewhere. It connects on the first call.
func Dial(r Remote) (*Client, error) {
	u, err := hostname.ParseURL(r.URL)
	if err != nil || u.Scheme != "https" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" {
		return nil, fmt.Errorf("%q is not a daemon's address: write https://host:port", r.URL)
	}
	key, err := readKey(r.KeyFile)
	if err != nil {
		return nil, err
	}
	address := u.Host
	if u.Port() == "" {
		address = net.JoinHostPort(u.Hostname(), "443")
	}
	// Commands' streams take the connection over, which HTTP/2 has no way to.
	trust := &tls.Config{MinVersion: tls.VersionTLS13, ServerName: u.Hostname(), NextProtos: []string{"http/1.1"}}
	if r.Fingerprint != "" {
		want, err := hex.DecodeString(strings.ReplaceAll(strings.TrimPrefix(strings.ToLower(r.Fingerprint), "sha256:"), ":", ""))
		if err != nil || len(want) != sha256.Size {
			return nil, fmt.Errorf("%q is not a fingerprint: write sha256: and 64 hexadecimal digits", r.Fingerprint)
		}
		trust.InsecureSkipVerify = true // VerifyConnection compares the certificate itself
		trust.VerifyConnection = func(s tls.ConnectionState) error {
			got := sha256.Sum256(s.PeerCertificates[0].Raw)
			if subtle.ConstantTimeCompare(got[:], want) != 1 {
				return fmt.Errorf("%w: its certificate is sha256:%x", ErrServer, got)
			}
			return nil
		}
	}
	d := &tls.Dialer{NetDialer: &net.Dialer{Timeout: 10 * time.Second}, Config: trust}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) { return d.DialContext(ctx, "tcp", address) }
	return &Client{base: "https://" + u.Host, key: key, http: newHTTP(&http.Transport{DialTLSContext: dial})}, nil
}

// readKey refuses a file that others can read: what is in it is a password.
func readKey(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("reading the API key: %w: name its file with --key-file", err)
	}
	defer f.Close()
	i, err := f.Stat()
	if err != nil {
		return "", err
	}
	if i.Mode().IsRegular() && i.Mode().Perm()&0o077 != 0 {
		return "", fmt.Errorf("the API key in %s can be read by others: chmod 600 %s, and make a new key if it was", path, path)
	}
	data, err := io.ReadAll(io.LimitReader(f, 4096))
	if err != nil {
		return "", err
	}
	key := strings.TrimSpace(string(data))
	if key == "" || strings.ContainsAny(key, " \t\r\n") {
		return "", fmt.Errorf("%s does not hold an API key on a line of its own", path)
	}
	return key, nil
}

// idleTimeout is for how long a connection is kept for the next request. A daemon
// keeps it for longer: an upload, whose body cannot be sent again, does not meet
// the end of its connection.
const idleTimeout = time.Minute

// Close ends idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

type idempotencyKey struct{}

// WithIdempotencyKey returns a context whose request the daemon executes once, however
// often it is sent: for the same key and body it repeats its first answer. A key has up
// to 255 visible characters; use a UUID.
func WithIdempotencyKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, idempotencyKey{}, key)
}

func (c *Client) request(ctx context.Context, method, path string, body io.Reader) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.key != "" {
		req.Header.Set("Authorization", "Bearer "+c.key)
	}
	if key, ok := ctx.Value(idempotencyKey{}).(string); ok {
		req.Header.Set("Idempotency-Key", key)
	}
	return req, nil
}

// Stream sends a request without a body and returns the body of the answer, which the
// caller reads and closes.
func (c *Client) Stream(ctx context.Context, path string, header http.Header) (io.ReadCloser, error) {
	resp, err := c.fetch(ctx, path, header)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// fetch is Stream with the answer's head.
func (c *Client) fetch(ctx context.Context, path string, header http.Header) (*http.Response, error) {
	return c.send(ctx, http.MethodGet, path, nil, header)
}

// Lines hands over the lines of JSON that a path answers with, to their end or until tell
// fails.
func Lines[T any](ctx context.Context, c *Client, path string, tell func(T) error) error {
	body, err := c.Stream(ctx, path, nil)
	if err != nil {
		return err
	}
	return each(body, tell)
}

// PostLines is Lines of the answer to a request with JSON.
func PostLines[T any](ctx context.Context, c *Client, path string, in any, tell func(T) error) error {
	resp, err := c.send(ctx, http.MethodPost, path, in, nil)
	if err != nil {
		return err
	}
	return each(resp.Body, tell)
}

// each is Lines of a body, which it closes.
func each[T any](from io.ReadCloser, tell func(T) error) error {
	defer from.Close()
	for lines := json.NewDecoder(from); ; {
		var v T
		if err := lines.Decode(&v); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := tell(v); err != nil {
			return err
		}
	}
}

func (c *Client) do(req *http.Request) (*http.Response, error) {
	resp, err := c.http.Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err // the URL says nothing to the user
		}
		return nil, err
	}
	if err := failure(resp); err != nil {
		resp.Body.Close()
		return nil, err
	}
	return resp, nil
}

// None is the JSON of a request or an answer without any.
type None struct{}

// Call is an operation of the API that takes the JSON of an In and answers with that of an
// Out; an Out of []byte gets the body as it is.
type Call[In, Out any] struct{ Method, Path string }

// Do asks a daemon. Each name in braces in the path stands for one of names.
func (a Call[In, Out]) Do(ctx context.Context, c *Client, in In, names ...string) (out Out, err error) {
	path := a.Path
	for _, name := range names {
		before, rest, _ := strings.Cut(path, "{")
		_, after, _ := strings.Cut(rest, "}")
		path = before + url.PathEscape(name) + after
	}
	_, err = c.call(ctx, a.Method, path, in, &out)
	return out, err
}

// Action is a Call without an answer.
type Action[In any] struct{ Method, Path string }

// Do is [Call.Do].
func (a Action[In]) Do(ctx context.Context, c *Client, in In, names ...string) error {
	_, err := Call[In, None](a).Do(ctx, c, in, names...)
	return err
}

// List is the path of a list in pages.
type List[T any] string

// Do returns the entries of all pages.
func (l List[T]) Do(ctx context.Context, c *Client) ([]T, error) { return All[T](ctx, c, string(l)) }

// Call sends in as JSON, unless it is nil, and decodes the answer into out. Paths begin
// with /v1/.
func (c *Client) Call(ctx context.Context, method, path string, in, out any) error {
	_, err := c.call(ctx, method, path, in, out)
	return err
}

func (c *Client) call(ctx context.Context, method, path string, in, out any) (http.Header, error) {
	resp, err := c.send(ctx, method, path, in, nil)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	switch out := out.(type) {
	case nil, *None:
	case *[]byte:
		*out, err = io.ReadAll(resp.Body)
	default:
		err = json.NewDecoder(resp.Body).Decode(out)
	}
	return resp.Header, err
}

// send sends in as JSON, unless there is none, with a header besides. The caller closes
// the body of the answer.
func (c *Client) send(ctx context.Context, method, path string, in any, header http.Header) (*http.Response, error) {
	var body io.Reader
	if _, empty := in.(None); in != nil && !empty {
		data, err := json.Marshal(in)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(data)
	}
	req, err := c.request(ctx, method, path, body)
	if err != nil {
		return nil, err
	}
	for k, v := range header {
		req.Header[k] = v
	}
	return c.do(req)
}

// maxProblem bounds what is read of an error, in bytes.
const maxProblem = 1 << 20

func failure(resp *http.Response) error {
	if resp.StatusCode < 300 {
		return nil
	}
	p := &Problem{Status: resp.StatusCode, Title: resp.Status, Detail: resp.Status}
	_ = json.NewDecoder(io.LimitReader(resp.Body, maxProblem)).Decode(p) // else the status says it
	return p
}

// All collects the pages of a list (the Link header, RFC 8288).
func All[T any](ctx context.Context, c *Client, path string) (all []T, err error) {
	for path != "" {
		var page []T
		header, err := c.call(ctx, http.MethodGet, path, nil, &page)
		if err != nil {
			return nil, err
		}
		all = append(all, page...)
		path = next(header.Get("Link"))
	}
	return all, nil
}

// next is the path of the page after, or empty.
func next(link string) string {
	target, rest, ok := strings.Cut(strings.TrimPrefix(link, "<"), ">")
	if !ok || !strings.Contains(rest, `rel="next"`) || !strings.HasPrefix(target, "/v1/") {
		return ""
	}
	return target
}
