package bypass

import (
	"bufio"
	"crypto/sha1"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"sallyport/internal/test/must"
	"sallyport/internal/test/testnet"
)

// upstream is the one test host. It answers every request for every name, and
// remembers.
type upstream struct {
	ca   *testnet.CA
	host *testnet.Host
	zone *testnet.Zone
	key  string

	opened *testnet.Capture // TCP connections and datagrams that came, however they ended

	mu    sync.Mutex
	seen  []string
	kept  string   // the credential, once it has come
	conns []string // the gateway's end of each request's connection
	begun int      // answers that never get on
	ended int      // and those whose requests were broken off
}

func newUpstream(t *testing.T, key string) *upstream {
	t.Helper()
	u := &upstream{key: key}
	var err error
	if u.ca, err = testnet.NewCA(); err != nil {
		t.Fatal(err)
	}
	u.host = testnet.NewHost(t, testnet.Config{
		Name: "upstream", Address: netip.MustParsePrefix(upstreamAddress + "/24"),
		Also: []netip.Prefix{netip.MustParsePrefix(upstreamAddress6 + "/64")},
	})
	names := []string{api, other, denied, unlisted, idn, pinned, rawHost}
	zone := map[string][]netip.Addr{}
	for _, n := range names {
		zone[n] = addrs(upstreamAddress)
	}
	if u.zone, err = u.host.DNS(zone); err != nil {
		t.Fatal(err)
	}
	names = append(names, "*.rebound.example.test", "*.many.example.test", upstreamAddress)
	must.OK(t, u.serve(t, names))
	must.OK(t, u.hear(t))
	if u.opened, err = u.host.Capture(opening); err != nil {
		t.Fatal(err)
	}
	return u
}

// opening picks TCP's SYN (RFC 9293), UDP, and all that is not IP.
func opening(f testnet.Frame) bool {
	const syn, ack = 2, 16
	switch {
	case f.To.Addr() == netip.MustParseAddr("ff02::16"): // multicast listeners: the lab's own
		return false
	case f.Protocol != 6:
		return true
	case f.Type == 0x0800 && len(f.Raw) > 14+20+13:
		return f.Raw[14+int(f.Raw[14]&15)*4+13]&(syn|ack) == syn
	}
	return true
}

// serve has HTTP/1.1 only where there is TLS: what can be smuggled, can be
// smuggled there. Without TLS it takes HTTP/2 by prior knowledge too.
func (u *upstream) serve(t *testing.T, names []string) error {
	leaf, err := u.ca.Leaf(names...)
	if err != nil {
		return err
	}
	for port, set := range map[int]func(*http.Protocols){
		443:  func(*http.Protocols) {},
		80:   func(p *http.Protocols) { p.SetUnencryptedHTTP2(true) },
		8080: func(p *http.Protocols) { p.SetUnencryptedHTTP2(true) },
	} {
		l, err := u.host.Listen(port)
		if err != nil {
			return err
		}
		if port == 443 {
			l = tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{leaf}})
		}
		protocols := new(http.Protocols)
		protocols.SetHTTP1(true)
		set(protocols)
		s := &http.Server{Handler: u, Protocols: protocols, ErrorLog: log.New(io.Discard, "", 0)}
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = s.Serve(l)
		}()
		t.Cleanup(func() { _ = s.Close(); <-done })
	}
	return nil
}

// hear reads a line of whatever protocol, and answers it.
func (u *upstream) hear(t *testing.T) error {
	l, err := u.host.Listen(2222)
	if err != nil {
		return err
	}
	var work sync.WaitGroup
	work.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			work.Go(func() {
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(time.Minute))
				line, err := bufio.NewReader(c).ReadString('\n')
				if err != nil {
					return
				}
				u.mu.Lock()
				u.seen, u.conns = append(u.seen, fmt.Sprintf("RAW %s %q", rawHost, line)), append(u.conns, c.RemoteAddr().String())
				u.mu.Unlock()
				_, _ = io.WriteString(c, "heard\n")
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); work.Wait() })
	return nil
}

// ServeHTTP implements http.Handler.
func (u *upstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
	u.record(r, body, err)
	if how, ok := strings.CutPrefix(r.URL.Path, "/v1/quoted/"); ok {
		u.mu.Lock()
		kept := u.kept
		u.mu.Unlock()
		quote(w, how, kept)
		return
	}
	switch r.URL.Path {
	case "/v1/echo": // the credential, of which any slice can be had
		http.ServeContent(w, r, "echo.txt", time.Time{}, strings.NewReader(r.Header.Get("Authorization")))
	case "/v1/redirect":
		w.Header().Set("Location", "https://"+r.URL.Query().Get("to")+"/v1/landed")
		w.WriteHeader(http.StatusTemporaryRedirect)
	case "/v1/websocket":
		websocket(w, r)
	case "/v1/drip":
		u.drip(w, r)
	case "/v1/once":
		w.Header().Set("Connection", "close")
		_, _ = io.WriteString(w, "upstream\n")
	default:
		_, _ = io.WriteString(w, "upstream\n")
	}
}

// record keeps "METHOD host target credential", and the body where there is one.
func (u *upstream) record(r *http.Request, body []byte, err error) {
	line := fmt.Sprintf("%s %s %s %s", r.Method, r.Host, r.RequestURI, u.credential(r))
	if err != nil {
		line += " broken"
	} else if len(body) > 0 {
		line += fmt.Sprintf(" %q", body)
	}
	for _, name := range []string{"Range", "Upgrade", "Transfer-Encoding", "X-Smuggled"} {
		if v := r.Header.Get(name); v != "" {
			line += " " + name + ":" + v
		}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.seen = append(u.seen, line)
	if sent, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok && sent == u.key {
		u.kept = sent
	}
	u.conns = append(u.conns, r.RemoteAddr)
}

// credential is "ours" for the injected one alone, "none", or "foreign".
func (u *upstream) credential(r *http.Request) string {
	var all []string
	for _, name := range []string{"Authorization", "Proxy-Authorization", "Cookie", "X-Api-Key", "X-Auth-Token"} {
		for _, v := range r.Header.Values(name) {
			all = append(all, name+" "+v)
		}
	}
	for name, values := range r.URL.Query() {
		switch name {
		case "api_key", "access_token", "key", "token":
			all = append(all, values...)
		}
	}
	for name := range r.Trailer {
		all = append(all, r.Trailer.Values(name)...)
	}
	switch {
	case len(all) == 0:
		return "none"
	case len(all) == 1 && all[0] == "Authorization Bearer "+u.key:
		return "ours"
	}
	return "foreign"
}

// take returns what was seen since the last time.
func (u *upstream) take() (seen []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	seen, u.seen = u.seen, nil
	return seen
}

// contacts counts the connections and datagrams that have ever come.
func (u *upstream) contacts(t *testing.T) int {
	t.Helper()
	n, err := u.opened.Count()
	must.OK(t, err)
	return n
}

func websocket(w http.ResponseWriter, r *http.Request) {
	c, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer c.Close()
	sum := sha1.Sum([]byte(r.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	fmt.Fprintf(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: %s\r\n\r\n",
		base64.StdEncoding.EncodeToString(sum[:]))
	_ = rw.Flush()
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	_, _ = io.Copy(io.Discard, rw) // frames, until it ends
}

// drip begins an answer and never gets on with it.
func (u *upstream) drip(w http.ResponseWriter, r *http.Request) {
	c, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer c.Close()
	_, _ = io.WriteString(rw, "HTTP/1.1 200 OK\r\nX-Slow: ")
	u.mu.Lock()
	u.begun++
	u.mu.Unlock()
	for {
		if _, err := rw.WriteString("a"); err != nil || rw.Flush() != nil {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.ended++
}
