package gateway_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/websocket"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/gateway"
	"sallyport/gateway/access"
	"sallyport/internal/test/must"
	"sallyport/policy"
)

// published is an env with a listener for what comes in, and a server that stands
// for what listens in the sandbox.
type published struct {
	*env
	ln      net.Listener
	exposed access.Ports
	store   *access.Ports
	inside  *httptest.Server
	port    uint16
	asleep  atomic.Bool
	apart   atomic.Bool     // what listens does so on the sandbox's loopback address only
	retag   atomic.Bool     // the sandbox is another team's
	slow    chan struct{}   // what waking sb-1 waits for
	silent  map[string]bool // whose agents never answer, to wake or to connect
	waiting atomic.Int32    // for those
	wakes   atomic.Int32
	within  atomic.Pointer[error] // what comes of connecting from inside, in place of a connection

	mu   sync.Mutex
	seen []*http.Request
}

func named(id string) string {
	if id == "sb-2" {
		return "other"
	}
	return "demo"
}

func (n *published) Whose(_ context.Context, id string) (policy.Sandbox, error) {
	team := "web"
	if n.retag.Load() {
		team = "other"
	}
	return policy.Sandbox{Name: named(id), ID: id, Session: "s-1", Tags: map[string]string{"team": team}}, nil
}

// answers waits for the agent of a sandbox.
func (n *published) answers(ctx context.Context, id string) error {
	if !n.silent[id] {
		return nil
	}
	n.waiting.Add(1)
	defer n.waiting.Add(-1)
	<-ctx.Done()
	return ctx.Err()
}

func (n *published) Wake(ctx context.Context, id string) (policy.Sandbox, netip.Addr, error) {
	n.wakes.Add(1)
	n.step("wake")
	if id == "sb-1" && n.slow != nil {
		<-n.slow
	}
	if !n.apart.Load() {
		if err := n.answers(ctx, id); err != nil {
			return policy.Sandbox{}, netip.Addr{}, err
		}
	}
	if n.asleep.Load() {
		return policy.Sandbox{}, netip.Addr{}, errors.New("no engine")
	}
	at := netip.MustParseAddr("127.0.0.1")
	if n.apart.Load() {
		at = netip.MustParseAddr("127.0.0.2")
	}
	return policy.Sandbox{Name: named(id), ID: id}, at, nil
}

// Connect connects from inside the sandbox.
func (n *published) Connect(ctx context.Context, id string, port uint16) (net.Conn, error) {
	n.step("connect %s:%d", id, port)
	if err := n.answers(ctx, id); err != nil {
		return nil, err
	}
	if err := n.within.Load(); err != nil {
		return nil, *err
	}
	return net.Dial("tcp", netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port).String())
}

// stall is for how long a program may take nothing.
const stall = 2 * time.Second

// newInbound exposes a server, and returns the token.
func newInbound(t *testing.T) (*published, string) {
	t.Helper()
	n := &published{}
	mux := http.NewServeMux()
	mux.Handle("/echo", websocket.Handler(func(c *websocket.Conn) { _, _ = io.Copy(c, c) }))
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		n.step("inside")
		body, _ := io.ReadAll(r.Body)
		n.mu.Lock()
		n.seen = append(n.seen, r)
		n.mu.Unlock()
		for _, c := range []string{"a=1; Domain=localhost; Path=/", "b=2; path=/x;DOMAIN=.demo.localhost; Secure", "sallyport-exposure=evil; Path=/", "=sallyport-exposure=evil; Path=/", "evil; Path=/", "Sallyport-Exposure=evil"} {
			w.Header().Add("Set-Cookie", c)
		}
		w.Header().Set("Sallyport-Decision", "forged")
		w.Header().Set("Sallyport-Foo", "forged")
		w.Header()["sallyport_bar"] = []string{"forged"}
		w.Header().Set("Alt-Svc", `h3=":443"`)
		fmt.Fprintf(w, "%s %s %s", r.Method, r.URL.RequestURI(), body)
	})
	n.inside = httptest.NewServer(mux)
	t.Cleanup(n.inside.Close)
	n.port = portOf(n.inside.Listener.Addr()).Port()
	var err error
	if n.store, err = access.OpenPorts(t.TempDir() + "/exposures.json"); err != nil {
		t.Fatal(err)
	}
	n.env = newEnv(t, func(o *gateway.Options) {
		o.Ports, o.Waker, o.Loopback, o.StallTimeout = &n.exposed, n, n, stall
	})
	n.policy(allow)
	if n.ln, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- n.gateway.ServeInbound(context.Background(), n.ln) }()
	t.Cleanup(func() {
		_ = n.ln.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return n, n.expose(t, "demo", "sb-1", n.port)
}

func portOf(a net.Addr) netip.AddrPort { return netip.MustParseAddrPort(a.String()) }

func (n *published) expose(t *testing.T, name, id string, port uint16) string {
	t.Helper()
	_, token, err := n.store.Add(name, id, "", port, time.Hour)
	must.OK(t, err)
	n.exposed.Replace(n.store.List())
	return token
}

func (n *published) host(name string) string {
	e := access.Port{Sandbox: name, SandboxID: map[string]string{"demo": "sb-1", "other": "sb-2"}[name], Port: n.port}
	return fmt.Sprintf("%s:%d", e.Host(), portOf(n.ln.Addr()).Port())
}

// ask sends bytes and returns the answer.
func (n *published) ask(t *testing.T, request string) (*http.Response, string) {
	t.Helper()
	c, err := net.Dial("tcp", n.ln.Addr().String())
	must.OK(t, err)
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := io.WriteString(c, request); err != nil {
		t.Fatal(err)
	}
	method, _, _ := strings.Cut(request, " ")
	r, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: method})
	if err != nil {
		t.Fatalf("%q: %v", request, err)
	}
	defer r.Body.Close()
	body, _ := io.ReadAll(r.Body)
	return r, string(body)
}

// The forms of a request, and what comes of them.
func TestInbound(t *testing.T) {
	t.Parallel()
	n, token := newInbound(t)
	other := n.expose(t, "other", "sb-2", n.port)
	if _, err := http.NewRequest("GET", "http://"+n.host("demo"), nil); err != nil {
		t.Fatal(err)
	}
	host, good := "Host: "+n.host("demo")+"\r\n", "Authorization: Bearer "+token+"\r\n"
	cookie := "Cookie: x=1; sallyport-exposure=" + token + "; y=2\r\n"
	own := "Origin: http://" + n.host("demo") + "\r\n"
	old := strings.Replace(token, token[4:8], "AAAA", 1)
	for _, tt := range []struct {
		name, request string
		status        int
		rule          string // of a refusal
	}{
		{"a token in Authorization", "GET /a HTTP/1.1\r\n" + host + good, 200, ""},
		{"a token in a header", "GET /a HTTP/1.1\r\n" + host + "Sallyport-Token: " + token + "\r\n", 200, ""},
		{"a cookie", "GET /a HTTP/1.1\r\n" + host + cookie, 200, ""},
		{"a cookie, from the page itself", "POST /a HTTP/1.1\r\n" + host + cookie + own + "Content-Length: 2\r\n\r\nhi", 200, ""},
		{"a body in chunks", "POST /a HTTP/1.1\r\n" + host + good + "Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n", 200, ""},
		{"no token", "GET / HTTP/1.1\r\n" + host, 401, "inbound-token"},
		{"another token", "GET / HTTP/1.1\r\n" + host + "Authorization: Bearer " + old + "\r\n", 401, "inbound-token"},
		{"a token of another exposure", "GET / HTTP/1.1\r\n" + host + "Authorization: Bearer " + other + "\r\n", 401, "inbound-token"},
		{"a cookie of another exposure", "GET / HTTP/1.1\r\n" + host + "Cookie: sallyport-exposure=" + other + "\r\n", 401, "inbound-token"},
		{"a digest for a token", "GET / HTTP/1.1\r\n" + host + "Authorization: Bearer " + n.store.List()[0].Digest + "\r\n", 401, "inbound-token"},
		{"a token in the URL of a POST", "POST /?token=" + token + " HTTP/1.1\r\n" + host + "Content-Length: 0\r\n", 401, "inbound-token"},
		{"a wrong token in the URL", "GET /?token=" + other + " HTTP/1.1\r\n" + host, 401, "inbound-token"},
		{"no Host", "GET / HTTP/1.0\r\n" + good, 421, "inbound-host"},
		{"an address as Host", "GET / HTTP/1.1\r\nHost: " + n.ln.Addr().String() + "\r\n" + good, 421, "inbound-host"},
		{"another name (DNS rebinding)", "GET / HTTP/1.1\r\nHost: evil.example.test\r\n" + good, 421, "inbound-host"},
		{"the name below another", "GET / HTTP/1.1\r\nHost: " + strings.Replace(n.host("demo"), "localhost", "localhost.example.test", 1) + "\r\n" + good, 421, "inbound-host"},
		{"a Host without the port", "GET / HTTP/1.1\r\nHost: " + strings.Split(n.host("demo"), ":")[0] + "\r\n" + good, 421, "inbound-host"},
		{"a Host with a final dot", "GET / HTTP/1.1\r\nHost: " + strings.Replace(n.host("demo"), "localhost", "localhost.", 1) + "\r\n" + good, 421, "inbound-host"},
		{"another port of the sandbox", "GET / HTTP/1.1\r\nHost: 1" + n.host("demo") + "\r\n" + good, 421, "inbound-host"},
		{"two Hosts", "GET / HTTP/1.1\r\n" + host + "Host: " + n.host("other") + "\r\n" + good, 400, "request"},
		{"CONNECT", "CONNECT " + n.host("demo") + " HTTP/1.1\r\n" + host + good, 400, "inbound-target"},
		{"absolute form", "GET http://" + n.host("demo") + "/ HTTP/1.1\r\n" + host + good, 400, "inbound-target"},
		{"absolute form to elsewhere", "GET http://198.51.100.1/ HTTP/1.1\r\n" + host + good, 421, "request"},
		{"asterisk form", "OPTIONS * HTTP/1.1\r\n" + host + good, 400, "inbound-target"},
		{"TRACE", "TRACE / HTTP/1.1\r\n" + host + good, 405, "trace"},
		{"two lengths", "POST / HTTP/1.1\r\n" + host + good + "Content-Length: 2\r\nContent-Length: 3\r\n", 400, "request"},
		{"a length and chunks", "POST / HTTP/1.1\r\n" + host + good + "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n", 400, "request"},
		{"a folded header", "GET / HTTP/1.1\r\n" + host + good + "X: a\r\n b\r\n", 400, "request"},
		{"a space before the colon", "GET / HTTP/1.1\r\n" + host + good + "Transfer-Encoding : chunked\r\n", 400, "request"},
		{"another method in a header", "POST / HTTP/1.1\r\n" + host + good + "X-HTTP-Method-Override: DELETE\r\nContent-Length: 0\r\n", 403, "override-header"},
		{"dots in the path", "GET /a/../b HTTP/1.1\r\n" + host + good, 400, "path"},
		{"a page of another origin", "POST / HTTP/1.1\r\n" + host + cookie + "Origin: http://" + n.host("other") + "\r\nContent-Length: 0\r\n", 403, "inbound-origin"},
		{"a page of a sister site, by the cookie", "GET /a.js HTTP/1.1\r\n" + host + cookie + "Sec-Fetch-Site: same-site\r\n", 403, "inbound-origin"},
		{"a page of another site, by the cookie", "GET /a.js HTTP/1.1\r\n" + host + cookie + "Sec-Fetch-Site: cross-site\r\n", 403, "inbound-origin"},
		{"a person, by the cookie", "GET /a HTTP/1.1\r\n" + host + cookie + "Sec-Fetch-Site: none\r\n", 200, ""},
		{"the page itself, by the cookie", "GET /a HTTP/1.1\r\n" + host + cookie + "Sec-Fetch-Site: same-origin\r\n", 200, ""},
		{"a page without an origin", "POST / HTTP/1.1\r\n" + host + cookie + "Origin: null\r\nContent-Length: 0\r\n", 403, "inbound-origin"},
		{"HTTP/2 at once", "PRI * HTTP/2.0\r\n\r\nSM\r\n", 505, "request"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			request := tt.request
			if !strings.Contains(request, "\r\n\r\n") || strings.Contains(request, "chunked\r\n\r\n2") {
				request += "\r\n"
			}
			wakes := n.wakes.Load()
			r, body := n.ask(t, request)
			if r.StatusCode != tt.status || tt.rule != "" && !strings.Contains(body, "rule: "+tt.rule+"\n") {
				t.Errorf("got %d %s, want %d %s", r.StatusCode, body, tt.status, tt.rule)
			}
			if woken := n.wakes.Load() > wakes; woken != (tt.status == 200) {
				t.Errorf("the sandbox was woken: %v", woken)
			}
		})
	}
	n.env.mu.Lock()
	defer n.env.mu.Unlock()
	for _, e := range n.events {
		s := e.Unmapped.Sallyport
		if s.Phase != string(policy.PhaseInbound) || e.Connection != nil && e.Connection.Direction != 1 {
			t.Errorf("an event of phase %q: %+v", s.Phase, e)
		}
		if text := fmt.Sprintf("%+v", e); strings.Contains(text, token[4:]) || strings.Contains(text, other[4:]) {
			t.Errorf("a token is in an event: %s", text)
		}
	}
}

// The decision is on disk before the sandbox is woken, and nothing of ours gets
// in or out.
func TestInboundExchange(t *testing.T) {
	t.Parallel()
	n, token := newInbound(t)
	r, body := n.ask(t, "POST /a?q=1&other="+token+" HTTP/1.1\r\nHost: "+n.host("demo")+"\r\nCookie: x=1; sallyport-exposure="+token+"\r\nCookie: y=2\r\nSallyport-Token: "+token+
		"\r\nAuthorization: Basic YTpi\r\nConnection: X-Hop\r\nReferer: http://"+n.host("demo")+"/?token="+token+"\r\nContent-Length: 2\r\n\r\nhi")
	if body != "POST /a?q=1 hi" {
		t.Fatalf("got %d %s", r.StatusCode, body)
	}
	if got, want := strings.Join(n.steps(), "; "), "append; wake; inside"; !strings.HasPrefix(strings.Join(dropped(n.steps()), "; "), want) {
		t.Errorf("got %s, want %s", got, want)
	}
	in := n.seen[0]
	if got := fmt.Sprint(in.Host, in.Header["Cookie"], in.Header["Authorization"], in.Header["X-Hop"], in.Header["Sallyport-Token"], in.Header["Referer"]); got != fmt.Sprint(n.host("demo"), []string{"x=1; y=2"}, []string{"Basic YTpi"}, []string(nil), []string(nil), []string(nil)) &&
		got != fmt.Sprint(n.host("demo"), []string{"x=1", "y=2"}, []string{"Basic YTpi"}, []string(nil), []string(nil), []string(nil)) {
		t.Errorf("the sandbox got %s", got)
	}
	if text := fmt.Sprint(in.Header, in.URL); strings.Contains(text, token) {
		t.Errorf("the sandbox got the token: %s", text)
	}
	if got := r.Header["Set-Cookie"]; !slices.Equal(got, []string{"a=1; Path=/", "b=2; path=/x; Secure"}) {
		t.Errorf("cookies: %q", got)
	}
	if r.Header.Get("Sallyport-Decision") != "" || r.Header.Get("Alt-Svc") != "" {
		t.Errorf("the sandbox speaks in our name: %v", r.Header)
	}
	events := n.await(2)
	d, c := events[0], events[1]
	if d.Unmapped.Sallyport.SandboxID != "sb-1" || d.Unmapped.Sallyport.Tags["team"] != "web" || d.HTTPRequest.URL.Path != "/a" || d.Destination.Port != int(n.port) {
		t.Errorf("decided: %+v", d)
	}
	if c.Metadata.CorrelationUID != d.ID() || c.HTTPResponse.Code != 200 || c.Traffic.BytesIn != 2 || c.Traffic.BytesOut != int64(len(body)) {
		t.Errorf("completed: %+v", c)
	}
}

// dropped leaves out steps that are of no interest here.
func dropped(steps []string) []string {
	var list []string
	for _, s := range steps {
		s, _, _ = strings.Cut(s, " ")
		list = append(list, s)
	}
	return list
}

// A browser's first visit.
func TestInboundCookie(t *testing.T) {
	t.Parallel()
	n, token := newInbound(t)
	r, _ := n.ask(t, "GET //evil.example.test/x?a=1&token="+token+"&b=%20 HTTP/1.1\r\nHost: "+n.host("demo")+"\r\n\r\n")
	if got, want := r.Header.Get("Location"), "http://"+n.host("demo")+"//evil.example.test/x?a=1&b=%20"; r.StatusCode != 303 || got != want {
		t.Errorf("got %d to %s, want %s", r.StatusCode, got, want)
	}
	c := r.Cookies()[0]
	if c.Value != token || !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Domain != "" || c.Path != "/" || c.MaxAge < 3500 || c.MaxAge > 3600 {
		t.Errorf("cookie: %+v", c)
	}
	if r.Header.Get("Referrer-Policy") != "no-referrer" || r.Header.Get("Cache-Control") != "no-store" {
		t.Errorf("header: %v", r.Header)
	}
	if n.wakes.Load() != 0 {
		t.Error("a first visit has woken the sandbox")
	}
}

// Another sandbox of the same name has another origin: what a browser keeps of the
// first one (service workers, storage, cookies, pages) is nothing to it.
func TestInboundOriginIsOneSandbox(t *testing.T) {
	t.Parallel()
	n, token := newInbound(t)
	before := n.host("demo")
	must.OK(t, n.store.Forget("sb-1"))
	again := n.expose(t, "demo", "sb-9", n.port)
	after := n.store.List()[0].Host()
	if h, _, _ := strings.Cut(before, ":"); h == after || !strings.HasSuffix(after, ".localhost") || strings.Count(after, ".") != 1 {
		t.Errorf("%s after %s", after, before)
	}
	for _, secret := range []string{token, again} {
		if r, _ := n.ask(t, "GET / HTTP/1.1\r\nHost: "+before+"\r\nAuthorization: Bearer "+secret+"\r\n\r\n"); r.StatusCode != 421 {
			t.Errorf("the name of the sandbox that is gone: %d", r.StatusCode)
		}
	}
	if _, _, err := n.store.Add(strings.Repeat("a", 46), "sb-3", "", 65535, time.Hour); err != nil {
		t.Errorf("a long name: %v", err)
	}
	if _, _, err := n.store.Add(strings.Repeat("a", 47), "sb-3", "", 65535, time.Hour); !errors.Is(err, access.ErrPort) {
		t.Errorf("a name that is too long: %v", err)
	}
}

func TestInboundDenied(t *testing.T) {
	t.Parallel()
	n, token := newInbound(t)
	var asked policy.Input
	n.policy(func(in policy.Input) policy.Decision { asked = in; return policy.Decision{} })
	request := "GET /a?k=v HTTP/1.1\r\nHost: " + n.host("demo") + "\r\nAuthorization: Bearer " + token + "\r\n\r\n"
	if r, body := n.ask(t, request); r.StatusCode != 403 || !strings.Contains(body, "expose rule") {
		t.Errorf("got %d %s", r.StatusCode, body)
	}
	if asked.Phase != policy.PhaseInbound || asked.Destination != (policy.Destination{Host: "demo", Port: n.port}) || asked.Sandbox.Tags["team"] != "web" || asked.Request.Path != "/a" {
		t.Errorf("asked %+v", asked)
	}
	n.policy(func(policy.Input) policy.Decision { return policy.Decision{Action: policy.Tunnel} })
	if r, _ := n.ask(t, request); r.StatusCode != 403 {
		t.Errorf("a tunnel: %d", r.StatusCode)
	}
	n.policy(allow)
	n.env.mu.Lock()
	n.appendTo = auditlog.ErrUnwritable
	n.env.mu.Unlock()
	if r, _ := n.ask(t, request); r.StatusCode != 503 || n.wakes.Load() != 0 {
		t.Errorf("without a record: %d, %d wakes", r.StatusCode, n.wakes.Load())
	}
	n.env.mu.Lock()
	n.appendTo = nil
	n.env.mu.Unlock()
	n.asleep.Store(true)
	if r, body := n.ask(t, request); r.StatusCode != 503 || !strings.Contains(body, "could not be started") {
		t.Errorf("a sandbox that does not start: %d %s", r.StatusCode, body)
	}
	n.asleep.Store(false)
	n.inside.Close()
	if r, body := n.ask(t, request); r.StatusCode != 502 || !strings.Contains(body, "0.0.0.0") {
		t.Errorf("nobody listens: %d %s", r.StatusCode, body)
	}
	must.OK(t, n.store.Remove("sb-1", n.port))
	n.exposed.Replace(n.store.List())
	if r, _ := n.ask(t, request); r.StatusCode != 421 {
		t.Errorf("after its end: %d", r.StatusCode)
	}
}

func TestInboundExpires(t *testing.T) {
	t.Parallel()
	n, _ := newInbound(t)
	_, token, err := n.store.Add("demo", "sb-1", "", n.port, time.Hour)
	must.OK(t, err)
	list := n.store.List()
	for i := range list {
		list[i].Expires = time.Now()
	}
	n.exposed.Replace(list)
	if r, body := n.ask(t, "GET / HTTP/1.1\r\nHost: "+n.host("demo")+"\r\nAuthorization: Bearer "+token+"\r\n\r\n"); r.StatusCode != 403 || !strings.Contains(body, "expired") {
		t.Errorf("got %d %s", r.StatusCode, body)
	}
}

// A flood of wrong tokens is few events.
func TestInboundFlood(t *testing.T) {
	n, _ := newInbound(t)
	began := time.Now()
	for range 60 {
		n.ask(t, "GET / HTTP/1.1\r\nHost: "+n.host("demo")+"\r\nAuthorization: Bearer nothing\r\n\r\n")
	}
	most := foldedOf(time.Since(began))
	deadline, count := time.Now().Add(patience), 0
	for count < 60 && time.Now().Before(deadline) {
		time.Sleep(50 * time.Millisecond)
		n.env.mu.Lock()
		count = 0
		for _, e := range n.events {
			count += max(1, e.Count)
		}
		if events := len(n.events); events > most {
			t.Errorf("%d events, want at most %d", events, most)
		}
		n.env.mu.Unlock()
	}
	if count != 60 {
		t.Errorf("the events tell of %d", count)
	}
}

// socketTo begins a WebSocket.
func (n *published) socketTo(t *testing.T, header string) (*socket, int) {
	t.Helper()
	c, err := net.Dial("tcp", n.ln.Addr().String())
	must.OK(t, err)
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	fmt.Fprintf(c, "GET /echo HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n%s\r\n", n.host("demo"), header)
	in := bufio.NewReader(c)
	r, err := http.ReadResponse(in, nil)
	must.OK(t, err)
	return &socket{c, in}, r.StatusCode
}

func TestInboundWebSocket(t *testing.T) {
	t.Parallel()
	n, token := newInbound(t)
	bearer, cookie, own := "Authorization: Bearer "+token+"\r\n", "Cookie: sallyport-exposure="+token+"\r\n", "Origin: http://"+n.host("demo")+"\r\n"
	for header, want := range map[string]int{
		bearer + own: 101, cookie + own: 101,
		cookie: 403, cookie + "Origin: http://" + n.host("other") + "\r\n": 403, cookie + "Origin: null\r\n": 403,
		cookie + "Origin: https://" + n.host("demo") + "\r\n": 403, own: 401,
	} {
		s, status := n.socketTo(t, header)
		if status != want {
			t.Errorf("%q: got %d, want %d", header, status, want)
		}
		if status == 101 {
			must.OK(t, s.send(wsText, []byte("hello")))
			if _, got, err := s.receive(); string(got) != "hello" || err != nil {
				t.Errorf("got %q %v", got, err)
			}
		}
		_ = s.Close()
	}
}

// A connection by an exposure ends with it, and by a policy that no longer allows it.
func TestInboundRevoked(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*published){
		"unexposed": func(n *published) { n.exposed.Replace(nil) },
		"exposed anew": func(n *published) {
			_, _, _ = n.store.Add("demo", "sb-1", "", n.port, time.Hour)
			n.exposed.Replace(n.store.List())
		},
		"tagged otherwise": func(n *published) { n.retag.Store(true) },
		"denied":           func(n *published) { n.policy(func(policy.Input) policy.Decision { return policy.Decision{} }) },
	} {
		t.Run(name, func(t *testing.T) {
			n, token := newInbound(t)
			n.policy(func(in policy.Input) policy.Decision {
				if in.Sandbox.Tags["team"] != "web" {
					return policy.Decision{}
				}
				return allow(in)
			})
			s, status := n.socketTo(t, "Authorization: Bearer "+token+"\r\nOrigin: http://"+n.host("demo")+"\r\n")
			if status != 101 {
				t.Fatal(status)
			}
			begin := time.Now()
			end(n)
			n.gateway.Redecide()
			if _, _, err := s.receive(); err == nil || time.Since(begin) > soon {
				t.Errorf("after %v: %v", time.Since(begin), err)
			}
			c := n.await(2)[1]
			if c.Disposition != audit.DispositionBlocked {
				t.Errorf("completed: %+v", c)
			}
		})
	}
}
