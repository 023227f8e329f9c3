package pods

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"sallyport/internal/test/must"
	"sallyport/internal/test/testnet"
)

// fakeServer is as much of an API server as a Client asks: a pod, a list and a watch of a
// node's pods, and a node.
type fakeServer struct {
	*httptest.Server
	mu      sync.Mutex
	pods    []Pod
	node    map[string]any // metadata.resourceVersion, spec.taints and so on
	version int
	watches []chan watchEvent
	ends    chan struct{} // closed to end all watches
	refuse  int           // status of all answers, or 0
	refused int           // requests since
}

func newFakeServer(t *testing.T) *fakeServer {
	s := &fakeServer{version: 10, ends: make(chan struct{})}
	s.node = map[string]any{
		"metadata": map[string]any{"name": "n1", "resourceVersion": "7"}, "spec": map[string]any{"podCIDRs": []string{"10.244.1.0/24"}},
		"status": map[string]any{"addresses": []map[string]string{{"type": "InternalIP", "address": "192.0.2.4"}, {"type": "Hostname", "address": "n1"}}},
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/v1/namespaces/{ns}/pods/{name}", func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, p := range s.pods {
			if p.Namespace == r.PathValue("ns") && p.Name == r.PathValue("name") {
				s.answer(w, p, "Pod")
				return
			}
		}
		s.fail(w, http.StatusNotFound)
	})
	mux.HandleFunc("GET /api/v1/pods", s.list)
	mux.HandleFunc("GET /api/v1/nodes/n1", func(w http.ResponseWriter, _ *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.answer(w, s.node, "Node")
	})
	mux.HandleFunc("PATCH /api/v1/nodes/n1", func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		var p map[string]map[string]any
		body, _ := io.ReadAll(r.Body)
		meta := s.node["metadata"].(map[string]any)
		if json.Unmarshal(body, &p) != nil || p["metadata"]["resourceVersion"] != meta["resourceVersion"] || r.Header.Get("Content-Type") != "application/merge-patch+json" {
			s.fail(w, http.StatusConflict)
			return
		}
		s.node["spec"].(map[string]any)["taints"] = p["spec"]["taints"]
		meta["resourceVersion"] = meta["resourceVersion"].(string) + "1"
		s.answer(w, s.node, "Node")
	})
	s.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		status := s.refuse
		if status != 0 {
			s.refused++
		}
		s.mu.Unlock()
		if status != 0 {
			s.fail(w, status)
			return
		}
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *fakeServer) answer(w http.ResponseWriter, v any, kind string) {
	data, _ := json.Marshal(v)
	var with map[string]any
	_ = json.Unmarshal(data, &with)
	with["kind"], with["apiVersion"] = kind, "v1"
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(with)
}

func (s *fakeServer) fail(w http.ResponseWriter, status int) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status, "message": http.StatusText(status)})
}

func (s *fakeServer) list(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	if q.Get("fieldSelector") != "spec.nodeName=n1" {
		s.fail(w, http.StatusForbidden)
		return
	}
	s.mu.Lock()
	if q.Get("watch") == "" {
		s.answer(w, map[string]any{"metadata": map[string]any{"resourceVersion": fmt.Sprint(s.version)}, "items": s.pods}, "PodList")
		s.mu.Unlock()
		return
	}
	if q.Get("resourceVersion") != fmt.Sprint(s.version) || q.Get("timeoutSeconds") == "" { // it would miss something
		s.mu.Unlock()
		s.fail(w, http.StatusGone)
		return
	}
	events, ends := make(chan watchEvent, 10), s.ends
	s.watches = append(s.watches, events)
	s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	w.(http.Flusher).Flush()
	for {
		select {
		case e := <-events:
			_ = json.NewEncoder(w).Encode(e)
			w.(http.Flusher).Flush()
		case <-ends:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// watchEvent is one of a watch.
type watchEvent struct {
	Type   string `json:"type"`
	Object any    `json:"object"`
}

// set has a pod with labels, or without nil labels no pod, and tells watches unless quietly.
func (s *fakeServer) set(name string, labels map[string]string, quietly bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	var p Pod
	p.Namespace, p.Name, p.UID, p.Labels, p.ResourceVersion, p.Spec.NodeName = "ns", name, "uid-"+name, labels, fmt.Sprint(s.version), "n1"
	kind := "MODIFIED"
	at := slices.IndexFunc(s.pods, func(p Pod) bool { return p.Name == name })
	switch {
	case labels == nil:
		s.pods = slices.Delete(s.pods, at, at+1)
		kind = "DELETED"
	case at < 0:
		s.pods = append(s.pods, p)
		kind = "ADDED"
	default:
		s.pods[at] = p
	}
	if quietly {
		return
	}
	e := watchEvent{kind, p}
	for _, w := range s.watches {
		w <- e
	}
}

// breakOff ends all watches.
func (s *fakeServer) breakOff() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.ends)
	s.ends, s.watches = make(chan struct{}), nil
}

func (s *fakeServer) watched() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.watches) > 0
}

// authority is that of a server with TLS, as a kubeconfig has it.
func authority(s *httptest.Server) string {
	return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
}

func (s *fakeServer) connect(t *testing.T) *Client {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	must.OK(t, os.WriteFile(file, []byte(`{"apiVersion":"v1","kind":"Config","clusters":[{"name":"c","cluster":{"server":"`+s.URL+`","certificate-authority-data":"`+authority(s.Server)+`"}}],
		"users":[{"name":"u","user":{"token":"t"}}],"contexts":[{"name":"x","context":{"cluster":"c","user":"u"}}],"current-context":"x"}`), 0o600))
	c, err := Connect(file, slog.New(slog.DiscardHandler))
	must.OK(t, err)
	return c
}

// heard is a Follower that keeps what it is told.
type heard struct {
	mu     sync.Mutex
	there  map[string]string // team by pod
	synced bool
}

func (h *heard) Changed(p *Pod) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.there[p.Name] = p.Labels["team"]
}

func (h *heard) Gone(p *Pod) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.there, p.Name)
}

func (h *heard) Synced() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.synced = true
}

func (h *heard) is(want string) func() bool {
	return func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		var list []string
		for name, team := range h.there {
			list = append(list, name+"="+team)
		}
		slices.Sort(list)
		return h.synced && strings.Join(list, " ") == want
	}
}

// A Follower hears of the node's pods as they are, also of what changed and went while the
// server was away.
func TestFollow(t *testing.T) {
	s := newFakeServer(t)
	s.set("a", map[string]string{"team": "red"}, true)
	s.set("b", map[string]string{"team": "red"}, true)
	h := &heard{there: map[string]string{}}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	c := s.connect(t)
	var log bytes.Buffer
	c.log = slog.New(slog.NewTextHandler(&log, nil))
	go func() { done <- c.Follow(ctx, "n1", h) }()
	must.Soon(t, "both are known", h.is("a=red b=red"))
	must.Soon(t, "the watch", s.watched)
	s.set("a", map[string]string{"team": "blue"}, false)
	must.Soon(t, "a changed label", h.is("a=blue b=red"))
	s.set("c", map[string]string{"team": "red"}, false)
	s.set("b", nil, false)
	must.Soon(t, "one more, and one less", h.is("a=blue c=red"))

	s.set("a", map[string]string{"team": "green"}, true)
	s.set("c", nil, true)
	s.mu.Lock()
	s.refuse = http.StatusServiceUnavailable
	s.mu.Unlock()
	s.breakOff()
	must.Soon(t, "it asks a server that is away", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.refused > 0
	})
	s.mu.Lock()
	s.refuse = 0
	s.mu.Unlock()
	must.Soon(t, "the watch again", s.watched)
	// A server that has been away no longer knows the version that was watched from.
	s.mu.Lock()
	e := watchEvent{"ERROR", map[string]any{"kind": "Status", "status": "Failure", "code": http.StatusGone, "reason": "Expired", "message": "too old resource version"}}
	for _, w := range s.watches {
		w <- e
	}
	s.mu.Unlock()
	must.Soon(t, "what happened meanwhile", h.is("a=green"))
	must.Soon(t, "another watch", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.watches) > 1
	})
	cancel()
	must.OK(t, <-done)
	if !strings.Contains(log.String(), "too old resource version") {
		t.Errorf("why the server ended the watch is not said: %s", log.String())
	}
}

// A pod is read anew each time, and the node has the taint when it should.
func TestClient(t *testing.T) {
	s := newFakeServer(t)
	c := s.connect(t)
	s.set("a", map[string]string{"team": "red"}, true)
	p, err := c.Pod(t.Context(), "ns", "a")
	must.OK(t, err)
	if p.Labels["team"] != "red" {
		t.Errorf("got %+v", p)
	}
	if _, err := c.Pod(t.Context(), "ns", "b"); err == nil {
		t.Error("a pod that is not there")
	}
	spec := s.node["spec"].(map[string]any)
	spec["taints"] = []any{map[string]any{"key": "other", "effect": "NoExecute", "timeAdded": "2026-11-27T00:00:00Z"}}
	for _, on := range []bool{true, true, false, false} {
		must.OK(t, c.Taint(t.Context(), "n1", on))
		want := []string{"other"}
		if on {
			want = append(want, NotReady)
		}
		var got []string
		for _, t := range spec["taints"].([]any) {
			got = append(got, t.(map[string]any)["key"].(string))
		}
		if !slices.Equal(got, want) {
			t.Errorf("taints %v, want %v", got, want)
		}
	}
	list, err := c.Local(t.Context(), "n1")
	must.OK(t, err)
	for _, want := range []string{"127.0.0.1/32", "192.0.2.4/32", "10.244.1.0/24"} {
		if !slices.Contains(list, netip.MustParsePrefix(want)) {
			t.Errorf("local are %v, want %s among them", list, want)
		}
	}
	s.refuse = http.StatusForbidden
	if c.Taint(t.Context(), "n1", true) == nil {
		t.Error("a refusal is not told")
	}
}

// A kubeconfig's authority is the only one that is trusted, and its token, which is read
// anew for each request, is not sent elsewhere.
func TestAccess(t *testing.T) {
	var seen []string
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t.Errorf("asked elsewhere, with %q", r.Header.Get("Authorization"))
	}))
	t.Cleanup(elsewhere.Close)
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen = append(seen, r.Header.Get("Authorization"))
		http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
	}))
	t.Cleanup(s.Close)
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
		return filepath.Join(dir, name)
	}
	config := func(authority string) *Client {
		t.Helper()
		c, err := Connect(write("kubeconfig", fmt.Sprintf(`
apiVersion: v1
current-context: x
contexts:
- {name: other, context: {cluster: a, user: b}}
- {name: x, context: {cluster: c, user: u}}
clusters:
- name: c
  cluster: {server: %q%s}
users:
- name: u
  user: {tokenFile: token}
`, s.URL, authority)), slog.New(slog.DiscardHandler))
		must.OK(t, err)
		return c
	}
	c := config(", certificate-authority-data: " + authority(s))
	for _, token := range []string{"one", "two"} {
		write("token", token+"\n")
		if _, err := c.Pod(t.Context(), "ns", "a"); err == nil || !strings.Contains(err.Error(), "307") {
			t.Errorf("got %v, want the server's answer", err)
		}
	}
	if want := []string{"Bearer one", "Bearer two"}; !slices.Equal(seen, want) {
		t.Errorf("the server saw %q, want %q", seen, want)
	}
	if _, err := config("").Pod(t.Context(), "ns", "a"); err == nil || len(seen) > 2 {
		t.Errorf("a server of an unknown authority: %v", err)
	}
	write("ca.crt", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})))
	if _, err := config(", certificate-authority: ca.crt").Pod(t.Context(), "ns", "a"); err == nil || len(seen) != 3 {
		t.Errorf("by the file of its authority: %v", err)
	}
	for _, text := range []string{"{}", "current-context: x", "a: [", "current-context: x\ncontexts: [{name: x, context: {cluster: c, user: u}}]"} {
		if _, err := Connect(write("kubeconfig", text), slog.New(slog.DiscardHandler)); err == nil {
			t.Errorf("%s: is taken", text)
		}
	}
	const noLogin = "current-context: x\ncontexts: [{name: x, context: {cluster: c, user: u}}]\nclusters: [{name: c, cluster: {server: 'https://192.0.2.1'}}]\nusers: [{name: u, user: {exec: {command: get-token}}}]"
	if _, err := Connect(write("kubeconfig", noLogin), slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), `user "u" has neither token`) {
		t.Errorf("a user without a way to log in that is read: %v", err)
	}
	const clear = "current-context: x\ncontexts: [{name: x, context: {cluster: c, user: u}}]\nclusters: [{name: c, cluster: {server: 'http://192.0.2.1:6443'}}]\nusers: [{name: u, user: {token: t}}]"
	if _, err := Connect(write("kubeconfig", clear), slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "write https://192.0.2.1:6443") {
		t.Errorf("a server without TLS: %v", err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if _, err := Connect("", slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "pods.kubeconfig") {
		t.Errorf("in no pod: %v", err)
	}
}

// The authorities of a file are those that it has when a connection begins: a rotation takes effect
// without a restart, and a file without a certificate changes nothing.
func TestAuthorityRotates(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 { // by which a watch is told from a server that is gone
			t.Errorf("asked by %s", r.Proto)
		}
		_, _ = io.WriteString(w, "{}")
	}))
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	other, err := testnet.NewCA()
	must.OK(t, err)
	dir := t.TempDir()
	trust := func(text []byte) { must.OK(t, os.WriteFile(filepath.Join(dir, "ca.crt"), text, 0o600)) }
	trust(other.PEM())
	file := filepath.Join(dir, "kubeconfig")
	must.OK(t, os.WriteFile(file, fmt.Appendf(nil, `{current-context: x, contexts: [{name: x, context: {cluster: c, user: u}}], users: [{name: u, user: {token: t}}],
		clusters: [{name: c, cluster: {server: %q, certificate-authority: ca.crt}}]}`, s.URL), 0o600))
	var log bytes.Buffer
	c, err := Connect(file, slog.New(slog.NewTextHandler(&log, nil)))
	must.OK(t, err)
	for _, tt := range []struct {
		name        string
		file        []byte
		asks, tells bool
	}{
		{"another authority", other.PEM(), false, false},
		{"rotated", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), true, false},
		{"no certificate", []byte("-----BEGIN"), true, true},
		{"rotated away", other.PEM(), false, false},
	} {
		trust(tt.file)
		log.Reset()
		c.http.CloseIdleConnections()
		_, err := c.Pod(t.Context(), "ns", "a")
		if (err == nil) != tt.asks || err != nil && !strings.Contains(err.Error(), "unknown authority") || strings.Contains(log.String(), "cannot be read again") != tt.tells {
			t.Errorf("%s: got %v, want an answer: %v. Logged:\n%s", tt.name, err, tt.asks, log.String())
		}
	}
	c.http.CloseIdleConnections()
}

// A client's certificate that is renewed takes the place of the one before as soon as the server no
// longer takes that, over whichever connection.
func TestClientCertificateIsRenewed(t *testing.T) {
	var takes atomic.Pointer[string]
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS.PeerCertificates[0].Subject.CommonName != *takes.Load() {
			http.Error(w, `{"kind": "Status", "message": "Unauthorized"}`, http.StatusUnauthorized)
			return
		}
		_, _ = io.WriteString(w, "{}")
	}))
	s.EnableHTTP2, s.TLS = true, &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	s.StartTLS()
	t.Cleanup(s.Close)
	ca, err := testnet.NewCA()
	must.OK(t, err)
	dir := t.TempDir()
	has := func(name string) {
		t.Helper()
		pair, err := ca.Issue(pkix.Name{CommonName: name})
		must.OK(t, err)
		key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
		must.OK(t, err)
		both := append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})...)
		must.OK(t, os.WriteFile(filepath.Join(dir, "client.pem"), both, 0o600))
	}
	has("first")
	file := filepath.Join(dir, "kubeconfig")
	must.OK(t, os.WriteFile(file, fmt.Appendf(nil, `{current-context: x, contexts: [{name: x, context: {cluster: c, user: u}}], users: [{name: u, user: {client-certificate: client.pem, client-key: client.pem}}],
		clusters: [{name: c, cluster: {server: %q, certificate-authority-data: %q}}]}`, s.URL, authority(s)), 0o600))
	c, err := Connect(file, slog.New(slog.DiscardHandler))
	must.OK(t, err)
	t.Cleanup(c.http.CloseIdleConnections)
	for _, name := range []string{"first", "second", "third"} {
		has(name)
		takes.Store(&name)
		must.Soon(t, name+" is taken", func() bool { _, err := c.Pod(t.Context(), "ns", "a"); return err == nil })
	}
}
