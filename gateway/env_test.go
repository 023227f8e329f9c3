package gateway_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"sallyport/audit"
	"sallyport/gateway"
	"sallyport/gateway/access"
	"sallyport/gateway/credential"
	"sallyport/gateway/upstream"
	"sallyport/internal/test/must"
	"sallyport/internal/test/ocsf"
	"sallyport/policy"
)

// TestMain runs the tests with the setting that WebSockets inside of HTTP/2 need.
// golang.org/x/net/http2 reads it when it is initialised, from the environment.
func TestMain(m *testing.M) {
	const setting = "http2xconnect=1"
	if debug := os.Getenv("GODEBUG"); !strings.Contains(debug, setting) {
		os.Setenv("GODEBUG", strings.TrimPrefix(debug+","+setting, ","))
		panic(syscall.Exec("/proc/self/exe", os.Args, os.Environ()))
	}
	// Tests that run side by side wait for timeouts more than for a processor.
	flag.Parse()
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == parallel.DefValue {
		_ = parallel.Value.Set(fmt.Sprint(3 * runtime.GOMAXPROCS(0)))
	}
	goleak.VerifyTestMain(m)
}

var (
	sandboxAddr = netip.MustParseAddr("10.231.0.2")
	refusal     = netip.MustParseAddr("198.18.0.1")
	synthetic   = netip.MustParseAddr("198.18.1.0")
)

// env is a gateway between a sandbox and upstreams, with everything it asks
// played by doubles that write into one trace.
type env struct {
	tags     atomic.Pointer[map[string]string] // of the sandbox; nil: team support
	t        *testing.T
	gateway  *gateway.Gateway
	registry *prometheus.Registry
	ca       *authority // of the sandbox
	public   *authority // of the upstreams
	listener *steered
	proxy    net.Listener
	clients  *access.Clients

	mu       sync.Mutex
	trace    []string
	events   []*audit.Event
	findings []*audit.Event // that are among what is recorded
	appendTo error
	enqueue  error
	decide   func(policy.Input) policy.Decision
	names    map[netip.Addr]string
	denied   []string
	hosts    map[string]string // name or address -> loopback address of its upstream
	rounds   map[upstream.Route]*http.Transport
	fail     error // of every way out
	broker   *credential.Broker
}

// secret is a source with one field.
type secret string

func (s secret) Read(context.Context) (credential.Material, error) {
	if s == "" {
		return credential.Material{}, credential.ErrNoSecret
	}
	return credential.Material{Fields: map[string]credential.Secret{"token": credential.NewSecret(string(s))}, Version: "v7", Accessor: "reading-1"}, nil
}

type option func(*gateway.Options)

// patience is how long a test waits for what has to happen, and has clients, gateway and upstreams
// wait for each other: on a busy machine all of them are slow.
const patience = time.Minute

// speaksFirst is for a server that speaks first, whose client says nothing before.
func speaksFirst(o *gateway.Options) { o.FirstByteTimeout = 200 * time.Millisecond }

func newEnv(t *testing.T, options ...option) *env {
	t.Helper()
	l := &env{
		t:        t,
		registry: prometheus.NewRegistry(),
		ca:       newAuthority(t),
		public:   newAuthority(t),
		names:    map[netip.Addr]string{},
		hosts:    map[string]string{},
		rounds:   map[upstream.Route]*http.Transport{},
		decide:   func(policy.Input) policy.Decision { return policy.Decision{} },
	}
	clients, err := access.OpenClients(t.TempDir() + "/clients.json")
	must.OK(t, err)
	l.clients = clients
	o := gateway.Options{
		Identities:       l,
		Clients:          clients,
		Names:            l,
		Decider:          l,
		Recorder:         l,
		Certificates:     l.ca,
		Upstreams:        l,
		Broker:           l,
		Logger:           slog.New(slog.NewTextHandler(logWriter{t}, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Metrics:          l.registry,
		Refusal:          refusal,
		FirstByteTimeout: patience, // see speaksFirst
		HandshakeTimeout: patience,
	}
	for _, set := range options {
		set(&o)
	}
	l.gateway, err = gateway.New(o)
	must.OK(t, err)
	l.listener = newSteered(t)
	l.proxy, err = net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	var served sync.WaitGroup
	served.Go(func() {
		if err := l.gateway.ServeTransparent(context.Background(), l.listener); err != nil {
			t.Error(err)
		}
	})
	served.Go(func() {
		if err := l.gateway.ServeExplicit(context.Background(), l.proxy); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
		defer cancel()
		_ = l.gateway.Shutdown(ctx)
		served.Wait()
		for _, tr := range l.rounds {
			tr.CloseIdleConnections()
		}
	})
	return l
}

type logWriter struct{ t *testing.T }

func (w logWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

// The doubles.

func (l *env) step(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.trace = append(l.trace, fmt.Sprintf(format, args...))
}

// tag gives the sandbox other tags.
func (l *env) tag(tags map[string]string) { l.tags.Store(&tags) }

func (l *env) ByAddress(a netip.Addr) (gateway.Identity, bool) {
	if a != sandboxAddr {
		return gateway.Identity{}, false
	}
	tags := map[string]string{"team": "support"}
	if t := l.tags.Load(); t != nil {
		tags = *t
	}
	return gateway.Identity{Sandbox: policy.Sandbox{Name: "demo", ID: "sb-1", Session: "s-1", Tags: tags}, Address: a}, true
}

func (l *env) Name(id string, a netip.Addr) (string, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	name, ok := l.names[a]
	return name, ok && id == "sb-1"
}

func (l *env) Denied(id, name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.denied = append(l.denied, id+" "+name)
}

func (l *env) Decide(_ context.Context, in policy.Input) policy.Decision {
	l.mu.Lock()
	decide := l.decide
	l.mu.Unlock()
	return decide(in)
}

func (l *env) Append(_ context.Context, events ...*audit.Event) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.appendTo != nil {
		return l.appendTo
	}
	ocsf.Check(l.t, events...)
	for _, e := range events {
		l.events = append(l.events, e)
		l.trace = append(l.trace, "append "+e.Unmapped.Sallyport.Decision)
	}
	return nil
}

func (l *env) Enqueue(e *audit.Event) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.enqueue != nil {
		return l.enqueue
	}
	ocsf.Check(l.t, e)
	if e.Unmapped.Sallyport.Kind == audit.KindFinding {
		l.findings = append(l.findings, e)
		return nil
	}
	l.events = append(l.events, e)
	if !undecidedYet(e) {
		l.trace = append(l.trace, fmt.Sprintf("enqueue %s %s", e.Unmapped.Sallyport.Kind, e.Unmapped.Sallyport.Decision))
	}
	return nil
}

func (l *env) Lease(ctx context.Context, name string, to credential.Binding) (*credential.Lease, error) {
	l.step("lease %s for %s:%d verified=%v", name, to.Host, to.Port, to.Verified)
	if l.broker == nil {
		return nil, credential.ErrUnknown
	}
	return l.broker.Lease(ctx, name, to)
}

func (l *env) Refresh(ctx context.Context, name string, to credential.Binding, version string) (bool, error) {
	l.step("refresh %s %s for %s:%d", name, version, to.Host, to.Port)
	return l.broker.Refresh(ctx, name, to, version)
}

func (l *env) dial(ctx context.Context, r upstream.Route) (net.Conn, error) {
	l.step("dial %s:%d", r.Host, r.Port)
	if l.fail != nil {
		return nil, l.fail
	}
	addr, ok := l.hosts[r.Host]
	if !ok {
		return nil, &upstream.Error{Kind: upstream.KindLookup, Host: r.Host, Port: r.Port, Err: errors.New("no such host")}
	}
	return new(net.Dialer).DialContext(ctx, "tcp", addr)
}

func (l *env) Dial(ctx context.Context, r upstream.Route) (net.Conn, error) { return l.dial(ctx, r) }

func (l *env) DialTLS(ctx context.Context, r upstream.Route, _ netip.Addr, _ func(net.Conn) error) (*tls.Conn, error) {
	c, err := l.dial(ctx, r)
	if err != nil {
		return nil, err
	}
	return tls.Client(c, &tls.Config{RootCAs: l.public.pool, ServerName: r.Host}), nil
}

func (l *env) RoundTripper(r upstream.Route) (http.RoundTripper, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := r
	key.Upstream = nil
	tr, ok := l.rounds[key]
	if !ok {
		tr = &http.Transport{
			DialContext:        func(ctx context.Context, _, _ string) (net.Conn, error) { return l.dial(ctx, r) },
			TLSClientConfig:    &tls.Config{RootCAs: l.public.pool, ServerName: r.Host},
			DisableCompression: true,
		}
		l.rounds[key] = tr
	}
	return tr, nil
}

// The questions that tests ask of the env.

func (l *env) policy(f func(policy.Input) policy.Decision) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.decide = f
}

// allow lets everything be read and carried.
func allow(policy.Input) policy.Decision {
	return policy.Decision{Action: policy.Allow, Rule: "all", RuleType: "egress", Reason: "allowed", Revision: "r1"}
}

func tunnel(policy.Input) policy.Decision {
	return policy.Decision{Action: policy.Tunnel, Rule: "raw", RuleType: "egress", Reason: "allowed"}
}

// name gives a name its synthetic address.
func (l *env) name(name string) netip.Addr {
	l.mu.Lock()
	defer l.mu.Unlock()
	for a, n := range l.names {
		if n == name {
			return a
		}
	}
	a := synthetic
	for range len(l.names) + 1 {
		a = a.Next()
	}
	l.names[a] = name
	return a
}

// upstream starts a TLS (or plain) server for a name.
func (l *env) upstream(name string, secure bool, h http.HandlerFunc) *httptest.Server {
	l.t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = slog.NewLogLogger(slog.NewTextHandler(logWriter{l.t}, nil), slog.LevelInfo)
	if secure {
		s.TLS = &tls.Config{Certificates: []tls.Certificate{l.public.leaf(name)}}
		s.StartTLS()
	} else {
		s.Start()
	}
	l.t.Cleanup(s.Close)
	l.hosts[name] = s.Listener.Addr().String()
	return s
}

// client is the sandbox's HTTP client: names lead to synthetic addresses, or to
// the refusal address when the resolver does not know them.
func (l *env) client() *http.Client {
	tr := &http.Transport{
		TLSClientConfig:    &tls.Config{RootCAs: l.ca.pool},
		DisableCompression: true,
		DialContext: func(_ context.Context, _, addr string) (net.Conn, error) {
			host, port, _ := net.SplitHostPort(addr)
			to, err := netip.ParseAddr(host)
			if err != nil {
				to = l.address(host)
			}
			return l.listener.dial(sandboxAddr, netip.MustParseAddrPort(net.JoinHostPort(to.String(), port)))
		},
	}
	l.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: patience, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// address is what the sandboxes' resolver says.
func (l *env) address(name string) netip.Addr {
	l.mu.Lock()
	defer l.mu.Unlock()
	for a, n := range l.names {
		if n == name {
			return a
		}
	}
	return refusal
}

// elsewhere is a client of the explicit proxy.
func (l *env) elsewhere(name, token string) *http.Client {
	u := &url.URL{Scheme: "http", Host: l.proxy.Addr().String()}
	if name != "" {
		u.User = url.UserPassword(name, token)
	}
	tr := &http.Transport{Proxy: http.ProxyURL(u), TLSClientConfig: &tls.Config{RootCAs: l.ca.pool}}
	l.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: patience}
}

// raw opens a connection to where the sandbox wants to go.
func (l *env) raw(to string) net.Conn {
	l.t.Helper()
	c, err := l.listener.dial(sandboxAddr, netip.MustParseAddrPort(to))
	must.OK(l.t, err)
	l.t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	return c
}

// secure opens TLS to a name's address with an SNI of the caller's choice.
func (l *env) secure(to, sni string, alpn ...string) (*tls.Conn, error) {
	l.t.Helper()
	c := tls.Client(l.raw(to), &tls.Config{RootCAs: l.ca.pool, ServerName: sni, InsecureSkipVerify: sni == "", NextProtos: alpn})
	return c, c.Handshake()
}

// send writes a raw request and reads the response.
func send(t *testing.T, c net.Conn, request string) (*http.Response, string) {
	t.Helper()
	if _, err := io.WriteString(c, request); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	must.OK(t, err)
	return resp, text(t, resp)
}

func text(t *testing.T, resp *http.Response) string {
	t.Helper()
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("reading the body: %v", err)
	}
	return string(b)
}

func get(t *testing.T, c *http.Client, url string) (*http.Response, string) {
	t.Helper()
	resp, err := c.Get(url)
	must.OK(t, err)
	return resp, text(t, resp)
}

// steps returns the trace so far.
func (l *env) steps() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.trace)
}

// dials counts the ways out that were taken.
func (l *env) dials() int {
	n := 0
	for _, s := range l.steps() {
		if strings.HasPrefix(s, "dial ") {
			n++
		}
	}
	return n
}

// found are the findings so far.
func (l *env) found() []*audit.Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.findings)
}

// await returns the events once there are n, but for those that only a slow machine makes: of
// connections about which nothing is decided yet.
func (l *env) await(n int) []*audit.Event {
	l.t.Helper()
	decided := func() []*audit.Event {
		l.mu.Lock()
		defer l.mu.Unlock()
		return slices.DeleteFunc(slices.Clone(l.events), undecidedYet)
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(2 * time.Millisecond) {
		events := decided()
		if len(events) >= n {
			time.Sleep(20 * time.Millisecond) // none too many
			if events = decided(); len(events) != n {
				l.t.Fatalf("%d events, want %d: %v", len(events), n, l.steps())
			}
			return events
		}
		if time.Now().After(deadline) {
			l.t.Fatalf("%d events, want %d: %v", len(events), n, l.steps())
		}
	}
}

// undecidedYet tells whether an event is of a connection about which nothing was decided for some
// seconds.
func undecidedYet(e *audit.Event) bool {
	x := &e.Unmapped.Sallyport
	return x.Kind == audit.KindConnection && x.Reason == "nothing is decided yet about what the connection has sent"
}
