package gateway_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"sallyport/audit"
	"sallyport/gateway"
	"sallyport/gateway/credential"
	"sallyport/gateway/upstream"
	"sallyport/internal/test/must"
	"sallyport/policy"
)

// netEnv is an env whose way out is the real one: names are looked up at a DNS
// server of the test, addresses are classified, certificates verified, and
// connections pooled.
type netEnv struct {
	*env
	pool  *upstream.Pool
	zone  *zone
	reach *policy.Upstream // how a rule says that the test's hosts are reached
	token string           // of the client "ci" of the explicit proxy
	quiet bool             // what the origins say goes nowhere
	asks  *tls.Config      // how origins ask for client certificates, nil: not

	proxied atomic.Int64 // connections made with connect
}

func newNetEnv(t *testing.T, options ...option) *netEnv {
	t.Helper()
	w := &netEnv{
		pool: upstream.New(upstream.Options{
			Logger: slog.New(slog.NewTextHandler(logWriter{t}, nil)), DialTimeout: patience, HandshakeTimeout: patience,
		}),
		zone: newZone(t),
	}
	t.Cleanup(w.pool.Close) // after the gateway's own end
	w.env = newEnv(t, append([]option{func(o *gateway.Options) { o.Upstreams = w.pool }}, options...)...)
	roots := filepath.Join(t.TempDir(), "roots.pem")
	must.OK(t, os.WriteFile(roots, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: w.public.cert.Raw}), 0o600))
	w.reach = &policy.Upstream{Addresses: []string{"127.0.0.0/8"}, Roots: roots, Resolver: w.zone.addr}
	_, token, err := w.clients.Add("ci", nil)
	must.OK(t, err)
	w.token = token
	w.policy(w.allow)
	return w
}

// allow lets everything be read and carried to where the zone says.
func (w *netEnv) allow(in policy.Input) policy.Decision {
	d := allow(in)
	d.Upstream = w.reach
	return d
}

func (w *netEnv) tunnel(in policy.Input) policy.Decision {
	d := tunnel(in)
	d.Upstream = w.reach
	return d
}

// credential makes a secret that is bound to every host.
func (w *netEnv) credential(name, value string) {
	w.broker = credential.New(credential.Options{
		Sources: map[string]credential.Source{name: secret(value)},
		Bound:   func(string, string, uint16) bool { return true },
	})
}

// zone is a DNS server that has 127.0.0.1 for every name, unless a test says
// otherwise.
type zone struct {
	addr string

	mu     sync.Mutex
	asked  []string
	others map[string]net.IP
}

func newZone(t *testing.T) *zone {
	t.Helper()
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	must.OK(t, err)
	z := &zone{addr: pc.LocalAddr().String(), others: map[string]net.IP{}}
	s := &dns.Server{PacketConn: pc, Handler: z}
	done := make(chan struct{})
	go func() { defer close(done); _ = s.ActivateAndServe() }()
	t.Cleanup(func() { pc.Close(); <-done })
	return z
}

func (z *zone) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	m := new(dns.Msg).SetReply(q)
	question := q.Question[0]
	name := strings.ToLower(strings.TrimSuffix(question.Name, "."))
	z.mu.Lock()
	z.asked = append(z.asked, name)
	ip, ok := z.others[name]
	z.mu.Unlock()
	if !ok {
		ip = net.IPv4(127, 0, 0, 1)
	}
	if question.Qtype == dns.TypeA {
		m.Answer = []dns.RR{&dns.A{
			Hdr: dns.RR_Header{Name: question.Name, Rrtype: dns.TypeA, Class: dns.ClassINET}, A: ip,
		}}
	}
	_ = w.WriteMsg(m)
}

func (z *zone) set(name string, ip net.IP) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.others[name] = ip
}

func (z *zone) names() []string {
	z.mu.Lock()
	defer z.mu.Unlock()
	return slices.Clone(z.asked)
}

// origin is an upstream that speaks one version of HTTP.
type origin struct {
	name  string
	port  uint16
	conns atomic.Int64 // opened so far
	open  atomic.Int64
	mux   *http.ServeMux
}

// origin starts a server for a name. version is "h1" or "h2".
func (w *netEnv) origin(name, version string, secure bool) *origin {
	w.t.Helper()
	if !secure {
		return w.originOf(name, version, nil)
	}
	leaf := w.public.leaf(name)
	return w.originOf(name, version, &leaf)
}

// originOf starts a server with a certificate, if any.
func (w *netEnv) originOf(name, version string, leaf *tls.Certificate) *origin {
	w.t.Helper()
	secure := leaf != nil
	var log slog.Handler = slog.NewTextHandler(logWriter{w.t}, nil)
	if w.quiet {
		log = slog.DiscardHandler
	}
	o := &origin{name: name, mux: http.NewServeMux()}
	s := &http.Server{
		Handler: o.mux, Protocols: new(http.Protocols),
		ErrorLog:    slog.NewLogLogger(log, slog.LevelInfo),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
		ConnState: func(_ net.Conn, state http.ConnState) {
			switch state {
			case http.StateNew:
				o.conns.Add(1)
				o.open.Add(1)
			case http.StateClosed, http.StateHijacked:
				o.open.Add(-1)
			}
		},
	}
	s.Protocols.SetHTTP1(version == "h1")
	s.Protocols.SetHTTP2(version == "h2" && secure)
	s.Protocols.SetUnencryptedHTTP2(version == "h2" && !secure)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(w.t, err)
	o.port = addrPort(ln.Addr()).Port()
	if secure {
		s.TLSConfig = &tls.Config{Certificates: []tls.Certificate{*leaf}}
		if w.asks != nil {
			s.TLSConfig.ClientAuth, s.TLSConfig.ClientCAs = w.asks.ClientAuth, w.asks.ClientCAs
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if secure {
			_ = s.ServeTLS(ln, "", "")
		} else {
			_ = s.Serve(ln)
		}
	}()
	w.t.Cleanup(func() { s.Close(); <-done })
	w.name(name)
	return o
}

func addrPort(a net.Addr) netip.AddrPort { return a.(*net.TCPAddr).AddrPort() }

func (o *origin) handle(path string, h http.HandlerFunc) { o.mux.HandleFunc(path, h) }

// url of a path at the origin.
func (o *origin) url(scheme, path string) string {
	return fmt.Sprintf("%s://%s:%d%s", scheme, o.name, o.port, path)
}

// dialler connects a sandbox's client to where it wants to go.
type dialler func(ctx context.Context, network, addr string) (net.Conn, error)

// steer dials as a sandbox does, whose names lead to synthetic addresses.
func (w *netEnv) steer(_ context.Context, _, addr string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	to, err := netip.ParseAddr(host)
	if err != nil {
		to = w.address(host)
	}
	return w.listener.dial(sandboxAddr, netip.MustParseAddrPort(net.JoinHostPort(to.String(), port)))
}

// connect dials through a CONNECT of the explicit proxy.
func (w *netEnv) connect(ctx context.Context, _, addr string) (net.Conn, error) {
	w.proxied.Add(1)
	c, err := new(net.Dialer).DialContext(ctx, "tcp", w.proxy.Addr().String())
	if err != nil {
		return nil, err
	}
	auth := base64.StdEncoding.EncodeToString([]byte("ci:" + w.token))
	fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %s\r\nProxy-Authorization: Basic %s\r\n\r\n", addr, addr, auth)
	r := bufio.NewReader(c)
	resp, err := http.ReadResponse(r, &http.Request{Method: http.MethodConnect})
	if err != nil || resp.StatusCode != 200 || r.Buffered() > 0 {
		c.Close()
		return nil, fmt.Errorf("CONNECT %s: %v %v", addr, resp, err)
	}
	return c, nil
}

// agent is a client in a sandbox that speaks one version of HTTP. With absolute
// it is configured for the explicit proxy as HTTP clients are.
func (w *netEnv) agent(version string, secure bool, dial dialler, absolute bool) *http.Client {
	tr := &http.Transport{
		TLSClientConfig:       &tls.Config{RootCAs: w.ca.pool},
		DisableCompression:    true,
		DialContext:           dial,
		Protocols:             new(http.Protocols),
		ExpectContinueTimeout: patience,
		MaxIdleConnsPerHost:   100,
	}
	tr.Protocols.SetHTTP1(version == "h1")
	tr.Protocols.SetHTTP2(version == "h2" && secure)
	tr.Protocols.SetUnencryptedHTTP2(version == "h2" && !secure)
	if absolute {
		tr.DialContext = nil
		tr.Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: w.proxy.Addr().String(), User: url.UserPassword("ci", w.token)})
	}
	w.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// settled waits until every allowed decision has its completion, and returns
// the decisions with their completions.
func (w *netEnv) settled(t *testing.T) (decisions []*audit.Event, completions map[string]*audit.Event) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		decisions, completions = nil, map[string]*audit.Event{}
		allowed := 0
		w.mu.Lock()
		events := slices.Clone(w.events)
		w.mu.Unlock()
		for _, e := range events {
			if e.Unmapped.Sallyport.Kind == audit.KindCompletion {
				if completions[e.Metadata.CorrelationUID] != nil {
					t.Fatalf("two completions of %s", e.Metadata.CorrelationUID)
				}
				completions[e.Metadata.CorrelationUID] = e
				continue
			}
			if e.Unmapped.Sallyport.Kind == audit.KindConnection {
				continue
			}
			decisions = append(decisions, e)
			if e.Action == audit.ActionAllowed {
				allowed++
			}
		}
		if len(completions) == allowed {
			return decisions, completions
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d allowed, %d completed", allowed, len(completions))
		}
	}
}
