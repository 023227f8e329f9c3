package upstream

import (
	"context"
	"crypto/tls"
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

	"sallyport/internal/test/must"
)

// multiplexing is a pool with a route to a site of HTTP/2.
func multiplexing(t *testing.T, o Options, limit int, h http.Handler) (*Pool, *site, Route) {
	t.Helper()
	ca := newAuthority(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	s := &site{}
	server := &http.Server{
		Handler: h, HTTP2: &http.HTTP2Config{MaxConcurrentStreams: limit},
		TLSConfig: &tls.Config{NextProtos: []string{"h2"}, Certificates: []tls.Certificate{ca.host(t, []string{"127.0.0.1"}, nil)}},
		ConnState: func(_ net.Conn, st http.ConnState) {
			switch st {
			case http.StateNew:
				s.conns.Add(1)
			case http.StateClosed:
				s.closed.Add(1)
			}
		},
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.ServeTLS(l, "", "") }()
	t.Cleanup(func() { server.Close(); <-done })
	p := newPool(t, o)
	return p, s, Route{Sandbox: "a", Host: "127.0.0.1", Port: portOf(t, l.Addr()), TLS: true, Upstream: loopback(nil, ca.file(t))}
}

// all makes n requests at once.
func all(t *testing.T, p *Pool, r Route, n int, body bool) {
	t.Helper()
	var work sync.WaitGroup
	for i := range n {
		work.Go(func() {
			rt, err := p.RoundTripper(r)
			if err != nil {
				t.Error(err)
				return
			}
			req := request(t, t.Context(), r)
			if body {
				req.Method, req.Body = http.MethodPost, io.NopCloser(strings.NewReader(fmt.Sprint(i)))
			}
			resp, err := rt.RoundTrip(req)
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			if _, err := io.ReadAll(resp.Body); err != nil || resp.ProtoMajor != 2 {
				t.Errorf("%s %v", resp.Proto, err)
			}
		})
	}
	work.Wait()
}

func TestManyRequestsOpenOneConnection(t *testing.T) {
	t.Parallel()
	p, s, r := multiplexing(t, Options{}, 250, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		time.Sleep(20 * time.Millisecond)
	}))
	all(t, p, r, 100, false)
	all(t, p, r, 100, true)
	if n := s.conns.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
}

// An upstream that takes few requests at once gets more connections, and each
// request is answered.
func TestUpstreamOfFewStreams(t *testing.T) {
	t.Parallel()
	var most, now atomic.Int64
	p, s, r := multiplexing(t, Options{}, 3, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n := now.Add(1); n > most.Load() {
			most.Store(n)
		}
		time.Sleep(10 * time.Millisecond)
		now.Add(-1)
	}))
	all(t, p, r, 40, false)
	all(t, p, r, 40, false)
	if n := s.conns.Load(); n < 2 || n > 40 {
		t.Errorf("%d connections for requests of which three go on one", n)
	}
	t.Logf("%d connections, %d requests at once", s.conns.Load(), most.Load())
}

// Requests that wait for a connection another opens learn with it that there is none: one
// after the other they would wait for hours.
func TestFailureToConnectIsShared(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	defer l.Close() // takes connections, and says nothing
	p := newPool(t, Options{HandshakeTimeout: 300 * time.Millisecond})
	r := Route{Sandbox: "a", Host: "127.0.0.1", Port: portOf(t, l.Addr()), TLS: true, Upstream: loopback(nil, "")}
	start := time.Now()
	var work sync.WaitGroup
	for range 40 { // one after the other they would take twelve seconds
		work.Go(func() {
			if _, err := get(t, p, r); kind(t, err) != KindTimeout {
				t.Errorf("got %v", err)
			}
		})
	}
	work.Wait()
	if took := time.Since(start); took > 6*time.Second {
		t.Errorf("took %v", took)
	}
}

// The request that opens a connection for all may go away: the others go on.
func TestOpenerThatGoesAway(t *testing.T) {
	t.Parallel()
	held, release := make(chan struct{}, 1), make(chan struct{})
	ca := newAuthority(t)
	s := newSite(t, "127.0.0.1:0", &tls.Config{
		NextProtos: []string{"h2"}, Certificates: []tls.Certificate{ca.host(t, []string{"127.0.0.1"}, nil)},
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			select {
			case held <- struct{}{}:
				<-release // the first one only
			default:
			}
			return nil, nil
		},
	}, hello)
	p := newPool(t, Options{})
	r := Route{Sandbox: "a", Host: "127.0.0.1", Port: s.port, TLS: true, Upstream: loopback(nil, ca.file(t))}
	rt, err := p.RoundTripper(r)
	must.OK(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	first, second := make(chan error, 1), make(chan error, 1)
	go func() { _, err := rt.RoundTrip(request(t, ctx, r)); first <- err }()
	<-held
	held <- struct{}{} // nobody else is held
	go func() { _, err := get(t, p, r); second <- err }()
	time.Sleep(50 * time.Millisecond)
	cancel()
	if err := <-first; kind(t, err) != KindCanceled {
		t.Errorf("who went away got %v", err)
	}
	if err := <-second; err != nil {
		t.Errorf("who waited got %v", err)
	}
	close(release)
}

func TestIdleMultiplexedConnectionIsClosed(t *testing.T) {
	t.Parallel()
	p, s, r := multiplexing(t, Options{IdleTimeout: 3 * time.Second}, 250, hello)
	all(t, p, r, 5, false)
	s.await(t, 1)
	all(t, p, r, 5, false)
	if n := s.conns.Load(); n != 2 {
		t.Errorf("%d connections", n)
	}
}

// A connection is closed also when a request that was given up before it began
// had a place on it as its time was up.
func TestIdleConnectionThatWasNearlyUsedIsClosed(t *testing.T) {
	t.Parallel()
	const idle = 50 * time.Millisecond
	for i := range 10 { // the library throws a coin
		p, s, r := multiplexing(t, Options{IdleTimeout: idle}, 250, hello)
		all(t, p, r, 1, false)
		rt, err := p.RoundTripper(r)
		must.OK(t, err)
		m := rt.(*destination).transport.multi
		ctx, cancel := context.WithCancel(t.Context())
		tr := &h2Request{Context: ctx, multiplexer: m}
		again := tr.request(request(t, ctx, r))
		c, err := m.GetClientConn(again, "")
		if err != nil { // a busy machine: its time is up already
			cancel()
			continue
		}
		time.Sleep(2 * idle)
		cancel()
		if _, err := c.RoundTrip(again); err == nil {
			t.Fatal("answered")
		}
		tr.end()
		for deadline := time.Now().Add(patience); s.closed.Load() < 1; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("connection %d stays open", i)
			}
		}
	}
}

func TestForgetEndsRequestsUnderWay(t *testing.T) {
	t.Parallel()
	begun := make(chan struct{}, 1)
	p, s, r := multiplexing(t, Options{}, 250, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		begun <- struct{}{}
		<-r.Context().Done()
	}))
	failed := make(chan error, 1)
	go func() { _, err := get(t, p, r); failed <- err }()
	<-begun
	p.Forget("a")
	select {
	case err := <-failed:
		if err == nil {
			t.Error("answered")
		}
	case <-time.After(patience / 4):
		t.Error("a request of a forgotten sandbox goes on")
	}
	s.await(t, 1)
}

// A destination that makes room for another ends when its last response has.
func TestEvictedDestinationEndsWithItsLastResponse(t *testing.T) {
	t.Parallel()
	begun, finish := make(chan struct{}, 1), make(chan struct{})
	p, s, r := multiplexing(t, Options{}, 250, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		begun <- struct{}{}
		<-finish
		io.WriteString(w, "whole")
	}))
	got := make(chan string, 1)
	go func() {
		body, err := get(t, p, r)
		got <- fmt.Sprint(body, err)
	}()
	<-begun
	for i := range maxDestinations {
		other := r
		other.Credential = fmt.Sprint(i)
		if _, err := p.RoundTripper(other); err != nil {
			t.Fatal(err)
		}
	}
	close(finish)
	if s := <-got; s != "whole<nil>" {
		t.Errorf("got %s", s)
	}
	s.await(t, 1)
}

// A connection that an upstream ends again and again is not opened for ever.
func TestUpstreamThatLetsNobodyIn(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{NextProtos: []string{"h2"}, Certificates: []tls.Certificate{ca.host(t, []string{"127.0.0.1"}, nil)}})
	must.OK(t, err)
	var conns atomic.Int64
	var work sync.WaitGroup
	work.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns.Add(1)
			work.Go(func() {
				defer c.Close()
				f := http2.NewFramer(c, c)
				if _, err := io.ReadFull(c, make([]byte, len(http2.ClientPreface))); err != nil {
					return
				}
				_ = f.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 0})
				_ = f.WriteGoAway(0, http2.ErrCodeNo, nil)
				_, _ = io.Copy(io.Discard, c)
			})
		}
	})
	defer work.Wait()
	defer l.Close()
	p := newPool(t, Options{})
	r := Route{Sandbox: "a", Host: "127.0.0.1", Port: portOf(t, l.Addr()), TLS: true, Upstream: loopback(nil, ca.file(t))}
	if _, err := get(t, p, r); err == nil {
		t.Error("answered")
	}
	if n := conns.Load(); n < 1 || n > 2*maxOpened {
		t.Errorf("%d connections", n)
	}
	p.Close()
}

// A connection for whose requests nobody pays attention leaves the others alone,
// and holds no more than its window.
func TestStalledResponseLeavesOthersAlone(t *testing.T) {
	t.Parallel()
	var sent atomic.Int64
	p, s, r := multiplexing(t, Options{}, 250, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for chunk := make([]byte, 1<<16); r.Header.Get("X-Endless") != ""; {
			n, err := w.Write(chunk)
			if sent.Add(int64(n)); err != nil {
				return
			}
		}
	}))
	rt, err := p.RoundTripper(r)
	must.OK(t, err)
	const stalled = 40
	for range stalled {
		req := request(t, t.Context(), r)
		req.Header.Set("X-Endless", "1")
		resp, err := rt.RoundTrip(req)
		must.OK(t, err)
		defer resp.Body.Close()
	}
	must.Soon(t, "the windows are full", func() bool { return sent.Load() >= stalled*streamWindow })
	last := int64(-1)
	for sent.Load() != last {
		last = sent.Load()
		time.Sleep(100 * time.Millisecond)
	}
	if last < stalled*streamWindow || last > stalled*(streamWindow+1<<17) {
		t.Errorf("%d bytes were sent to %d readers that do not read", last, stalled)
	}
	all(t, p, r, 20, false)
	if n := s.conns.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
}

// An upstream that lets a client send without end and takes nothing holds up the
// request, and neither what else is asked for nor the sandbox's end.
func TestUpstreamThatTakesNothing(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{NextProtos: []string{"h2"}, Certificates: []tls.Certificate{ca.host(t, []string{"127.0.0.1"}, nil)}})
	must.OK(t, err)
	var work sync.WaitGroup
	over := make(chan struct{})
	work.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			work.Go(func() {
				defer c.Close()
				f := http2.NewFramer(c, c)
				if _, err := io.ReadFull(c, make([]byte, len(http2.ClientPreface))); err != nil {
					return
				}
				_ = f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1<<31 - 1})
				_ = f.WriteWindowUpdate(0, 1<<31-1-65535)
				<-over
			})
		}
	})
	defer work.Wait()
	defer l.Close()
	defer close(over)
	p := newPool(t, Options{})
	r := Route{Sandbox: "a", Host: "127.0.0.1", Port: portOf(t, l.Addr()), TLS: true, Upstream: loopback(nil, ca.file(t))}
	rt, err := p.RoundTripper(r)
	must.OK(t, err)
	var read atomic.Int64
	req := request(t, t.Context(), r)
	req.Method, req.Body = http.MethodPost, io.NopCloser(counting(func(p []byte) (int, error) { read.Add(int64(len(p))); return len(p), nil }))
	failed := make(chan error, 1)
	go func() { _, err := rt.RoundTrip(req); failed <- err }()
	for last := int64(-1); last == 0 || read.Load() != last; time.Sleep(100 * time.Millisecond) {
		last = read.Load()
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		rt.(*destination).transport.closeIdle()
		p.Forget("a")
	}()
	select {
	case <-done:
	case <-time.After(patience):
		t.Error("forgetting waits for the upstream")
	}
	select {
	case err := <-failed:
		if err == nil {
			t.Error("answered")
		}
	case <-time.After(patience):
		t.Error("the request goes on")
	}
}

type counting func([]byte) (int, error)

func (f counting) Read(p []byte) (int, error) { return f(p) }

// A request whose connection ends between the choice and the sending has not
// been sent: it goes on another, with its body.
func TestRequestThatWasNotSentKeepsItsBody(t *testing.T) {
	t.Parallel()
	p, s, r := multiplexing(t, Options{}, 250, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) }))
	all(t, p, r, 1, true)
	rt, err := p.RoundTripper(r)
	must.OK(t, err)
	m := rt.(*destination).transport.multi
	m.mu.Lock()
	c := m.conns[0]
	c.trips++
	m.mu.Unlock()
	if !c.ReserveNewRequest() {
		t.Fatal("no room")
	}
	c.SetDoNotReuse()
	req := request(t, t.Context(), r)
	body := &closer{Reader: strings.NewReader("whole")}
	req.Method, req.Body = http.MethodPost, body
	if _, err := m.RoundTrip(req, c, nil); !errors.Is(err, errNone) || body.closed {
		t.Fatalf("%v, body closed %v", err, body.closed)
	}
	resp, err := rt.RoundTrip(req)
	must.OK(t, err)
	defer resp.Body.Close()
	if got, err := io.ReadAll(resp.Body); string(got) != "whole" || err != nil {
		t.Errorf("%q %v", got, err)
	}
	if n := s.conns.Load(); n != 2 {
		t.Errorf("%d connections", n)
	}
}
