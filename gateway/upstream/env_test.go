package upstream

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"go.uber.org/goleak"

	"sallyport/internal/test/must"
	"sallyport/policy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// authority signs certificates for test hosts.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	a := &authority{}
	c := &x509.Certificate{
		Subject: pkix.Name{CommonName: "test root"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	pair := a.sign(t, c)
	a.cert, a.key = pair.Leaf, pair.PrivateKey.(*ecdsa.PrivateKey)
	return a
}

func (a *authority) sign(t testing.TB, c *x509.Certificate) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must.OK(t, err)
	c.SerialNumber = big.NewInt(time.Now().UnixNano())
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	must.OK(t, err)
	leaf, err := x509.ParseCertificate(der)
	must.OK(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// host makes a certificate for names and addresses, changed by edit if given.
func (a *authority) host(t testing.TB, names []string, edit func(*x509.Certificate)) tls.Certificate {
	c := &x509.Certificate{
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	for _, n := range names {
		if ip := net.ParseIP(n); ip != nil {
			c.IPAddresses = append(c.IPAddresses, ip)
		} else {
			c.DNSNames = append(c.DNSNames, n)
		}
	}
	if edit != nil {
		edit(c)
	}
	return a.sign(t, c)
}

// file writes the root where a rule can name it.
func (a *authority) file(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "roots.pem")
	a.write(t, path)
	return path
}

func (a *authority) write(t testing.TB, path string) {
	t.Helper()
	must.OK(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw}), 0o600))
}

// site is an HTTP server that counts connections.
type site struct {
	*httptest.Server
	conns   atomic.Int64 // so far
	closed  atomic.Int64
	resumed atomic.Int64
	port    uint16
}

func newSite(t testing.TB, address string, c *tls.Config, h http.Handler) *site {
	t.Helper()
	l, err := net.Listen("tcp", address)
	must.OK(t, err)
	s := &site{}
	s.Server = &httptest.Server{Listener: l, Config: &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.TLS != nil && r.TLS.DidResume {
				s.resumed.Add(1)
			}
			h.ServeHTTP(w, r)
		}),
		ErrorLog: log.New(io.Discard, "", 0),
		ConnState: func(_ net.Conn, st http.ConnState) {
			switch st {
			case http.StateNew:
				s.conns.Add(1)
			case http.StateClosed, http.StateHijacked:
				s.closed.Add(1)
			}
		},
	}}
	if c != nil {
		s.TLS, s.EnableHTTP2 = c, slices.Contains(c.NextProtos, "h2")
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	s.port = portOf(t, l.Addr())
	return s
}

// patience is how long a test waits for what has to happen.
const patience = time.Minute

// await waits until n connections have been closed.
func (s *site) await(t testing.TB, n int64) {
	t.Helper()
	for deadline := time.Now().Add(patience); s.closed.Load() < n; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d connections have been closed, want %d", s.closed.Load(), n)
		}
	}
}

func portOf(t testing.TB, a net.Addr) uint16 {
	t.Helper()
	ap, err := netip.ParseAddrPort(a.String())
	must.OK(t, err)
	return ap.Port()
}

var hello = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "hello "+r.Host) })

// zone is a DNS server whose answers a test scripts.
type zone struct {
	addr string

	mu      sync.Mutex
	answers map[string][][]string // name -> addresses, one element per look-up; the last stays
	asked   map[string]int
	slow    map[string]chan struct{} // name -> closed when it may be answered
	busy    sync.WaitGroup
}

func newZone(t testing.TB) *zone {
	t.Helper()
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	must.OK(t, err)
	z := &zone{addr: pc.LocalAddr().String(), answers: map[string][][]string{}, asked: map[string]int{}, slow: map[string]chan struct{}{}}
	s := &dns.Server{PacketConn: pc, Handler: z}
	done := make(chan struct{})
	go func() { defer close(done); s.ActivateAndServe() }()
	t.Cleanup(func() { pc.Close(); <-done })
	return z
}

func (z *zone) set(name string, answers ...[]string) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.answers[name] = answers
}

// hold keeps the answers for a name back until the test ends.
func (z *zone) hold(t testing.TB, name string) {
	z.mu.Lock()
	defer z.mu.Unlock()
	c := make(chan struct{})
	z.slow[name] = c
	t.Cleanup(func() { close(c); z.busy.Wait() })
}

func (z *zone) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	m := new(dns.Msg).SetReply(q)
	name := strings.ToLower(strings.TrimSuffix(q.Question[0].Name, "."))
	z.mu.Lock()
	slow := z.slow[name]
	z.busy.Add(1)
	defer z.busy.Done()
	z.mu.Unlock()
	if slow != nil {
		<-slow
	}
	z.mu.Lock()
	all, ok := z.answers[name]
	if !ok {
		m.Rcode = dns.RcodeNameError
	}
	if q.Question[0].Qtype == dns.TypeA {
		i := z.asked[name]
		z.asked[name]++
		if ok {
			for _, a := range all[min(i, len(all)-1)] {
				m.Answer = append(m.Answer, &dns.A{
					Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET}, A: net.ParseIP(a),
				})
			}
		}
	}
	z.mu.Unlock()
	w.WriteMsg(m)
}

func newPool(t testing.TB, o Options) *Pool {
	t.Helper()
	p := New(o)
	t.Cleanup(p.Close)
	return p
}

// get makes one request over a route and returns the body.
func get(t testing.TB, p *Pool, r Route) (string, error) {
	t.Helper()
	rt, err := p.RoundTripper(r)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	resp, err := rt.RoundTrip(request(t, ctx, r))
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

func request(t testing.TB, ctx context.Context, r Route) *http.Request {
	t.Helper()
	scheme := "http"
	if r.TLS {
		scheme = "https"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+net.JoinHostPort(r.Host, strconv.Itoa(int(r.Port)))+"/", nil)
	must.OK(t, err)
	return req
}

func kind(t testing.TB, err error) Kind {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("%v (%T) is not an *Error", err, err)
	}
	return e.Kind
}

func loopback(z *zone, roots string) *policy.Upstream {
	u := &policy.Upstream{Addresses: []string{"127.0.0.0/8"}, Roots: roots}
	if z != nil {
		u.Resolver = z.addr
	}
	return u
}
