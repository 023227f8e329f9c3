package daemon

import (
	"bytes"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sallyport/gateway/access"
	"sallyport/gateway/inbound"
	"sallyport/internal/config"
	"sallyport/internal/quota"
	"sallyport/internal/test/must"
	"sallyport/internal/test/testnet"
	"sallyport/policy"
	"sallyport/policy/engine"
	"sallyport/sandbox"
	"sallyport/sandbox/pods"
)

// podsHere is a node's list of sandboxes.
type podsHere struct {
	sandboxes
	list []sandbox.Info
}

func (n podsHere) List() []sandbox.Info { return n.list }

func (n podsHere) Get(name string) (sandbox.Info, error) {
	for _, i := range n.list {
		if i.Name == name {
			return i, nil
		}
	}
	return sandbox.Info{}, sandbox.ErrNotFound
}

const routerToken = "0123456789abcdefghijklmnopqrstuvwxyz"

// A sandbox is found on this node, or on the one that the API server says; a pod that is not
// of the class, that is no longer there, that is offline or whose address two have is not.
func TestRouterFinds(t *testing.T) {
	pod := func(namespace, name, node, class, address string) map[string]any {
		return map[string]any{
			"metadata": map[string]any{"namespace": namespace, "name": name},
			"spec":     map[string]any{"nodeName": node, "runtimeClassName": class},
			"status":   map[string]any{"hostIP": "192.0.2." + strings.TrimPrefix(node, "n"), "podIP": address},
		}
	}
	ended := func(p map[string]any, phase string) map[string]any {
		p["status"].(map[string]any)["phase"] = phase
		return p
	}
	all := []map[string]any{
		ended(pod("agents", "failed", "n2", "sallyport", "10.231.1.1"), "Failed"), ended(pod("teams", "done", "n3", "sallyport", "10.231.2.1"), "Succeeded"),
		pod("agents", "far", "n2", "sallyport", "10.231.2.1"), pod("agents", "runc", "n2", "", "10.244.2.1"),
		pod("agents", "near", "n1", "sallyport", "10.231.1.1"), pod("teams", "teams", "n1", "sallyport", "10.231.1.3"), pod("agents", "same", "n2", "sallyport", "10.231.1.3"),
		pod("agents", "pooled", "n1", "sallyport", "10.231.1.2"), pod("agents", "ended", "n1", "sallyport", "10.231.1.9"), pod("agents", "twice", "n2", "sallyport", "10.231.2.2"), pod("teams", "twice", "n3", "sallyport", "10.231.2.2"),
	}
	api := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var found []map[string]any
		for _, p := range all {
			m := p["metadata"].(map[string]any)
			switch by := r.URL.Query().Get("fieldSelector"); {
			case by == "metadata.name="+m["name"].(string) && r.URL.Path == "/api/v1/namespaces/"+m["namespace"].(string)+"/pods",
				by == "status.podIP="+p["status"].(map[string]any)["podIP"].(string) && r.URL.Path == "/api/v1/pods":
				found = append(found, p)
			}
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"items": found})
	}))
	d := routerDaemon(t, &bytes.Buffer{})
	d.node = &podHost{cluster: clusterAt(t, api, d.log)}
	d.routed = listening(t)
	port := d.routed.Addr().(*net.TCPAddr).AddrPort().Port()
	for _, tt := range []struct {
		to   inbound.Route
		want string // the sandbox's ID, or its node
	}{
		{inbound.Route{Namespace: "agents", Name: "near"}, "sb-near"},
		{inbound.Route{Address: netip.MustParseAddr("10.231.1.1")}, "sb-near"},
		{inbound.Route{Namespace: "agents", Name: "far"}, "192.0.2.2"},
		{inbound.Route{Address: netip.MustParseAddr("10.231.2.1")}, "192.0.2.2"},
		{inbound.Route{Namespace: "teams", Name: "near"}, ""},
		{inbound.Route{Namespace: "agents", Name: "pooled"}, ""},
		{inbound.Route{Address: netip.MustParseAddr("10.231.1.2")}, ""},
		{inbound.Route{Namespace: "agents", Name: "runc"}, ""},
		{inbound.Route{Address: netip.MustParseAddr("10.244.2.1")}, ""},
		{inbound.Route{Namespace: "agents", Name: "ended"}, ""},
		{inbound.Route{Address: netip.MustParseAddr("10.231.2.2")}, ""},
		{inbound.Route{Address: netip.MustParseAddr("10.231.1.3")}, ""}, // of a pod here, and of one on another node
		{inbound.Route{Namespace: "agents", Name: "same"}, "192.0.2.2"},
		{inbound.Route{Namespace: "teams", Name: "done"}, ""},
	} {
		at, err := d.find(t.Context(), tt.to)
		got := at.Sandbox.ID
		if at.Node.IsValid() {
			got = at.Node.Addr().String()
			if at.Node.Port() != port {
				t.Errorf("%+v: port %d of that node, want %d", tt.to, at.Node.Port(), port)
			}
		}
		if got != tt.want || (tt.want == "") != errors.Is(err, inbound.ErrNotPlaced) {
			t.Errorf("%+v: got %q %v, want %q", tt.to, got, err, tt.want)
		}
	}
}

// The gateway's process reaches ports that an expose rule allows, of sandboxes of the clients'
// namespaces, and no others.
func TestRouterReaches(t *testing.T) {
	d := routerDaemon(t, &bytes.Buffer{})
	for _, tt := range []struct {
		id   string
		port uint16
		want bool
	}{
		{"sb-near", 0, true}, {"sb-near", 8888, true}, {"sb-near", 22, false}, {"sb-pooled", 0, false}, {"sb-teams", 8888, false}, {"sb-nobody", 0, false},
	} {
		if got := d.routable(tt.id, tt.port); got != tt.want {
			t.Errorf("%s:%d: got %v", tt.id, tt.port, got)
		}
	}
}

// The files are read again when they change. A client without a good token is refused, and
// others go on.
func TestRouterFiles(t *testing.T) {
	var log bytes.Buffer
	d := routerDaemon(t, &log)
	file := d.cfg.Pods.Router.Clients[0].TokenFile
	for _, tt := range []struct {
		name, text string
		mode       os.FileMode
		ok         bool
	}{
		{"two tokens", strings.Repeat("b", 32) + "\n" + routerToken + "\n", 0o400, true},
		{"a short token", routerToken + "\nshort", 0o400, false},
		{"an empty file", "", 0o400, false},
		{"a file that others can read", routerToken, 0o444, false},
	} {
		must.OK(t, os.RemoveAll(file))
		must.OK(t, os.WriteFile(file, []byte(tt.text), tt.mode))
		now, err := d.readRouter()
		must.OK(t, err)
		if got := access.RouterClientOf(now.Clients, routerToken).MayAsk("agents"); got != tt.ok {
			t.Errorf("%s: the client may ask: %v", tt.name, got)
		}
		if strings.Contains(log.String(), routerToken) || strings.Contains(log.String(), "agents-api") == tt.ok {
			t.Errorf("%s: logged %s", tt.name, log.String())
		}
		log.Reset()
	}
	// A token ends also when the certificate is not good.
	must.OK(t, os.WriteFile(d.cfg.Pods.Router.Certificate, []byte("none"), 0o600))
	now, err := d.readRouter()
	must.OK(t, err)
	if before := d.router.now.Load(); !bytes.Equal(now.Certificate, before.Certificate) || len(before.Clients) != 1 || len(now.Clients) != 0 {
		t.Errorf("got the certificate %s and %d clients", now.Certificate, len(now.Clients))
	}
	d.router.now.Store(nil)
	if _, err := d.readRouter(); err == nil {
		t.Error("a daemon starts with a file that is no certificate")
	}
}

// clusterAt is a client of a server that stands for the API server.
func clusterAt(t *testing.T, s *httptest.Server, log *slog.Logger) *pods.Client {
	t.Helper()
	t.Cleanup(s.Close)
	file := filepath.Join(t.TempDir(), "kubeconfig")
	authority := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
	must.OK(t, os.WriteFile(file, fmt.Appendf(nil, `{current-context: x, contexts: [{name: x, context: {cluster: c, user: u}}], users: [{name: u, user: {token: t}}],
		clusters: [{name: c, cluster: {server: %q, certificate-authority-data: %q}}]}`, s.URL, authority), 0o600))
	c, err := pods.Connect(file, log)
	must.OK(t, err)
	return c
}

func listening(t *testing.T) *net.TCPListener {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l.(*net.TCPListener)
}

func routerDaemon(t *testing.T, log *bytes.Buffer) *daemon {
	t.Helper()
	dir := t.TempDir()
	ca, err := testnet.NewCA()
	must.OK(t, err)
	leaf, err := ca.Leaf("sallyport-router.sallyport.svc")
	must.OK(t, err)
	key, err := x509.MarshalPKCS8PrivateKey(leaf.PrivateKey)
	must.OK(t, err)
	c := config.PodsRouter{
		Certificate: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key"),
		Clients: []config.PodsRouterClient{{Name: "agents-api", TokenFile: filepath.Join(dir, "token"), Namespaces: []string{"agents"}}},
	}
	must.OK(t, os.WriteFile(c.Certificate, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Certificate[0]}), 0o600))
	must.OK(t, os.WriteFile(c.Key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}), 0o600))
	must.OK(t, os.WriteFile(c.Clients[0].TokenFile, []byte(routerToken+"\n"), 0o400))
	info := func(namespace, name, address string, offline bool) sandbox.Info {
		return sandbox.Info{Name: namespace + "/" + name, ID: "sb-" + name, State: sandbox.Running, Address: netip.MustParseAddr(address), Spec: sandbox.Spec{Owner: namespace, Offline: offline}}
	}
	p, err := engine.Compile(t.Context(), policy.Document{Expose: []policy.ExposeRule{{Name: "api", Ports: []uint16{8888}}}}, engine.Options{})
	must.OK(t, err)
	d := &daemon{
		cfg: &config.Config{Pods: config.Pods{Node: "n1", Router: c}}, log: slog.New(slog.NewTextHandler(log, nil)), rules: new(engine.Engine), router: &router{lookups: quota.New(maxLookups, maxLookups)},
		sandboxes: podsHere{list: []sandbox.Info{info("agents", "near", "10.231.1.1", false), info("agents", "pooled", "10.231.1.2", true), info("teams", "teams", "10.231.1.3", false)}},
	}
	d.rules.Swap(p)
	now, err := d.readRouter()
	must.OK(t, err)
	d.router.now.Store(now)
	return d
}

// While the API server does not answer, a few of those that look for sandboxes elsewhere wait,
// of one namespace, or by addresses of one client, no more than are left for others: each takes one
// of the gateway's calls. Sandboxes that are here are found.
func TestRouterFindsWhileTheServerIsSlow(t *testing.T) {
	at := func(a string) inbound.Route {
		return inbound.Route{Address: netip.MustParseAddr(a), Client: "agents-api"}
	}
	for name, tt := range map[string]struct{ many, one, other inbound.Route }{
		"by name":    {inbound.Route{Namespace: "agents", Name: "far"}, inbound.Route{Namespace: "teams", Name: "far"}, at("10.231.2.1")},
		"by address": {at("10.231.2.1"), inbound.Route{Address: netip.MustParseAddr("10.231.2.2"), Client: "teams-api"}, inbound.Route{Namespace: "teams", Name: "far"}},
	} {
		t.Run(name, func(t *testing.T) { findsWhileTheServerIsSlow(t, tt.many, tt.one, tt.other) })
	}
}

func findsWhileTheServerIsSlow(t *testing.T, many, one, other inbound.Route) {
	t.Helper()
	asked, goOn := make(chan struct{}, 10*maxLookups), make(chan struct{})
	api := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		<-goOn
		_, _ = w.Write([]byte(`{"items": []}`))
	}))
	d := routerDaemon(t, &bytes.Buffer{})
	d.node = &podHost{cluster: clusterAt(t, api, d.log)}
	found := make(chan error, 10*maxLookups)
	find := func(to inbound.Route) {
		go func() { _, err := d.find(t.Context(), to); found <- err }()
	}
	for range 2 * maxLookups {
		find(many)
	}
	for range 2*maxLookups - maxLookups/2 { // which are not let wait
		if err := <-found; !errors.Is(err, inbound.ErrNotPlaced) {
			t.Error(err)
		}
	}
	for range maxLookups / 2 {
		<-asked
	}
	find(one)
	find(other)
	<-asked
	<-asked
	if at, err := d.find(t.Context(), inbound.Route{Namespace: "agents", Name: "near"}); at.Sandbox.ID != "sb-near" {
		t.Errorf("a sandbox that is here: %+v, %v", at, err)
	}
	close(goOn)
	for range maxLookups/2 + 2 {
		if err := <-found; !errors.Is(err, inbound.ErrNotPlaced) {
			t.Error(err)
		}
	}
	if len(asked) > 0 {
		t.Errorf("asked %d times more", len(asked))
	}
}
