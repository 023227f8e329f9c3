package daemon

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/audit/index"
	"sallyport/gateway/access"
	"sallyport/internal/daemon/contact"
	"sallyport/internal/secretfile"
	"sallyport/memory"
	"sallyport/memory/keeper"
	"sallyport/memory/layer"
	"sallyport/memory/search"
	"sallyport/sandbox/disk"
	"sallyport/sandbox/manager"
)

// openMemories makes the keeper of the sandboxes' memories.
func (d *daemon) openMemories(context.Context) error {
	d.contacts = &contact.Contacts{Dir: d.cfg.AuditDir(), Index: d.cfg.AuditIndex(), Worker: func() int {
		if d.supervisor == nil { // no sandbox has a connection
			return 0
		}
		return d.supervisor.Status().PID
	}}
	o := keeper.Options{
		Dir: d.cfg.SandboxesDir(), Hold: disk.Hold, Contacted: d.contacts.Of, Secret: d.broker.Contains,
		Recorded: d.recordedMemory, Record: d.auditLog.Enqueue, Current: d.isCurrent,
		Trusted: func(host string) bool { return d.inForce.Load().Memory.Trusts(host) },
		Key:     d.key, Most: int64(d.cfg.Memory.History), Logger: d.log,
	}
	if m := d.cfg.Memory.Embeddings; m.URL != "" {
		o.Embedder = search.HTTPEmbedder{URL: m.URL, Model: m.Model, Client: d.modelClient()}
	}
	if m := d.cfg.Memory.Summaries; m.URL != "" {
		o.Summarize = layer.HTTPSummarizer{URL: m.URL, Model: m.Model, Client: d.modelClient()}.Summarize
	}
	d.memories = keeper.New(o)
	d.onClose(d.memories.Close)
	return nil
}

// isCurrent says whether a sandbox still has its name.
func (d *daemon) isCurrent(o memory.Owner) bool {
	if d.sandboxes == nil { // the sandboxes are being opened
		return true
	}
	i, err := d.sandboxes.Get(o.Name)
	return err == nil && i.ID == o.ID
}

// recordedMemory returns the digests of a memory's commits that the audit log has in events
// with larger numbers than after: the first of each, since later ones may be of a history
// that somebody has changed.
func (d *daemon) recordedMemory(ctx context.Context, id string, after uint64) (map[uint64]string, error) {
	found := map[uint64]string{}
	q := index.Query{From: after + 1, Sandbox: id, Kind: audit.KindLifecycle, Text: "memory"}
	for e, err := range auditlog.Undamaged(index.Search(ctx, d.cfg.AuditDir(), d.cfg.AuditIndex(), q)) {
		if err != nil {
			return nil, err
		}
		if m := e.Event.Unmapped.Sallyport.Memory; m != nil && found[m.Number] == "" {
			found[m.Number] = m.Digest
		}
	}
	return found, nil
}

// memoryOwners are all sandboxes that have a memory.
func (d *daemon) memoryOwners() (all []memory.Owner) {
	if d.host == nil {
		return nil
	}
	for _, i := range d.host.manager.List() {
		all = append(all, manager.MemoryOwner(i))
	}
	return all
}

// recheckMemories compares what all memories hold with the secrets as they are now.
func (d *daemon) recheckMemories() {
	if d.memories == nil {
		return
	}
	if err := d.memories.Recheck(d.memoryOwners()); err != nil {
		d.log.Error("a memory is not compared with a new secret", "error", err)
	}
}

// markMemories has all memories compared with the secrets by the next daemon.
func (d *daemon) markMemories() error {
	folders, err := filepath.Glob(filepath.Join(d.cfg.SandboxesDir(), "*"))
	for _, f := range folders {
		if _, none := os.Stat(memory.Dir(f)); none == nil {
			err = errors.Join(err, keeper.MarkRecheck(f))
		}
	}
	return err
}

// modelTimeout is for an answer of a model.
const modelTimeout = 2 * time.Minute

// modelClient asks models by the explicit proxy, as the client that the configuration
// names: rules decide on its requests and inject the credential.
func (d *daemon) modelClient() *http.Client {
	return &http.Client{Timeout: modelTimeout, Transport: byProxy{d}}
}

type byProxy struct{ *daemon }

// RoundTrip implements http.RoundTripper. Requests are few: each has its own connection,
// and the client's token and root as they are now.
func (p byProxy) RoundTrip(r *http.Request) (*http.Response, error) {
	name := p.cfg.Memory.Client
	list := p.clients.List()
	at := slices.IndexFunc(list, func(c access.Client) bool { return c.Name == name })
	if at < 0 {
		return nil, fmt.Errorf("memory.client: %w: %s: add it with `sallyport client add`", access.ErrClientUnknown, name)
	}
	root, err := p.authority.Root(list[at].ID)
	if err != nil {
		return nil, err
	}
	token, err := secretfile.Read(p.cfg.Memory.TokenFile, maxSecretFile)
	if err != nil {
		return nil, fmt.Errorf("memory.tokenFile: %w", err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(root)
	t := &http.Transport{
		Proxy:             http.ProxyURL(&url.URL{Scheme: "http", Host: p.proxy.Addr().String(), User: url.UserPassword(name, strings.TrimSpace(string(token)))}),
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return p.dialProxy(ctx) },
		TLSClientConfig:   &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots},
		DisableKeepAlives: true,
	}
	return t.RoundTrip(r)
}

// dialProxy connects to this daemon's own proxy, which has the configured certificate if
// it has one.
func (d *daemon) dialProxy(ctx context.Context) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", d.proxy.Addr().String())
	if err != nil || d.cfg.Proxy.Certificate == "" {
		return conn, err
	}
	own, _, _, err := keyPair(d.cfg.Proxy.Certificate, d.cfg.Proxy.Key, secretfile.Read)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return tls.Client(conn, &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true, VerifyConnection: func(s tls.ConnectionState) error {
		if !slices.Equal(s.PeerCertificates[0].Raw, own.Certificate[0]) {
			return errors.New("the proxy has another certificate than the configured one")
		}
		return nil
	}}), nil
}

// readings tell when a secret could be read again.
type readings struct {
	again chan struct{} // has room for one

	mu     sync.Mutex
	failed map[string]bool // by the credential's name
}

func newReadings() *readings {
	return &readings{again: make(chan struct{}, 1), failed: map[string]bool{}}
}

// note takes a read. It does not wait for what follows.
func (r *readings) note(name string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failed[name] && err == nil {
		select {
		case r.again <- struct{}{}:
		default:
		}
	}
	r.failed[name] = err != nil
}

// followSecrets compares memories with secrets that they were not compared with: when the
// daemon begins, and when one can be read again.
func (d *daemon) followSecrets(ctx context.Context) error {
	for {
		d.memories.RecheckMissed(d.memoryOwners())
		select {
		case <-ctx.Done():
			return nil
		case <-d.readings.again:
		}
	}
}
