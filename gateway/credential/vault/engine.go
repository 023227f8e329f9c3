package vault

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/vault/api"
	"golang.org/x/crypto/ssh"

	"sallyport/gateway/credential"
	"sallyport/policy"
)

// Engine is a role of one of Vault's engines, which makes a secret for each sandbox:
// database, aws, ssh or pki, or one that answers like them.
type Engine struct {
	client *Client
	leases *Leases
	name   string // of the credential
	source policy.VaultSource
}

// Engine returns a role's source. It does not talk to Vault.
func (v *Client) Engine(name string, s policy.VaultSource, l *Leases) (*Engine, error) {
	if !s.Makes() || !policy.VaultPath(s.Path) {
		return nil, fmt.Errorf("vault path %q is not that of an engine's role: write one as database/creds/readonly", s.Path)
	}
	return &Engine{client: v, leases: l, name: name, source: s}, nil
}

// Read is called by nobody.
func (e *Engine) Read(context.Context) (credential.Material, error) {
	return credential.Material{}, fmt.Errorf("%w: it is made for a sandbox", credential.ErrNoSecret)
}

// For implements credential.PerSandbox.
func (e *Engine) For(sandbox string) credential.OwnSource { return &own{engine: e, sandbox: sandbox} }

// own is what an engine makes for one sandbox.
type own struct {
	engine  *Engine
	sandbox string

	mu      sync.Mutex // held while Vault is asked
	last    credential.Material
	lease   string // ID; empty where Vault gave none
	renews  bool
	life    time.Duration
	issuer  int64 // of the token: see session.serial
	discard bool

	ended atomic.Bool
}

// TTL makes the Broker keep it until it expires.
func (*own) TTL() time.Duration { return credential.UntilExpiry }

// Discard has the next Read make another one.
func (o *own) Discard(version string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.discard = o.last.Version == version
}

// End has the leases revoked.
func (o *own) End() {
	o.ended.Store(true)
	o.engine.leases.end(func(l *Lease) bool {
		return l.Credential == o.engine.name && l.Sandbox == o.sandbox && l.client == o.engine.client
	})
}

// Read renews what there is, or makes another. The one that it replaces is not
// revoked before the sandbox ends, since requests may be using it, but for one that was
// discarded, which is revoked after discardedFor.
func (o *own) Read(ctx context.Context) (credential.Material, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended.Load() {
		return credential.Material{}, fmt.Errorf("%w: the sandbox has ended", credential.ErrUnavailable)
	}
	if o.lease != "" && o.renews && !o.discard && o.issuer == o.engine.client.auth.serial() && time.Now().Before(o.last.Expires) {
		err := o.renew(ctx)
		if err == nil {
			return o.last, nil
		}
		if errors.Is(err, credential.ErrUnavailable) {
			return credential.Material{}, err
		}
		o.engine.client.log.Debug("a lease could not be renewed; Vault is asked for another secret", "credential", o.engine.name, "error", err)
	}
	if err := o.make(ctx); err != nil {
		return credential.Material{}, err
	}
	return o.last, nil
}

const (
	// discardedFor is how long requests under way may use what was discarded.
	discardedFor = time.Minute
	// longestLife is that of what Vault does not say how long it lives: its default for the
	// longest life of a lease.
	longestLife = 32 * 24 * time.Hour
)

// errAtEnd says that a lease has reached its longest life.
var errAtEnd = errors.New("the lease has reached its longest life")

func (o *own) renew(ctx context.Context) error {
	var got *api.Secret
	asked := time.Now()
	err := o.engine.client.do(ctx, "renewing a lease of "+o.engine.source.Path, "update on sys/leases/renew", func(c *api.Client) (err error) {
		got, err = c.Sys().RenewWithContext(ctx, o.lease, int(o.life/time.Second))
		return err
	})
	if err != nil {
		return err
	}
	life := time.Duration(got.LeaseDuration) * time.Second
	if life < o.life/2 { // at the end of its longest life Vault renews by ever less
		return errAtEnd
	}
	o.renews = got.Renewable
	o.last.Expires, o.last.Ends = o.until(asked, life), asked.Add(life)
	o.engine.leases.extend(o.lease, asked.Add(life))
	return nil
}

// until is when a lease ends: with its token at the latest, unless that is renewed.
func (o *own) until(asked time.Time, life time.Duration) time.Time {
	at := asked.Add(life)
	if t := o.engine.client.auth.until(); !t.IsZero() && t.Before(at) {
		return t
	}
	return at
}

// make asks for a new secret.
func (o *own) make(ctx context.Context) error {
	e := o.engine
	data := map[string]any{}
	for k, v := range e.source.Parameters {
		data[k] = v
	}
	kind := e.source.Engine()
	fields := map[string]credential.Secret{}
	if kind == "sign" {
		public, private, err := newKey()
		if err != nil {
			return err
		}
		data["public_key"] = public
		fields["privateKey"] = credential.NewSecret(private)
	}
	var got *api.Secret
	asked := time.Now()
	err := e.client.do(ctx, "asking for "+e.source.Path, "read and update on that path", func(c *api.Client) (err error) {
		if len(data) == 0 && kind != "issue" {
			got, err = c.Logical().ReadWithContext(ctx, e.source.Path)
		} else {
			got, err = c.Logical().WriteWithContext(ctx, e.source.Path, data)
		}
		return err
	})
	if err != nil {
		return err
	}
	if got == nil || got.Data == nil {
		return fmt.Errorf("%w: Vault has no role at %s; correct the path", credential.ErrNoSecret, e.source.Path)
	}
	m := credential.Material{Fields: fields, Accessor: cmp.Or(got.LeaseID, got.RequestID)}
	life := time.Duration(got.LeaseDuration) * time.Second
	if life > 0 {
		m.Expires, m.Ends = o.until(asked, life), asked.Add(life)
	}
	if got.LeaseID != "" { // whatever else there is, Vault has made something
		if err := e.leases.add(&Lease{
			ID: got.LeaseID, Address: e.client.address, Namespace: e.client.namespace, Credential: e.name, Sandbox: o.sandbox,
			Expires: asked.Add(cmp.Or(life, longestLife)), client: e.client,
		}); err != nil {
			return fmt.Errorf("%w: %w", credential.ErrUnavailable, err)
		}
	}
	if err := e.fill(&m, kind, got); err != nil {
		e.leases.retire(got.LeaseID, 0)
		return err
	}
	if got.LeaseID != "" && o.ended.Load() { // while Vault was asked
		o.End()
		return fmt.Errorf("%w: the sandbox has ended", credential.ErrUnavailable)
	}
	if m.Expires.IsZero() { // it never ends: it is asked for again like what is kept
		m.Expires, m.Ends = asked.Add(ttl), asked.Add(longestLife)
	}
	if o.discard && o.lease != "" {
		e.leases.retire(o.lease, discardedFor)
	}
	o.last, o.lease, o.renews, o.life, o.discard, o.issuer = m, got.LeaseID, got.Renewable, life, false, e.client.auth.serial()
	return nil
}

// fill takes what an engine made.
func (e *Engine) fill(m *credential.Material, kind string, got *api.Secret) error {
	text := func(name string) string {
		t, _ := textOf(got.Data[name])
		return strings.TrimSpace(t)
	}
	switch kind {
	case "sign":
		certificate, _, _, _, err := ssh.ParseAuthorizedKey([]byte(text("signed_key")))
		c, ok := certificate.(*ssh.Certificate)
		if err != nil || !ok {
			return fmt.Errorf("%w: what Vault has at %s signs no SSH key", credential.ErrNoSecret, e.source.Path)
		}
		m.Fields["certificate"] = credential.NewSecret(text("signed_key"))
		m.Version = text("serial_number")
		if c.ValidBefore != ssh.CertTimeInfinity {
			m.Expires = time.Unix(int64(c.ValidBefore), 0)
		}
	case "issue":
		if text("certificate") == "" || text("private_key") == "" {
			return fmt.Errorf("%w: what Vault has at %s issues no certificate with a key", credential.ErrNoSecret, e.source.Path)
		}
		m.Fields["certificate"] = credential.NewSecret(text("certificate"))
		m.Fields["key"] = credential.NewSecret(text("private_key"))
		m.Fields["ca_chain"] = credential.NewSecret(strings.Join(above(got.Data), "\n"))
		m.Version = text("serial_number")
		if n, ok := got.Data["expiration"].(json.Number); ok {
			unix, err := n.Int64()
			if at := time.Unix(unix, 0); err == nil && (m.Expires.IsZero() || at.Before(m.Expires)) {
				m.Expires = at
			}
		}
	default:
		for name, value := range got.Data {
			if t, err := textOf(value); err == nil && t != "" {
				m.Fields[name] = credential.NewSecret(t)
			}
		}
		m.Version = got.LeaseID[strings.LastIndexByte(got.LeaseID, '/')+1:]
	}
	if e.source.Field == "" {
		return nil
	}
	value, ok := m.Fields[e.source.Field]
	if !ok {
		return fmt.Errorf("%w: what %s makes has no field %q; it has %s", credential.ErrNoSecret, e.source.Path, e.source.Field,
			strings.Join(slices.Sorted(maps.Keys(m.Fields)), ", "))
	}
	m.Fields = map[string]credential.Secret{e.source.Field: value}
	return nil
}

// above is what stands above a certificate in an answer of pki: its chain or, of an issuer
// alone, that.
func above(data map[string]any) (chain []string) {
	list, _ := data["ca_chain"].([]any)
	if len(list) == 0 {
		list = []any{data["issuing_ca"]}
	}
	for _, c := range list {
		if text, err := textOf(c); err == nil {
			chain = append(chain, strings.TrimSpace(text))
		}
	}
	return chain
}

// newKey makes a key pair for one sandbox.
func newKey() (public, private string, err error) {
	pub, priv, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return "", "", err
	}
	p, err := ssh.NewPublicKey(pub)
	if err != nil {
		return "", "", err
	}
	block, err := ssh.MarshalPrivateKey(priv, "")
	if err != nil {
		return "", "", err
	}
	return string(ssh.MarshalAuthorizedKey(p)), string(pem.EncodeToMemory(block)), nil
}
