package gateway_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/websocket"

	"sallyport/audit"
	"sallyport/gateway"
	"sallyport/gateway/access"
	"sallyport/gateway/inbound"
	"sallyport/internal/test/must"
	"sallyport/policy"
)

// routedNode is a node of a cluster: an env with a listener for a router's clients. Its only
// sandbox is agents/box, where here says so; other sandboxes are on other nodes.
type routedNode struct {
	*env
	ln       net.Listener
	tls      *httptest.Server // whose certificate all nodes have
	here     bool
	other    atomic.Pointer[netip.AddrPort] // the node that has agents/box
	peer     atomic.Pointer[tls.Config]     // by which it asks that
	clients  atomic.Pointer[[]access.RouterClient]
	gone     atomic.Bool
	retag    atomic.Pointer[func()] // called as agents/box becomes another team's, once somebody has asked whose it is
	retagged atomic.Bool
	seen     atomic.Pointer[http.Request] // by the sandbox
}

const (
	agentsToken = "agents-0123456789abcdefghijklmnopq"
	teamsToken  = "teams-0123456789abcdefghijklmnopqr"
)

var box = policy.Sandbox{Name: "agents/box", ID: "sb-1", Owner: "agents", Tags: map[string]string{"team": "web"}}

func (n *routedNode) Client(token string) access.RouterClient {
	return access.RouterClientOf(*n.clients.Load(), token)
}

func (n *routedNode) Peer() *tls.Config { return n.peer.Load() }

// asked is how the nodes are spoken to.
func (n *routedNode) asked() *tls.Config {
	return &tls.Config{RootCAs: n.tls.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs, ServerName: "example.com"}
}

func (n *routedNode) Find(_ context.Context, to inbound.Route) (inbound.Place, error) {
	at := inbound.Place{Namespace: "agents", Name: "box"}
	asks := slices.ContainsFunc(*n.clients.Load(), func(c access.RouterClient) bool { return c.Name == to.Client })
	if to.Name != "box" && to.Address != netip.MustParseAddr("10.231.0.7") || !asks {
		return inbound.Place{}, inbound.ErrNotPlaced
	}
	if n.here {
		at.Sandbox = box
	} else {
		at.Node = *n.other.Load()
	}
	return at, nil
}

func (n *routedNode) Whose(context.Context, string) (policy.Sandbox, error) {
	if n.gone.Load() {
		return policy.Sandbox{}, inbound.ErrNotPlaced
	}
	now := box
	switch retag := n.retag.Load(); {
	case retag == nil:
	case n.retagged.Swap(true):
		now.Tags = map[string]string{"team": "other"}
	default:
		(*retag)()
	}
	return now, nil
}

func (n *routedNode) Wake(context.Context, string) (policy.Sandbox, netip.Addr, error) {
	return box, netip.MustParseAddr("127.0.0.1"), nil
}

// newRouted returns two nodes, of which the second has the sandbox, and the sandbox's port.
func newRouted(t *testing.T) (first, second *routedNode, port uint16) {
	t.Helper()
	certified := httptest.NewTLSServer(nil)
	t.Cleanup(certified.Close)
	node := func(here bool) *routedNode {
		n := &routedNode{tls: certified, here: here}
		n.peer.Store(n.asked())
		n.clients.Store(&[]access.RouterClient{
			access.NewRouterClient("agents-api", []string{"agents"}, []string{"an-old-token-0123456789abcdefghijk", agentsToken}),
			access.NewRouterClient("teams-api", []string{"teams"}, []string{teamsToken}),
		})
		n.env = newEnv(t, func(o *gateway.Options) {
			o.Router, o.Ports, o.Waker, o.StallTimeout = n, new(access.Ports), n, stall
		})
		plain, err := net.Listen("tcp", "127.0.0.1:0")
		must.OK(t, err)
		n.ln = tls.NewListener(plain, &tls.Config{Certificates: certified.TLS.Certificates})
		served := make(chan error, 1)
		go func() { served <- n.gateway.ServeRouted(context.Background(), n.ln) }()
		t.Cleanup(func() {
			_ = n.ln.Close()
			if err := <-served; err != nil {
				t.Error(err)
			}
		})
		return n
	}
	first, second = node(false), node(true)
	at := portOf(second.ln.Addr())
	first.other.Store(&at)
	mux := http.NewServeMux()
	mux.Handle("/echo", websocket.Server{Handler: func(c *websocket.Conn) { _, _ = io.Copy(c, c) }})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		second.seen.Store(r)
		fmt.Fprintf(w, "%s %s %s", r.Method, r.RequestURI, body)
	})
	inside := httptest.NewServer(mux)
	t.Cleanup(inside.Close)
	port = portOf(inside.Listener.Addr()).Port()
	second.policy(func(in policy.Input) policy.Decision {
		if in.Phase != policy.PhaseInbound || in.Destination.Port != port || strings.HasPrefix(in.Request.Path, "/admin") || in.Sandbox.Tags["team"] != "web" {
			return policy.Decision{Action: policy.Deny, Reason: "no expose rule allows it", Revision: "r1"}
		}
		return policy.Decision{Action: policy.Allow, Rule: "api", RuleType: policy.TypeExpose, Reason: "allowed", Revision: "r1"}
	})
	return first, second, port
}

func (n *routedNode) dial(t *testing.T) *tls.Conn {
	t.Helper()
	c, err := tls.Dial("tcp", n.ln.Addr().String(), n.asked())
	must.OK(t, err)
	t.Cleanup(func() { _ = c.Close() })
	must.OK(t, c.SetDeadline(time.Now().Add(time.Minute)))
	return c
}

func (n *routedNode) ask(t *testing.T, request string) (int, string) {
	t.Helper()
	c := n.dial(t)
	_, err := io.WriteString(c, request+"\r\n")
	must.OK(t, err)
	method, _, _ := strings.Cut(request, " ")
	r, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: method})
	if err != nil {
		t.Fatalf("%q: %v", request, err)
	}
	defer r.Body.Close()
	body, _ := io.ReadAll(r.Body)
	return r.StatusCode, string(body)
}

// routeTo are the headers that agent-sandbox's SDKs send to a router.
func routeTo(namespace, name string, port uint16) string {
	return fmt.Sprintf("Host: router\r\nX-Sandbox-ID: %s\r\nX-Sandbox-Namespace: %s\r\nX-Sandbox-Port: %d\r\nX-Sandbox-Pod-IP: 10.231.0.9\r\nX-Sandbox-Timeout: 60\r\n", name, namespace, port)
}

// A router's client reaches what its token, the expose rules and the sandbox's name let it,
// on the node that it asks and on another, and each node that refuses has recorded it.
func TestRouter(t *testing.T) {
	t.Parallel()
	first, second, port := newRouted(t)
	to, at := routeTo("agents", "box", port), fmt.Sprintf("http://box.agents.svc.cluster.local:%d", port)
	bearer := "Authorization: Bearer " + agentsToken + "\r\n"
	basic := func(header, token string) string {
		return header + ": Basic " + base64.StdEncoding.EncodeToString([]byte("x:"+token)) + "\r\n"
	}
	onProxy := func(url string) string { return strings.SplitN(url, "/", 4)[2] }
	for _, tt := range []struct {
		name, request string
		status        int
		rule          string // of a refusal that is not the policy's
	}{
		{"an SDK", "POST /execute HTTP/1.1\r\n" + to + bearer + "Content-Length: 2\r\n\r\nhi", 200, ""},
		{"an SDK, with the token in its URL", "GET /a HTTP/1.1\r\n" + to + basic("Authorization", agentsToken), 200, ""},
		{"the token of before", "GET /a HTTP/1.1\r\n" + to + "Sallyport-Token: an-old-token-0123456789abcdefghijk\r\n", 200, ""},
		{"the router, by a name", "GET " + at + "/a?q=1 HTTP/1.1\r\nHost: " + onProxy(at) + "\r\n" + basic("Proxy-Authorization", agentsToken), 200, ""},
		{"the router, by an address", fmt.Sprintf("GET http://10.231.0.7:%d/a HTTP/1.1\r\nHost: 10.231.0.7:%[1]d\r\n", port) + basic("Proxy-Authorization", agentsToken), 200, ""},
		{"no token", "GET /a HTTP/1.1\r\n" + to, 401, "router-token"},
		{"another token", "GET /a HTTP/1.1\r\n" + to + "Authorization: Bearer " + strings.Repeat("a", 34) + "\r\n", 401, "router-token"},
		{"a client of another namespace", "GET /a HTTP/1.1\r\n" + to + "Authorization: Bearer " + teamsToken + "\r\n", 403, "router-namespace"},
		{"one of another namespace, by an address", fmt.Sprintf("GET http://10.231.0.7:%d/ HTTP/1.1\r\nHost: 10.231.0.7:%[1]d\r\n", port) + basic("Proxy-Authorization", teamsToken), 503, "router-sandbox"},
		{"another namespace", "GET /a HTTP/1.1\r\n" + routeTo("teams", "box", port) + bearer, 403, "router-namespace"},
		{"a sandbox that is not there", "GET /a HTTP/1.1\r\n" + routeTo("agents", "boxes", port) + bearer, 503, "router-sandbox"},
		{"no sandbox", "GET /a HTTP/1.1\r\nHost: router\r\n" + bearer, 400, "router-target"},
		{"two sandboxes", "GET /a HTTP/1.1\r\n" + to + "X-Sandbox-ID: box\r\n" + bearer, 400, "router-target"},
		{"a name with dots", "GET /a HTTP/1.1\r\n" + routeTo("agents", "box.teams", port) + bearer, 400, "router-target"},
		{"a name that is a path", "GET /a HTTP/1.1\r\n" + routeTo("agents", "../../nodes", port) + bearer, 400, "router-target"},
		{"no port", "GET /a HTTP/1.1\r\n" + strings.Replace(to, "Port: ", "Port: -", 1) + bearer, 400, "router-target"},
		{"a host elsewhere", "GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\n" + bearer, 400, "router-target"},
		{"CONNECT", "CONNECT " + onProxy(at) + " HTTP/1.1\r\nHost: " + onProxy(at) + "\r\n" + basic("Proxy-Authorization", agentsToken), 400, "router-target"},
		{"another port", "GET /a HTTP/1.1\r\n" + routeTo("agents", "box", 22) + bearer, 403, ""},
		{"another path", "GET /admin HTTP/1.1\r\n" + to + bearer, 403, ""},
		{"a header that Connection takes out", "GET /a HTTP/1.1\r\n" + to + bearer + "X-User: a\r\nConnection: X-User\r\n", 400, "connection"},
		{"dots in the path", "GET /a/../admin HTTP/1.1\r\n" + to + bearer, 400, "path"},
	} {
		for which, n := range map[string]*routedNode{"on another node": first, "on its node": second} {
			t.Run(tt.name+" "+which, func(t *testing.T) {
				second.seen.Store(nil)
				got, body := n.ask(t, tt.request)
				if got != tt.status || tt.rule != "" && !strings.Contains(body, "rule: "+tt.rule+"\n") {
					t.Errorf("got %d %s, want %d %s", got, body, tt.status, tt.rule)
				}
				in := second.seen.Load()
				if reached := in != nil; reached != (tt.status == 200) {
					t.Fatalf("the sandbox got a request: %v", reached)
				}
				if in == nil {
					return
				}
				if want := fmt.Sprintf("box.agents.svc:%d", port); in.Host != want {
					t.Errorf("the sandbox got Host %s, want %s", in.Host, want)
				}
				for name := range in.Header {
					if strings.HasPrefix(name, "X-Sandbox-") || strings.HasPrefix(name, "Sallyport-") || strings.HasSuffix(name, "Authorization") {
						t.Errorf("the sandbox got %s", name)
					}
				}
			})
		}
	}
	var allowed, denied int
	for _, n := range []*routedNode{first, second} {
		n.env.mu.Lock()
		defer n.env.mu.Unlock()
		for _, e := range n.events {
			s := e.Unmapped.Sallyport
			if text := fmt.Sprintf("%+v", e); strings.Contains(text, agentsToken[6:]) || strings.Contains(text, teamsToken[6:]) {
				t.Errorf("a token is in an event: %s", text)
			}
			if s.Phase != string(policy.PhaseInbound) || s.Kind != audit.KindDecision {
				continue
			}
			switch by := e.Actor; {
			case s.Decision == string(policy.Allow):
				allowed++
				if n != second || by == nil || by.User.Name != "agents-api" || s.Sandbox != "agents/box" || e.HTTPRequest.URL.Hostname != "box.agents.svc" || e.HTTPRequest.URL.Port != int(port) {
					t.Errorf("an event: %+v %+v", e, by)
				}
			case e.Rule != nil && e.Rule.Name == "router-namespace" && e.Destination.Hostname == "":
				t.Errorf("an event does not say which sandbox: %+v", e)
			default:
				denied++
			}
		}
	}
	if allowed != 10 || denied == 0 {
		t.Errorf("%d allowed, %d denied", allowed, denied)
	}
}

// An application may have an Authorization of its own.
func TestRouterAuthorization(t *testing.T) {
	t.Parallel()
	first, second, port := newRouted(t)
	status, body := first.ask(t, "GET /a HTTP/1.1\r\n"+routeTo("agents", "box", port)+"Authorization: Bearer of-the-application\r\nSallyport-Token: "+agentsToken+"\r\n")
	if got := second.seen.Load(); status != 200 || got == nil || got.Header.Get("Authorization") != "Bearer of-the-application" {
		t.Errorf("got %d %s %+v", status, body, got)
	}
}

// Fields after a body that were announced get to the sandbox, whichever node they came by.
func TestRouterTrailers(t *testing.T) {
	t.Parallel()
	first, second, port := newRouted(t)
	for which, n := range map[string]*routedNode{"on another node": first, "on its node": second} {
		status, body := n.ask(t, "POST /a HTTP/1.1\r\n"+routeTo("agents", "box", port)+"Authorization: Bearer "+agentsToken+
			"\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum, Sallyport-Token\r\n\r\n2\r\nhi\r\n0\r\nX-Sum: 1\r\nX-Other: 1\r\nSallyport-Token: "+agentsToken+"\r\n")
		if got := second.seen.Swap(nil); status != 200 || got == nil || !maps.EqualFunc(got.Trailer, http.Header{"X-Sum": {"1"}}, slices.Equal) {
			t.Errorf("%s: got %d %s %+v", which, status, body, got)
		}
	}
}

// A request whose sandbox gets other tags while it is looked at is decided by those.
func TestRouterRetag(t *testing.T) {
	t.Parallel()
	_, second, port := newRouted(t)
	retag := func() {
		second.gateway.Redecide()
		time.Sleep(50 * time.Millisecond) // for what goes on to be checked, which this does not yet
	}
	second.retag.Store(&retag)
	status, body := second.ask(t, "GET /a HTTP/1.1\r\n"+routeTo("agents", "box", port)+"Authorization: Bearer "+agentsToken+"\r\n")
	if status != 403 || second.seen.Load() != nil {
		t.Errorf("got %d %s", status, body)
	}
}

// A request goes from one node to another, and no further.
func TestRouterOneHop(t *testing.T) {
	t.Parallel()
	first, second, port := newRouted(t)
	second.here = false
	at := portOf(first.ln.Addr())
	second.other.Store(&at)
	status, body := first.ask(t, "GET /a HTTP/1.1\r\n"+routeTo("agents", "box", port)+"Authorization: Bearer "+agentsToken+"\r\n")
	if status != 503 || !strings.Contains(body, "rule: router-sandbox\n") {
		t.Errorf("got %d %s", status, body)
	}
	second.await(1)
}

// A node passes a request, and its token, to nobody without the nodes' certificate.
func TestRouterPeer(t *testing.T) {
	t.Parallel()
	first, _, port := newRouted(t)
	var got atomic.Int32
	other := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { got.Add(1) }))
	other.TLS = &tls.Config{Certificates: []tls.Certificate{newAuthority(t).leaf("example.com")}}
	other.StartTLS()
	defer other.Close()
	at := portOf(other.Listener.Addr())
	first.other.Store(&at)
	status, body := first.ask(t, "GET /a HTTP/1.1\r\n"+routeTo("agents", "box", port)+"Authorization: Bearer "+agentsToken+"\r\n")
	if status != 502 || !strings.Contains(body, "rule: router-node\n") || got.Load() > 0 {
		t.Errorf("got %d %s, and the other server %d requests", status, body, got.Load())
	}
}

// A connection to another node that was made before the nodes' certificate changed has no request
// after that, whether it was idle then or in use.
func TestRouterPeerChanges(t *testing.T) {
	t.Parallel()
	first, second, port := newRouted(t)
	to := routeTo("agents", "box", port) + "Authorization: Bearer " + agentsToken + "\r\n"
	c := first.dial(t)
	_, err := io.WriteString(c, "POST /a HTTP/1.1\r\n"+to+"Content-Length: 2\r\n\r\nh")
	must.OK(t, err)
	second.await(1) // it has been passed on
	if status, body := first.ask(t, "GET /a HTTP/1.1\r\n"+to); status != 200 {
		t.Fatalf("before: got %d %s", status, body)
	}
	first.peer.Store(&tls.Config{RootCAs: newAuthority(t).pool, ServerName: "example.com"})
	refused := func(when string) {
		t.Helper()
		if status, body := first.ask(t, "GET /a HTTP/1.1\r\n"+to); status != 502 || !strings.Contains(body, "rule: router-node\n") {
			t.Errorf("%s: got %d %s", when, status, body)
		}
	}
	refused("one was idle")
	_, err = io.WriteString(c, "i")
	must.OK(t, err)
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	must.OK(t, err)
	if body, err := io.ReadAll(r.Body); r.StatusCode != 200 || err != nil {
		t.Errorf("the one in use: got %s %s %v", r.Status, body, err)
	}
	refused("one was in use")
}

// A WebSocket ends with its client, its sandbox and what the policy allows, within a second or
// so, whichever node it came by.
func TestRouterRevoked(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*routedNode){
		"no client any more": func(n *routedNode) { n.clients.Store(&[]access.RouterClient{}) },
		"gone":               func(n *routedNode) { n.gone.Store(true) },
		"denied":             func(n *routedNode) { n.policy(func(policy.Input) policy.Decision { return policy.Decision{} }) },
	} {
		t.Run(name, func(t *testing.T) {
			first, second, port := newRouted(t)
			c := first.dial(t)
			_, err := io.WriteString(c, "GET /echo HTTP/1.1\r\n"+routeTo("agents", "box", port)+"Authorization: Bearer "+agentsToken+
				"\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
			must.OK(t, err)
			in := bufio.NewReader(c)
			r, err := http.ReadResponse(in, nil)
			must.OK(t, err)
			if r.StatusCode != 101 {
				body, _ := io.ReadAll(r.Body)
				t.Fatalf("got %s %s", r.Status, body)
			}
			s := &socket{c, in}
			must.OK(t, s.send(wsText, []byte("hello")))
			if _, got, err := s.receive(); string(got) != "hello" || err != nil {
				t.Fatalf("got %q %v", got, err)
			}
			end(second)
			second.gateway.Redecide()
			if _, _, err := s.receive(); err == nil {
				t.Error("it goes on")
			}
			if e := second.await(2)[1]; e.Disposition != audit.DispositionBlocked || e.Actor == nil {
				t.Errorf("completed: %+v", e)
			}
		})
	}
}
