package api_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/audit/index"
	"sallyport/gateway/access"
	"sallyport/gateway/ca"
	"sallyport/gateway/credential"
	"sallyport/gateway/credential/file"
	"sallyport/internal/api"
	"sallyport/internal/api/idempotency"
	"sallyport/internal/config"
	"sallyport/internal/recorded"
	"sallyport/internal/seal"
	"sallyport/internal/test/must"
	"sallyport/internal/test/ocsf"
	"sallyport/memory/keeper"
	"sallyport/policy"
	"sallyport/policy/approval"
	reqbody "sallyport/policy/body"
	"sallyport/policy/engine"
	"sallyport/sandbox"
	"sallyport/sandbox/agent"
	"sallyport/sandbox/agent/channel"
	"sallyport/sandbox/client"
	"sallyport/sandbox/manager"
)

// host stands for engine, network and log, which need root: its sandboxes are
// processes of the test's own. Store, clients, certificate authority, policy
// and manager are the real ones.
type host struct {
	layer string                // folder of what a sandbox has changed of its image
	audit string                // folder of the log
	root  atomic.Pointer[error] // what making a certificate authority fails with

	mended atomic.Bool // the configuration

	mu        sync.Mutex
	events    []*audit.Event
	keys      *api.Keys
	approvals *approval.Store
	remote    client.Remote // the same routes over TLS, without a key
	dir       string
	restart   func() // another daemon on the same folders
	line      line
	images    images
	retention *kept
}

func (h *host) Append(_ context.Context, events ...*audit.Event) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	ocsf.Must(events...)
	h.events = append(h.events, events...)
	return nil
}

func (h *host) Enqueue(e *audit.Event) error { return h.Append(context.Background(), e) }

// said are the messages of the events so far, with who is behind them.
func (h *host) said() (all []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.events {
		m := e.Message
		if e.Actor != nil {
			m += " by " + e.Actor.User.Name
		}
		all = append(all, m)
	}
	return all
}

func (*host) Create(context.Context, sandbox.Container) (sandbox.Image, error) {
	return sandbox.Image{}, nil
}
func (*host) Start(context.Context, string) (sandbox.Status, error) {
	return sandbox.Status{Running: true, Link: 1}, nil
}
func (*host) Stop(context.Context, string, time.Duration) error { return nil }
func (*host) Remove(context.Context, string) error              { return nil }
func (*host) Status(context.Context, string) (sandbox.Status, error) {
	return sandbox.Status{}, nil
}
func (*host) Pause(context.Context, string) error  { return nil }
func (*host) Resume(context.Context, string) error { return nil }
func (*host) Checkpoint(_ context.Context, _, dir string, _ int64, _ bool, whole func()) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "checkpoint.img"), []byte("memory"), 0o600)
}
func (*host) RestoreMemoryLimit(context.Context, string) error    { return nil }
func (*host) CancelRestore(context.Context, string) (bool, error) { return false, nil }
func (*host) Restore(_ context.Context, _, _ string, fill func() error) (sandbox.Status, error) {
	if fill != nil {
		if err := fill(); err != nil {
			return sandbox.Status{}, err
		}
	}
	return sandbox.Status{Running: true, Link: 1}, nil
}
func (h *host) Layer(_ context.Context, id string) (string, error) {
	dir := filepath.Join(h.dir, "layers", id)
	return dir, os.MkdirAll(dir, 0o700)
}
func (*host) Build(context.Context) (string, error)              { return "test", nil }
func (*host) Update(context.Context, string, sandbox.Spec) error { return nil }

func (*host) Exits(context.Context) (<-chan string, error) { return nil, nil }
func (*host) Attach(sandbox.Endpoint) error                { return nil }
func (*host) Detach(uint32) error                          { return nil }
func (*host) Endpoints() ([]sandbox.Endpoint, error)       { return nil, nil }
func (*host) Contains(_ context.Context, value string) (name string, found bool, err error) {
	return "openai-api-key", value == "known secret", nil
}

// secrets is a store without the daemon's events.
type secrets struct{ store *file.Store }

func (s secrets) Set(_ context.Context, name string, fields map[string]credential.Secret) error {
	if name == "in-vault" {
		return api.ErrElsewhere
	}
	_, err := s.store.Set(name, fields)
	return err
}

func (s secrets) Delete(_ context.Context, name string) error { return s.store.Delete(name) }

func (s secrets) RotateKey(context.Context) (api.Rotation, error) {
	n, err := s.store.RotateKey()
	return api.Rotation{Secrets: n}, err
}

func (s secrets) History(name string) (list []api.SecretChange, err error) {
	past, err := s.store.History(name)
	for _, c := range past {
		list = append(list, api.SecretChange(c))
	}
	return list, err
}

func (s secrets) List() (list []api.Secret, err error) {
	kept, err := s.store.List()
	for _, e := range kept {
		list = append(list, api.Secret{Name: e.Name, Source: "embedded", Updated: e.Updated})
	}
	return list, err
}

// clients is a store without the daemon's events.
type clients struct{ *access.Clients }

func (c clients) Add(_ context.Context, name string, tags map[string]string) (access.Client, string, error) {
	return c.Clients.Add(name, tags)
}

func (c clients) Remove(_ context.Context, name string) error { return c.Clients.Remove(name) }

const document = `
egress:
- {name: models, destination: models.example.test, body: {json: 1MiB}}
- {name: support, destination: docs.example.test, sandboxes: {tags: {team: support}}}
- {name: deploys, destination: deploy.example.test, sandboxes: {names: [deployer, host-1]}}
egressAuth: [{name: models with a key, destination: api.example.test, authRef: openai-api-key}]
credentials: [{name: openai-api-key}]
`

func need[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		must.OK(t, err)
		return v
	}
}

// serve runs the handler on a unix socket and returns a client of it, the
// socket's path and what to break. Without sandboxes it has none.
func serve(t *testing.T, sandboxes bool) (*client.Client, string, *host) {
	t.Helper()
	dir, h := t.TempDir(), &host{layer: t.TempDir(), retention: new(kept)}
	key := need[*seal.Key](t)(seal.Open(filepath.Join(t.TempDir(), "key"), dir))
	authority := need[*ca.Authority](t)(ca.Open(ca.Options{Dir: filepath.Join(dir, "ca"), Sealer: key}))
	cfg := need[*config.Config](t)(config.Parse(filepath.Join(dir, "sallyport.yaml"), []byte(document)))
	rules := need[*engine.Policy](t)(engine.Compile(t.Context(), cfg.Document, engine.Options{}))
	opt := api.Options{
		Secrets: secrets{need[*file.Store](t)(file.New(dir, key))},
		Clients: clients{need[*access.Clients](t)(access.OpenClients(filepath.Join(dir, "clients.json")))},
		Root: func(id string) ([]byte, error) {
			if err := h.root.Load(); err != nil {
				return nil, *err
			}
			return authority.Root(id)
		},
		Forget: authority.Forget,
		Explain: func(ctx context.Context, in policy.Input, sent *reqbody.Raw) policy.Explanation {
			return rules.Explain(ctx, rules.Show(in, sent))
		},
		Named: rules.Names,
		Recorded: func(ctx context.Context, id string) (recorded.Explanation, error) {
			return recorded.Explain(ctx, rules, h.audit, id)
		},
		Reload: func(context.Context) error {
			if h.mended.Load() {
				return nil
			}
			return errors.New("line 3: no such key")
		},
		Shutdown:  func(context.Context) {},
		Status:    func() api.Status { return api.Status{Version: "test", PID: os.Getpid()} },
		Limits:    &limits{},
		Sinks:     sinks{},
		Retention: h.retention,
		Exposures: exposures{need[*access.Ports](t)(access.OpenPorts(filepath.Join(dir, "exposures.json")))},
		Logger:    slog.New(slog.DiscardHandler),
		Recorder:  actors{h},
		Events: func(ctx context.Context, from uint64) iter.Seq2[*audit.Event, error] {
			return auditlog.Read(ctx, h.audit, auditlog.Query{From: from, Kind: audit.KindLifecycle, Follow: true})
		},
		Audit: func(ctx context.Context, q index.Query) iter.Seq2[auditlog.Entry, error] {
			return index.Search(ctx, h.audit, "", q)
		},
	}
	h.dir, h.keys = dir, need[*api.Keys](t)(api.OpenKeys(filepath.Join(dir, "keys.json"), opt.Logger))
	opt.Keys = h.keys
	opt.Once = need[*idempotency.Store](t)(idempotency.Open(filepath.Join(dir, "once"), opt.Logger))
	opt.Approvals = need[*approval.Store](t)(approval.Open(approval.Options{Path: filepath.Join(dir, "approvals.json")}))
	h.approvals = opt.Approvals
	opt.Memory = keeper.New(keeper.Options{
		Dir: filepath.Join(dir, "sandboxes"), Hold: func(string) (func() error, error) { return func() error { return nil }, nil },
		Contacted: func(_ context.Context, _ string, after uint64, _ time.Time) ([]string, uint64, error) {
			return nil, after, nil
		},
		Secret:   func(context.Context, string) (string, bool, error) { return "", false, nil },
		Recorded: func(context.Context, string, uint64) (map[uint64]string, error) { return nil, nil },
		Record:   func(*audit.Event) error { return nil }, Trusted: func(string) bool { return false },
		Key: key, Logger: opt.Logger,
	})
	t.Cleanup(func() { _ = opt.Memory.Close() })
	if sandboxes {
		opt.Manager = need[*manager.Manager](t)(manager.Open(t.Context(), manager.Options{
			Dir: filepath.Join(dir, "sandboxes"), Subnet: netip.MustParsePrefix("10.9.0.0/24"),
			Defaults: sandbox.Spec{Image: "base", Runtime: sandbox.GVisor, Pids: 100, CPUs: 2, Memory: 1 << 30, Disk: 1 << 30},
			Disks:    noDisks{},
			Runtime:  h, Network: h, Authority: authority, Secrets: h, Recorder: actors{h}, Logger: opt.Logger,
			Images: &h.images, Memories: opt.Memory, Forget: opt.Memory.Forget,
			Agent: agents(t, &h.line), RAM: t.TempDir(), Key: key, Layers: layers(h.layer),
		}))
		t.Cleanup(func() { _ = opt.Manager.Close() })
		opt.Sandboxes = opt.Manager
	}
	socket := filepath.Join(t.TempDir(), "s")
	routes := checked(t, api.NewHandler(opt))
	run := func(s *http.Server, l net.Listener) {
		served := make(chan struct{})
		go func() { defer close(served); _ = s.Serve(l) }()
		t.Cleanup(func() { _ = l.Close(); <-served })
	}
	run(api.Local(need[net.Listener](t)(net.Listen("unix", socket)), routes, opt.Logger))

	certificate := need[tls.Certificate](t)(api.Certificate(filepath.Join(dir, "api.sealed"), key, "127.0.0.1"))
	l := need[net.Listener](t)(net.Listen("tcp", "127.0.0.1:0"))
	h.remote = client.Remote{URL: "https://" + l.Addr().String(), Fingerprint: api.Fingerprint(certificate)}
	run(api.Remote(l, certificate, routes, opt.Logger, nil))
	h.restart = func() {
		opt.Once = need[*idempotency.Store](t)(idempotency.Open(filepath.Join(dir, "once"), opt.Logger))
		opt.Keys = need[*api.Keys](t)(api.OpenKeys(filepath.Join(dir, "keys.json"), opt.Logger))
		again := need[tls.Certificate](t)(api.Certificate(filepath.Join(dir, "api.sealed"), key, "127.0.0.1"))
		l := need[net.Listener](t)(net.Listen("tcp", "127.0.0.1:0"))
		h.remote = client.Remote{URL: "https://" + l.Addr().String(), Fingerprint: api.Fingerprint(again)}
		run(api.Remote(l, again, checked(t, api.NewHandler(opt)), opt.Logger, nil))
	}
	c := client.Unix(socket)
	t.Cleanup(c.Close)
	return c, socket, h
}

// actors is the daemon's trail, as far as it names operators.
type actors struct{ *host }

func (a actors) Append(ctx context.Context, events ...*audit.Event) error {
	audit.Attribute(ctx, events...)
	return a.host.Append(ctx, events...)
}

// layers is the folder of what each sandbox has changed of its image.
type layers string

func (l layers) Layers(context.Context, string) (string, []string, error) { return string(l), nil, nil }

// agents runs one agent's server in this process, which every sandbox has.
func agents(t *testing.T, by *line) channel.Options {
	pub, key, err := ed25519.GenerateKey(nil)
	must.OK(t, err)
	l := need[net.Listener](t)(net.Listen("tcp4", "127.0.0.1:0"))
	s := agent.NewServer(agent.Options{Key: pub})
	served := make(chan struct{})
	go func() { defer close(served); _ = s.Serve(l) }()
	t.Cleanup(func() { _ = l.Close(); <-served })
	return channel.Options{Key: key, Dial: func(ctx context.Context, _ netip.AddrPort) (net.Conn, error) {
		return by.dial(ctx, l.Addr().String())
	}}
}

// line is the way to the agents.
type line struct {
	breaks atomic.Bool // each connection, when a request has gone out that waits for 100 Continue

	mu   sync.Mutex
	cut  bool
	open []net.Conn
}

func (l *line) dial(ctx context.Context, to string) (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut {
		return nil, syscall.EHOSTUNREACH
	}
	c, err := new(net.Dialer).DialContext(ctx, "tcp4", to)
	if err != nil {
		return nil, err
	}
	c = &carried{c, l}
	l.open = append(l.open, c)
	return c, nil
}

// end breaks what is open, and lets nothing be opened while the line is cut.
func (l *line) end(cut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.open {
		_ = c.Close()
	}
	l.cut, l.open = cut, nil
}

type carried struct {
	net.Conn
	line *line
}

func (c *carried) Write(p []byte) (int, error) {
	if c.line.breaks.Load() && bytes.Contains(p, []byte("Expect: 100-continue")) {
		_ = c.Close()
		return len(p), nil // it went, and nobody answers
	}
	return c.Conn.Write(p)
}

// noDisks stand for disks that nothing is written to.
type noDisks struct{}

func (noDisks) Make(string, int64) (string, error)                            { return "", nil }
func (noDisks) Attach(string) error                                           { return nil }
func (noDisks) Settle(string) error                                           { return nil }
func (noDisks) Detach(string) error                                           { return nil }
func (noDisks) Layer(string) string                                           { return "layer" }
func (noDisks) Freeze(string) (func() error, error)                           { return func() error { return nil }, nil }
func (noDisks) Thaw(string) error                                             { return nil }
func (noDisks) Pack(context.Context, string, io.Writer) error                 { return nil }
func (noDisks) Unpack(context.Context, string, io.Reader, func() error) error { return nil }
func (noDisks) Copy(context.Context, string, string, func() error) error      { return nil }
func (noDisks) Move(string, string) error                                     { return nil }
func (noDisks) Drop(string) error                                             { return nil }
func (noDisks) Look(string) (*os.File, error)                                 { return nil, os.ErrNotExist }

// keyed makes a key and returns a client that has it, and its text.
func keyed(t *testing.T, h *host, name, tenant string, scopes ...string) (*client.Client, string) {
	t.Helper()
	made, text, err := h.keys.Create(api.Key{Name: name, Tenant: tenant, Scopes: need[[]api.Scope](t)(api.ParseScopes(scopes))})
	if err != nil {
		t.Fatal(made, err)
	}
	return dialed(t, h, text), text
}

func dialed(t *testing.T, h *host, text string) *client.Client {
	t.Helper()
	r := h.remote
	r.KeyFile = filepath.Join(t.TempDir(), "key")
	must.OK(t, os.WriteFile(r.KeyFile, []byte(text+"\n"), 0o600))
	c := need[*client.Client](t)(client.Dial(r))
	t.Cleanup(c.Close)
	return c
}

// raw sends a request over TLS and returns the status and the end of the problem's
// type.
func raw(t *testing.T, h *host, text, method, path, body string, header ...string) (status int, kind string, answer []byte, head http.Header) {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} // TestFingerprint has the check
	defer transport.CloseIdleConnections()
	req := need[*http.Request](t)(http.NewRequestWithContext(t.Context(), method, h.remote.URL+path, strings.NewReader(body)))
	if text != "" {
		req.Header.Set("Authorization", "Bearer "+text)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp := need[*http.Response](t)(transport.RoundTrip(req))
	defer resp.Body.Close()
	if resp.Header.Get("Content-Type") == "text/event-stream" || resp.StatusCode == http.StatusSwitchingProtocols {
		return resp.StatusCode, "", nil, resp.Header
	}
	answer = need[[]byte](t)(io.ReadAll(resp.Body))
	var p api.Problem
	_ = json.Unmarshal(answer, &p)
	return resp.StatusCode, strings.TrimPrefix(p.Type, client.ProblemType), answer, resp.Header
}

func must2(_ *client.Client, text string) string { return text }
