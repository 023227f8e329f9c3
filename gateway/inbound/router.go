package inbound

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"sallyport/gateway/access"
	"sallyport/gateway/form"
	"sallyport/internal/hostname"
	"sallyport/policy"
)

// Router knows the sandboxes of all nodes of a cluster, and the clients that may ask them.
// A Server with one takes requests as agent-sandbox's SDKs send them to a router, with
// headers that name the sandbox, and as its router sends them to a proxy, with a target that
// names it. A client shows a token, in place of a port's.
type Router interface {
	// Client returns the client whose token it is, or the zero client.
	Client(token string) access.RouterClient
	// Find finds a sandbox. An error is for the log: the client is told that it is not there.
	Find(context.Context, Route) (Place, error)
	// Peer is how another node is spoken to. It returns another Config when that changes, and no
	// request goes over a connection that was made with the one before.
	Peer() *tls.Config
}

// Route names a port of a sandbox, by its name or by its address.
type Route struct {
	Namespace, Name string
	Address         netip.Addr // in place of both
	Port            uint16
	Client          string // name of who asks
}

// Place is where a sandbox is.
type Place struct {
	Namespace, Name string
	Sandbox         policy.Sandbox // of this node
	Node            netip.AddrPort // of another node: its Router's listener
}

// ErrNotPlaced says that no node has such a sandbox.
var ErrNotPlaced = errors.New("no such sandbox is running")

const (
	routedFor    = 24 * time.Hour  // a request, and a WebSocket, of a router's client
	routedHead   = 3 * time.Minute // for an answer's head: the router's own default
	findWithin   = 10 * time.Second
	idleHops     = 32 // connections to another node that wait for another request
	idleHop      = idleWithin / 2
	defaultPort  = 8888      // of the router's headers
	defaultSpace = "default" // likewise
)

// The headers that name a sandbox to a router, and those of it that say more. The address
// in one of them is the client's word, and is not used.
const (
	routeName      = "X-Sandbox-Id"
	routeNamespace = "X-Sandbox-Namespace"
	routePort      = "X-Sandbox-Port"
	// hopHeader says that another node has passed the request on: this node does not.
	hopHeader = "Sallyport-Hop"
)

var routeHeaders = []string{routeName, routeNamespace, routePort, "X-Sandbox-Pod-Ip", "X-Sandbox-Uid", "X-Sandbox-Timeout"}

// routed is what a request to a Router has, and others have not.
type routed struct {
	Route
	token  string
	client access.RouterClient
	node   netip.AddrPort
}

// serveRouted answers a request to the Router.
func (q *request) serveRouted(w http.ResponseWriter, r *http.Request) {
	s := q.server
	t := &routed{}
	q.routed = t
	hopped := len(r.Header[hopHeader]) > 0
	t.take(s.Router, r.Header)
	form.DropReserved(r.Trailer)
	if t.client.Name == "" {
		w.Header().Set("WWW-Authenticate", `Basic realm="sallyport"`)
		q.refuse(w, r, http.StatusUnauthorized, "router-token", "the token is missing, or no client's")
		return
	}
	var reason string
	if t.Route, reason = routeOf(r); reason != "" {
		q.refuse(w, r, http.StatusBadRequest, "router-target", reason)
		return
	}
	t.Client = t.client.Name
	for _, name := range routeHeaders {
		delete(r.Header, name)
	}
	q.port = access.Port{Sandbox: t.Namespace + "/" + t.Name, Port: t.Port}
	if t.Address.IsValid() {
		q.port.Sandbox = t.Address.String()
	} else if !t.client.MayAsk(t.Namespace) {
		q.refuse(w, r, http.StatusForbidden, "router-namespace", "the client may not ask sandboxes of this namespace")
		return
	}
	asked, over := context.WithTimeout(q, findWithin)
	at, err := s.Router.Find(asked, t.Route)
	over()
	if err != nil || !t.client.MayAsk(at.Namespace) || hopped && at.Node.IsValid() {
		if err != nil && !errors.Is(err, ErrNotPlaced) {
			s.Logger.Warn("a sandbox that is asked for cannot be looked up", "sandbox", q.port.Sandbox, "error", err)
		}
		w.Header().Set("Retry-After", strconv.Itoa(busyRetry))
		q.refuse(w, r, http.StatusServiceUnavailable, "router-sandbox", "no such sandbox runs in the client's namespaces")
		return
	}
	t.Namespace, t.Name, t.node = at.Namespace, at.Name, at.Node
	name := t.Namespace + "/" + t.Name
	q.port = access.Port{Sandbox: name, SandboxID: at.Sandbox.ID, Owner: t.Namespace, Port: t.Port, Expires: time.Now().Add(routedFor)}
	q.authority = net.JoinHostPort(t.host(), strconv.Itoa(int(t.Port)))
	if at.Node.IsValid() {
		q.port.SandboxID = name // for the bounds of what is passed on
	} else {
		q.sandbox = at.Sandbox
	}
	if !q.conn.countFor(s.conns, q.port) {
		w.Header().Set("Retry-After", strconv.Itoa(busyRetry))
		q.refuse(w, r, http.StatusServiceUnavailable, "inbound-connections", "there are too many connections to this sandbox, or to those of its owner")
		return
	}
	q.upgrade = form.IsWebSocket(r.Header)
	if m := q.admit(r, true); m != nil { // of another node's too: this one takes out what Connection names
		q.refuse(w, r, m.Status, m.Rule, m.Reason)
		return
	}
	if !s.enter(q.authority) {
		q.refuse(w, r, http.StatusTooManyRequests, "inbound-rate", "too many requests to this port, or too many at once")
		return
	}
	defer s.leave(q.authority)
	if at.Node.IsValid() {
		q.passOn(w, r)
		return
	}
	q.carry(w, r)
}

// host is the name that the sandbox has in the cluster.
func (t *routed) host() string { return t.Name + "." + t.Namespace + ".svc" }

// take removes what is ours from a request's header: every token of a client's, and more.
// Another Authorization is the application's own.
func (t *routed) take(known Router, h http.Header) {
	is := func(token string) bool {
		c := known.Client(token)
		if c.Name != "" {
			t.token, t.client = token, c
		}
		return c.Name != ""
	}
	var own []string
	for _, v := range h["Authorization"] {
		if !is(password(v)) {
			own = append(own, v)
		}
	}
	if delete(h, "Authorization"); own != nil {
		h["Authorization"] = own
	}
	for _, v := range h["Proxy-Authorization"] {
		is(password(v))
	}
	for _, v := range h[exposureHeader] {
		is(strings.TrimSpace(v))
	}
	delete(h, "Proxy-Authorization")
	form.DropReserved(h)
}

// password is the secret of an Authorization: a Bearer's token, or Basic's password, which
// clients make of a URL that has one.
func password(v string) string {
	scheme, rest, _ := strings.Cut(v, " ")
	if strings.EqualFold(scheme, "Bearer") {
		return strings.TrimSpace(rest)
	}
	_, secret, _ := form.Basic(v)
	return secret
}

// routeOf is the sandbox that a request names, or what is wrong with it: a target in absolute
// form is for a proxy, and its host a sandbox's name or address in the cluster.
func routeOf(r *http.Request) (to Route, wrong string) {
	port := strconv.Itoa(defaultPort)
	switch {
	case r.Method == http.MethodConnect:
		return to, "CONNECT opens a tunnel, in which requests could not be decided on"
	case r.URL.Host != "":
		host, p, err := form.ParseAuthority(r.URL.Host)
		if err != nil || r.URL.Scheme != "http" || r.URL.User != nil {
			return to, "the target is not http://NAME.NAMESPACE.svc:PORT/"
		}
		if p == 0 {
			p = 80
		}
		port = strconv.Itoa(int(p))
		if a, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
			to.Address = a.Unmap()
			break
		}
		parts := strings.SplitN(strings.TrimSuffix(host, "."), ".", 4)
		if len(parts) < 3 || parts[2] != "svc" {
			return to, "the target is not http://NAME.NAMESPACE.svc:PORT/"
		}
		to.Name, to.Namespace = parts[0], parts[1]
	case r.RequestURI == "" || r.RequestURI[0] != '/':
		return to, "the request target must be a path, or a URL for a proxy"
	default:
		to.Name, to.Namespace = "", defaultSpace
		for header, into := range map[string]*string{routeName: &to.Name, routeNamespace: &to.Namespace, routePort: &port} {
			if values := r.Header[header]; len(values) > 1 {
				return to, "the header " + header + " is there twice"
			} else if len(values) == 1 {
				*into = values[0]
			}
		}
	}
	if !to.Address.IsValid() && (!hostname.Label(to.Name) || !hostname.Label(to.Namespace)) {
		return to, "X-Sandbox-ID and X-Sandbox-Namespace do not name a sandbox"
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if to.Port = uint16(n); err != nil || n == 0 {
		return to, "the port is not one from 1 to 65535"
	}
	return to, ""
}

// peers has the connections to other nodes.
type peers struct {
	router Router

	mu      sync.Mutex
	config  *tls.Config // of current
	current *http.Transport
}

// RoundTrip implements http.RoundTripper.
func (p *peers) RoundTrip(r *http.Request) (*http.Response, error) { return p.transport().RoundTrip(r) }

func (p *peers) transport() *http.Transport {
	p.mu.Lock()
	defer p.mu.Unlock()
	config := p.router.Peer()
	if p.current != nil && p.config == config {
		return p.current
	}
	if p.current != nil {
		p.current.CloseIdleConnections() // and the others as their requests end
	}
	p.config, p.current = config, &http.Transport{
		DialTLSContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return (&tls.Dialer{NetDialer: &net.Dialer{Timeout: reachWithin}, Config: config}).DialContext(ctx, network, address)
		},
		DisableCompression: true, MaxIdleConnsPerHost: idleHops, IdleConnTimeout: idleHop, ResponseHeaderTimeout: routedHead + findWithin,
	}
	return p.current
}

// newPeers returns what passes requests on to other nodes.
func newPeers(router Router) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		FlushInterval: -1, ErrorLog: log.New(io.Discard, "", 0), Transport: &peers{router: router},
		Rewrite: func(p *httputil.ProxyRequest) {
			q := requestOf(p.In)
			t := q.routed
			p.Out.URL.Scheme, p.Out.URL.Host, p.Out.Host, p.Out.URL.RawQuery = "https", t.node.String(), t.node.String(), p.In.URL.RawQuery
			keepForwarded(p)
			q.pace(p)
			for name, value := range map[string]string{
				routeName: t.Name, routeNamespace: t.Namespace, routePort: strconv.Itoa(int(t.Port)), exposureHeader: t.token, hopHeader: "1",
			} {
				p.Out.Header[name] = []string{value}
			}
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			q := requestOf(r)
			if q.Err() != nil {
				panic(http.ErrAbortHandler) // nobody is there
			}
			q.server.Logger.Warn("another node of the cluster does not take a request", "node", q.routed.node, "error", err)
			q.refuse(w, r, http.StatusBadGateway, "router-node", "the sandbox's node does not answer")
		},
	}
}

// passOn has the sandbox's node decide on the request, and record it.
func (q *request) passOn(w http.ResponseWriter, r *http.Request) {
	q.Context, q.cancel = context.WithDeadline(q.Context, q.port.Expires)
	defer q.cancel()
	defer func() { q.body.stop() }()
	q.server.peers.ServeHTTP(w, r.WithContext(q))
}
