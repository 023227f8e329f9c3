// Package channel is the host's way to the agent inside one sandbox: it dials,
// proves itself (see package wire) and speaks HTTP over a bounded pool.
//
// Root inside a sandbox can take the agent's place, so every answer is treated as
// hostile: heads are bounded in size and time, no redirect is followed and nothing is
// decompressed. Bodies may have any length: the reader bounds them, as [Channel.JSON]
// does. Nothing that an agent says reaches another sandbox's channel, which shares
// neither connections nor bounds with it.
package channel

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"sallyport/sandbox/agent/wire"
)

// Bounds of one sandbox's channel.
const (
	// idle connections are kept for the next call.
	idle = 8
	// streams is how many attached commands, followers and transfers there can
	// be at once; calls besides them have connections of their own.
	streams = 64
	calls   = 8

	idleTimeout = time.Minute
	dialTimeout = 5 * time.Second
	// headTimeout is for an answer's head: the agent answers before a command
	// has run, but gVisor may be busy.
	headTimeout = 20 * time.Second
	maxHead     = 16 << 10 // bytes
	maxJSON     = 4 << 20  // bytes
	callTimeout = 30 * time.Second
	// bootTime is how long a new sandbox's agent may need until it listens.
	bootTime = 10 * time.Second
)

// Errors to branch on.
var (
	// ErrSilent: the agent cannot be reached or does not speak our protocol.
	ErrSilent = errors.New("the sandbox's agent does not answer")
	// ErrBusy: too many streams are open.
	ErrBusy = errors.New("too many commands, followers and transfers are attached to the sandbox")
	// ErrEarlier: the agent does not know what it is asked for. The session's memory
	// holds the agent of the build that it was started by.
	ErrEarlier = errors.New("the sandbox's agent is of an earlier version, which cannot do that: stop the sandbox and use it again")
	// ErrImpostor: what answers is not the agent that the session began with.
	ErrImpostor = fmt.Errorf("%w: what answers in its place is not the one that the session began with: stop the sandbox and use it again", ErrSilent)
	// ErrClosed: the channel was closed, because the sandbox stops or sleeps.
	ErrClosed = errors.New("the sandbox stops or goes to sleep")
)

// Error is an answer of the agent's that says what is wrong.
type Error struct {
	Status int
	wire.Failure
}

func (e *Error) Error() string { return e.Failure.Error }

// Options of New; Key is needed.
type Options struct {
	Key ed25519.PrivateKey
	// Agent is the agent's key as Meet has returned it earlier in the session. nil:
	// whatever listens is believed until Meet.
	Agent ed25519.PublicKey
	// Dial connects to an agent; nil: over TCP.
	Dial func(context.Context, netip.AddrPort) (net.Conn, error)
}

// Channel is the way to one session's agent. It is safe for concurrent use.
type Channel struct {
	opt     Options
	at      netip.AddrPort
	http    *http.Transport
	made    time.Time
	met     atomic.Bool // the agent has answered once
	earlier atomic.Bool // the agent has no key
	agent   atomic.Pointer[ed25519.PublicKey]
	streams chan struct{}
	ctx     context.Context // ends with Close
	end     context.CancelCauseFunc

	mu   sync.Mutex
	open map[*conn]struct{}
}

// New returns a channel to the agent at an address. Nothing is dialled yet.
func New(agent netip.Addr, opt Options) *Channel {
	c := &Channel{
		opt: opt, at: netip.AddrPortFrom(agent, wire.Port), made: time.Now(),
		streams: make(chan struct{}, streams), open: map[*conn]struct{}{},
	}
	if c.opt.Dial == nil {
		c.opt.Dial = dial
	}
	if opt.Agent != nil {
		c.agent.Store(&opt.Agent)
	}
	c.ctx, c.end = context.WithCancelCause(context.Background())
	c.http = &http.Transport{
		DialContext:            func(ctx context.Context, _, _ string) (net.Conn, error) { return c.connect(ctx) },
		MaxIdleConns:           idle,
		MaxIdleConnsPerHost:    idle,
		MaxConnsPerHost:        streams + calls,
		IdleConnTimeout:        idleTimeout,
		ResponseHeaderTimeout:  headTimeout,
		ExpectContinueTimeout:  headTimeout,
		MaxResponseHeaderBytes: maxHead,
		DisableCompression:     true,
		ForceAttemptHTTP2:      false,
		WriteBufferSize:        64 << 10,
		ReadBufferSize:         64 << 10,
	}
	return c
}

// Close ends every connection, also of calls that are under way. They are reset:
// nothing of them is on the sandbox's cable when it returns, which may be cut then.
func (c *Channel) Close() {
	c.end(ErrClosed)
	c.mu.Lock()
	open := slices.Collect(maps.Keys(c.open))
	c.mu.Unlock()
	for _, o := range open {
		o.reset()
		_ = o.Close()
	}
	c.http.CloseIdleConnections()
}

// Do sends a request to the agent; its URL needs a path only. With stream the
// answer may last and one of the stream places is held until its body is closed;
// without, the whole exchange has callTimeout. The caller bounds what it reads
// of the body. An answer of 400 or more is an *Error.
//
// The request's body is closed, maybe before Do returns, whether or not any of it
// was read, and what fails waits for a read of it that has begun. So its Close may
// not wait for whoever Do is to answer, as that of a request in a net/http server
// does (https://go.dev/issue/63152).
func (c *Channel) Do(req *http.Request, stream bool) (*http.Response, error) {
	var ends []func()
	end := func() {
		for i := len(ends) - 1; i >= 0; i-- {
			ends[i]()
		}
	}
	if stream {
		select {
		case c.streams <- struct{}{}:
			ends = append(ends, func() { <-c.streams })
		default:
			return nil, ErrBusy
		}
	}
	// The caller's context ends the exchange as long as the caller follows it: see leave.
	asker := req.Context()
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(asker))
	ends = append(ends, func() { cancel(nil) })
	leave := context.AfterFunc(asker, func() { cancel(context.Cause(asker)) })
	ends = append(ends, func() { leave() })
	if !stream {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(ctx, callTimeout)
		ends = append(ends, stop)
	}
	unhook := context.AfterFunc(c.ctx, func() { cancel(ErrClosed) })
	ends = append(ends, func() { unhook() })

	req = req.WithContext(ctx)
	req.URL.Scheme, req.URL.Host = "http", c.at.String()
	resp, err := c.http.RoundTrip(req)
	if err != nil {
		err = c.explain(req.Context(), err)
		end()
		return nil, err
	}
	if resp.StatusCode == http.StatusSwitchingProtocols && req.Header.Get("Upgrade") == "" {
		// Nobody asked for that, and no end of ctx would end a read of it: see readLoop
		// of [http.Transport].
		_ = resp.Body.Close()
		end()
		return nil, fmt.Errorf("%w: it switches protocols unasked", ErrSilent)
	}
	c.met.Store(true)
	resp.Body = &body{ReadCloser: resp.Body, end: end, leave: func() { leave() }}
	if resp.StatusCode >= 400 {
		defer resp.Body.Close()
		e := &Error{Status: resp.StatusCode}
		data, _ := io.ReadAll(io.LimitReader(resp.Body, maxHead))
		if json.Unmarshal(data, &e.Failure) != nil || e.Failure.Error == "" {
			if e.Status == http.StatusNotFound || e.Status == http.StatusMethodNotAllowed {
				return nil, ErrEarlier // it has no such route
			}
			e.Failure.Error = "the sandbox's agent answered " + http.StatusText(resp.StatusCode)
		}
		return nil, e
	}
	return resp, nil
}

// explain says what a failed exchange means to the caller.
func (c *Channel) explain(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); errors.Is(cause, ErrClosed) {
		return ErrClosed
	} else if cause != nil && !errors.Is(cause, context.DeadlineExceeded) {
		return cause
	}
	return fmt.Errorf("%w: %w", ErrSilent, err)
}

// JSON sends in, when there is any, and decodes the answer into out, unless
// that is nil. Both are bounded.
func (c *Channel) JSON(ctx context.Context, method, path string, in, out any) error {
	var data io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return err
		}
		data = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://agent"+path, data)
	if err != nil {
		return err
	}
	resp, err := c.Do(req, false)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxJSON+1))
	switch {
	case err != nil:
		return fmt.Errorf("%w: reading its answer: %w", ErrSilent, err)
	case len(answer) > maxJSON:
		return fmt.Errorf("%w: its answer has more than %d bytes", ErrSilent, maxJSON)
	case out == nil:
		return nil
	}
	if err := json.Unmarshal(answer, out); err != nil {
		return fmt.Errorf("%w: what it says is not an answer: %w", ErrSilent, err)
	}
	return nil
}

// body gives back what a request held when it is closed.
type body struct {
	io.ReadCloser
	end    func()
	leave  func() // the end of the caller's context is not that of the exchange any more
	closed atomic.Bool
}

func (b *body) Close() error {
	if b.closed.Swap(true) {
		return nil
	}
	err := b.ReadCloser.Close()
	b.end()
	return err
}

// connect dials and proves who we are.
func (c *Channel) connect(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	made, err := c.dial(ctx)
	if err != nil {
		return nil, err
	}
	if err := c.prove(ctx, made); err != nil {
		_ = made.Close()
		return nil, fmt.Errorf("proving ourselves: %w", err)
	}
	if want := c.agent.Load(); want != nil {
		if got, err := c.identify(ctx, made); err != nil || !want.Equal(got) {
			_ = made.Close()
			return nil, errors.Join(ErrImpostor, err)
		}
	}
	return c.keep(made)
}

// Meet returns the key that the agent proves to have, by which it is known on every
// connection from then on; nil for an agent of an earlier version, which has none.
// It is for a session's beginning, while nothing else can have taken its place.
func (c *Channel) Meet(ctx context.Context) (ed25519.PublicKey, error) {
	if known := c.agent.Load(); known != nil {
		return *known, nil
	}
	if c.earlier.Load() {
		return nil, nil
	}
	made, err := c.connect(ctx)
	if err != nil {
		return nil, c.explain(ctx, err)
	}
	defer made.Close()
	key, err := c.identify(ctx, made)
	switch {
	case errors.Is(err, ErrEarlier):
		c.earlier.Store(true)
		return nil, nil
	case err != nil:
		return nil, c.explain(ctx, err)
	}
	c.agent.Store(&key)
	return key, nil
}

// identify has the agent at the other end of a new connection prove which it is.
func (c *Channel) identify(ctx context.Context, made net.Conn) (ed25519.PublicKey, error) {
	at, err := netip.ParseAddrPort(made.RemoteAddr().String())
	if err != nil {
		return nil, err
	}
	defer context.AfterFunc(ctx, func() { _ = made.SetDeadline(time.Unix(1, 0)) })()
	if err := made.SetDeadline(time.Now().Add(dialTimeout)); err != nil {
		return nil, err
	}
	nonce := make([]byte, wire.NonceSize)
	_, _ = rand.Read(nonce) // never fails
	asked, err := json.Marshal(wire.Identity{Nonce: nonce})
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequest(http.MethodPost, "http://"+at.String()+"/identity", bytes.NewReader(asked))
	if err != nil {
		return nil, err
	}
	if err := req.Write(made); err != nil {
		return nil, err
	}
	read := bufio.NewReader(io.LimitReader(made, maxHead))
	resp, err := http.ReadResponse(read, req)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return nil, err
	case resp.StatusCode == http.StatusNotFound:
		return nil, ErrEarlier
	case resp.StatusCode != http.StatusOK || resp.Close || read.Buffered() > 0:
		return nil, fmt.Errorf("it does not say who it is, but %q", resp.Status)
	}
	var said wire.Identity
	if err := json.Unmarshal(body, &said); err != nil {
		return nil, fmt.Errorf("what it says it is cannot be read: %w", err)
	}
	if len(said.Key) != ed25519.PublicKeySize || !ed25519.Verify(said.Key, wire.Identified(nonce, at), said.Signature) {
		return nil, errors.New("it does not prove that it is who it says")
	}
	return said.Key, made.SetDeadline(time.Time{})
}

// conn is a connection that does not outlive its channel.
type conn struct {
	net.Conn
	of *Channel
}

// reset has Close break the connection off.
func (c *conn) reset() {
	if t, ok := c.Conn.(interface{ SetLinger(int) error }); ok {
		_ = t.SetLinger(0)
	}
}

// CloseWrite ends one direction.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

func (c *conn) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// keep has Close end a connection.
func (c *Channel) keep(made net.Conn) (net.Conn, error) {
	o := &conn{made, c}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() != nil {
		_ = made.Close()
		return nil, ErrClosed
	}
	c.open[o] = struct{}{}
	return o, nil
}

// dial dials, and dials again while a new sandbox's agent does not listen yet.
func (c *Channel) dial(ctx context.Context) (net.Conn, error) {
	for pause := time.Millisecond; ; pause = min(2*pause, 16*time.Millisecond) {
		conn, err := c.opt.Dial(ctx, c.at)
		if err == nil {
			return conn, nil
		}
		if !errors.Is(err, syscall.ECONNREFUSED) || c.met.Load() || time.Since(c.made) > bootTime {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-c.ctx.Done():
			return nil, ErrClosed
		case <-time.After(pause):
		}
	}
}

func (c *Channel) prove(ctx context.Context, conn net.Conn) error {
	at, err := netip.ParseAddrPort(conn.RemoteAddr().String())
	if err != nil {
		return err
	}
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return err
	}
	challenge := make([]byte, wire.ChallengeSize)
	if _, err := io.ReadFull(conn, challenge); err != nil {
		return err
	}
	// The request follows at once: a refusal shows in its answer.
	if _, err := conn.Write(ed25519.Sign(c.opt.Key, wire.Proof(challenge, at))); err != nil {
		return err
	}
	return conn.SetDeadline(time.Time{})
}

func dial(ctx context.Context, at netip.AddrPort) (net.Conn, error) {
	var d net.Dialer
	d.SetMultipathTCP(false)
	return d.DialContext(ctx, "tcp4", at.String())
}
