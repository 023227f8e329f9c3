package daemon

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sallyport/gateway/access"
	"sallyport/gateway/credential"
	"sallyport/internal/config"
	"sallyport/internal/test/must"
)

const enginesText = `vault: {address: "https://127.0.0.1:1", auth: {tokenFile: token}}
egressAuth:
- {destination: a.example.com, authRef: db, inject: {basic: {username: "{{ .username }}", password: "{{ .password }}"}}, sandboxes: {tags: {team: data}}}
credentials:
- {name: db, source: {vault: {path: database/creds/readonly}}}
`

// A reload that changes neither the server nor the role goes on with the same engine, whose
// leases the broker then keeps.
func TestReloadKeepsEngines(t *testing.T) {
	dir := t.TempDir()
	d := &daemon{cfg: parse(t, dir, enginesText)}
	d.log = slog.New(slog.DiscardHandler)
	t.Cleanup(func() { must.OK(t, d.close()) })
	must.OK(t, d.openAuditLog(t.Context()))
	must.OK(t, d.openLeases(t.Context()))
	engine := func(text string) credential.Source {
		t.Helper()
		sources, end, err := d.sources(parse(t, dir, text))
		must.OK(t, err)
		end()
		return sources["db"]
	}
	first := engine(enginesText)
	if _, ok := first.(credential.PerSandbox); !ok {
		t.Fatalf("the source is a %T", first)
	}
	if engine(enginesText) != first {
		t.Error("the same configuration has another engine")
	}
	for _, change := range [][2]string{{"creds/readonly", "creds/writer"}, {"127.0.0.1:1", "127.0.0.1:2"}, {"tokenFile: token", "tokenFile: other"}} {
		if engine(strings.ReplaceAll(enginesText, change[0], change[1])) == first {
			t.Errorf("with %s it is the same engine", change[1])
		}
	}
}

// ends is a source of a secret for each sandbox that tells which have ended.
type ends struct {
	mu    sync.Mutex
	ended []string
}

func (e *ends) Read(context.Context) (credential.Material, error) {
	return credential.Material{}, errors.New("read for no sandbox")
}

func (e *ends) For(id string) credential.OwnSource { return &one{e, id} }

type one struct {
	of *ends
	id string
}

func (o *one) Read(context.Context) (credential.Material, error) {
	return credential.Material{Fields: map[string]credential.Secret{"token": credential.NewSecret("a-token-of-" + o.id)}, Expires: time.Now().Add(time.Hour)}, nil
}

func (*one) TTL() time.Duration { return credential.UntilExpiry }

func (o *one) End() {
	o.of.mu.Lock()
	defer o.of.mu.Unlock()
	o.of.ended = append(o.of.ended, o.id)
	slices.Sort(o.of.ended)
}

// A sandbox with a secret of its own loses it when it is gone, or no rule gives it any more.
func TestLeasesEnd(t *testing.T) {
	dir := t.TempDir()
	d := &daemon{cfg: parse(t, dir, enginesText)}
	d.log = slog.New(slog.DiscardHandler)
	d.inForce.Store(d.cfg)
	var err error
	d.clients, err = access.OpenClients(filepath.Join(dir, "clients.json"))
	must.OK(t, err)
	ids := map[string]string{}
	for name, team := range map[string]string{"kept": "data", "other": "web"} {
		c, _, err := d.clients.Add(name, map[string]string{"team": team})
		must.OK(t, err)
		ids[name] = c.ID
	}
	ids["gone"] = "an-id-of-nobody"
	source := &ends{}
	d.broker = credential.New(credential.Options{Sources: map[string]credential.Source{"db": source}, Bound: func(string, string, uint16) bool { return true }})
	lease := func(id string) {
		t.Helper()
		_, err := d.broker.Lease(t.Context(), "db", credential.Binding{Host: "a.example.com", Port: 443, Verified: true, Sandbox: id})
		must.OK(t, err)
	}
	for _, id := range ids {
		lease(id)
	}
	d.endLeases()
	want := []string{ids["gone"], ids["other"]}
	if slices.Sort(want); !slices.Equal(source.ended, want) {
		t.Errorf("ended %q, want %q", source.ended, want)
	}
	without := parse(t, dir, strings.Replace(enginesText, "team: data", "team: none", 1))
	d.inForce.Store(without)
	d.endLeases()
	if !slices.Contains(source.ended, ids["kept"]) {
		t.Error("a sandbox that no rule gives the credential any more keeps its own")
	}
}

// openWithLease opens the leases of a daemon that has one from before.
func openWithLease(t *testing.T, d *daemon) {
	t.Helper()
	must.OK(t, os.MkdirAll(d.cfg.IndexDir(), 0o700))
	sealed, err := d.key.Seal([]byte(`[{"id":"database/creds/readonly/abc","address":"https://127.0.0.1:1","credential":"db","sandbox":"box","expires":"2100-01-01T00:00:00Z"}]`))
	must.OK(t, err)
	must.OK(t, os.WriteFile(filepath.Join(d.cfg.IndexDir(), "leases"), sealed, 0o600))
	must.OK(t, d.openLeases(t.Context()))
}

// A lease that could not be revoked is in the status, and opens nothing.
func TestUnrevokedLeasesAreListed(t *testing.T) {
	dir := t.TempDir()
	d := &daemon{cfg: parse(t, dir, enginesText)}
	d.log = slog.New(slog.DiscardHandler)
	t.Cleanup(func() { must.OK(t, d.close()) })
	must.OK(t, d.openAuditLog(t.Context()))
	openWithLease(t, d)
	if list := d.unrevoked(); len(list) != 1 || list[0].ID != "database/creds/readonly/abc" || list[0].Credential != "db" || list[0].Sandbox != "box" {
		t.Errorf("listed: %+v", list)
	}
}

// A configuration that is refused leaves the server in force that signs and revokes.
func TestRefusedReloadKeepsVault(t *testing.T) {
	dir := t.TempDir()
	must.OK(t, os.WriteFile(filepath.Join(dir, "token"), []byte("a-token"), 0o600))
	must.OK(t, os.Mkdir(filepath.Join(dir, "team"), 0o700))
	must.OK(t, os.WriteFile(filepath.Join(dir, "team", "deny.rego"), []byte("package sallyport\n\ndeny contains"), 0o600))
	d := &daemon{cfg: parse(t, dir, enginesText), location: &config.Location{File: filepath.Join(dir, "sallyport.yaml")}}
	d.log = slog.New(slog.DiscardHandler)
	d.loader = newLoader(d.cfg, d.log, nil)
	t.Cleanup(func() { must.OK(t, d.close()) })
	must.OK(t, d.openAuditLog(t.Context()))
	openWithLease(t, d)
	must.OK(t, d.openPolicy(t.Context()))
	must.OK(t, d.openSinks(t.Context()))
	before := d.leases.inForce.client
	refused := parse(t, dir, strings.Replace(enginesText, "127.0.0.1:1", "127.0.0.1:2", 1)+"policy: {dir: "+dir+"/team}\n")
	if err := d.load(t.Context(), refused, byAPI, nil); err == nil || !strings.Contains(err.Error(), "deny.rego") {
		t.Fatalf("a policy with a mistake: %v", err)
	}
	if d.leases.inForce.client != before {
		t.Error("the refused configuration's server signs")
	}
	must.OK(t, d.revokeLeases())
	if list := d.unrevoked(); len(list) != 1 || strings.Contains(list[0].Error, "not in the configuration") {
		t.Errorf("the server that gave a lease is not asked to revoke it: %+v", list)
	}
}
