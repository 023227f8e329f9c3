package daemon

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"sallyport/audit"
	"sallyport/gateway/credential/vault"
	"sallyport/internal/api"
	"sallyport/internal/config"
	"sallyport/internal/durable"
	"sallyport/policy"
	"sallyport/sandbox"
)

const (
	// leaseSweep is how often leases are looked for that nothing needs any more.
	leaseSweep = 5 * time.Second
	// revokeWithin is how long the daemon's end waits for Vault to revoke.
	revokeWithin = 10 * time.Second
	// maxEngines bounds vaultLeases.engines, which reloads fill.
	maxEngines = 4096
)

// vaultLeases are what Vault's engines have made for sandboxes.
type vaultLeases struct {
	*vault.Leases

	// A reload that changes neither the server nor the role goes on with what is there.
	inForce, loaded vaultServer // of the configuration in force, and of the last one that was tried
	engines         map[string]*vault.Engine

	nudge chan struct{} // a sandbox may have ended
}

type vaultServer struct {
	client *vault.Client
	of     string // a digest of what client was made from
}

func (d *daemon) openLeases(context.Context) (err error) {
	if err := durable.MkdirAll(d.cfg.IndexDir(), 0o700); err != nil {
		return err
	}
	d.leases.engines, d.leases.nudge = map[string]*vault.Engine{}, make(chan struct{}, 1)
	d.leases.Leases, err = vault.OpenLeases(filepath.Join(d.cfg.IndexDir(), "leases"), vault.LeasesOptions{Sealer: d.key, OnRevoke: d.recordRevoke, Logger: d.log})
	return err
}

// server is the client of a configuration's Vault: the one before, if that is the same.
func (l *vaultLeases) server(d *daemon, cfg *config.Config) (*vault.Client, error) {
	roots, _ := os.ReadFile(cfg.Vault.Roots) // vault.New says what is wrong with it
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %+v %+v %+v %+v %+v %q", cfg.Vault.Address+" "+cfg.Vault.Namespace, cfg.Vault.Auth,
		deref(cfg.Vault.Auth.AppRole), deref(cfg.Vault.Auth.Kubernetes), deref(cfg.Vault.Auth.JWT), deref(cfg.Vault.Auth.Certificate), roots))
	switch of := string(sum[:]); of {
	case l.loaded.of:
	case l.inForce.of:
		l.loaded = l.inForce
	default:
		client, err := vault.New(cfg.Vault, d.log)
		if err != nil {
			return nil, err
		}
		l.loaded = vaultServer{client, of}
	}
	return l.loaded.client, nil
}

// use has the server of a configuration that was accepted sign and revoke. If that names none,
// the one of before goes on to revoke what it has given.
func (l *vaultLeases) use(cfg *config.Config) {
	if cfg.Vault.Address != "" {
		l.inForce = l.loaded
		l.Use(l.inForce.client)
	}
}

func deref[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// engine is the source of a role, the one before if it is the same.
func (l *vaultLeases) engine(client *vault.Client, name string, s policy.VaultSource) (*vault.Engine, error) {
	key := fmt.Sprintf("%p %q %q %q %q", client, name, s.Path, s.Field, s.Parameters)
	if e := l.engines[key]; e != nil {
		return e, nil
	}
	e, err := client.Engine(name, s, l.Leases)
	if err != nil {
		return nil, err
	}
	if len(l.engines) >= maxEngines {
		clear(l.engines)
	}
	l.engines[key] = e
	return e, nil
}

// sweepLeases gives up what sandboxes have of their own and may not, or need not, use any
// more, now and then until ctx is done.
func (d *daemon) sweepLeases(ctx context.Context) error {
	tick := time.NewTicker(leaseSweep)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-d.leases.nudge:
		case <-tick.C:
		}
		d.endLeases()
	}
}

// endLeases does so now: a sandbox has ended when it has stopped or is no more, not when it
// sleeps.
func (d *daemon) endLeases() {
	cfg := d.inForce.Load()
	alive := map[string]policy.Sandbox{}
	if d.sandboxes != nil {
		for _, i := range d.sandboxes.List() {
			if i.State == sandbox.Running || i.State.Asleep() {
				alive[i.ID] = identity(i)
			}
		}
	}
	for _, c := range d.clients.List() {
		alive[c.ID] = policy.Sandbox{Name: c.Name, ID: c.ID, Tags: c.Tags}
	}
	d.broker.Retain(func(credential, id string) bool {
		if id == "" {
			return true
		}
		box, ok := alive[id]
		if !ok {
			return false
		}
		for _, r := range cfg.EgressAuth {
			if r.AuthRef == credential && r.Sandboxes.Picks(box.Name, box.Tags) {
				return true
			}
		}
		return false
	})
}

// revokeLeases revokes all of them, at the daemon's end.
func (d *daemon) revokeLeases() error {
	ctx, cancel := context.WithTimeout(context.Background(), revokeWithin)
	defer cancel()
	d.broker.Retain(func(string, string) bool { return false })
	return d.leases.Close(ctx)
}

func (d *daemon) recordRevoke(l vault.Lease, err error) {
	e := d.changed("secret/"+l.Credential, "secret "+l.Credential, "revoked")
	e.Unmapped.Sallyport.Credentials = []audit.CredentialUse{{Lease: l.ID, Name: l.Credential}}
	e.Detail = ofSandbox(l.Sandbox)
	switch {
	case errors.Is(err, vault.ErrExpired):
		e.StatusID, e.SeverityID = audit.StatusFailure, audit.SeverityMedium
		e.Message, e.Detail = "a lease of secret "+l.Credential+" could not be revoked before its end", e.Detail+": "+cmp.Or(l.Error, err.Error())
		d.log.Error("a lease of Vault could not be revoked before its end", "credential", l.Credential, "lease", l.ID, "error", l.Error)
	case err != nil:
		e.StatusID, e.SeverityID = audit.StatusFailure, audit.SeverityMedium
		e.Message, e.Detail = "a lease of secret "+l.Credential+" could not be revoked; that is tried again", e.Detail+": "+err.Error()
		d.log.Error("a lease of Vault could not be revoked; that is tried again", "credential", l.Credential, "lease", l.ID, "error", err)
	}
	d.enqueue(e)
}

func ofSandbox(id string) string {
	if id == "" {
		return "of this host"
	}
	return "of sandbox " + id
}

// unrevoked are the leases that are to be revoked and are not yet.
func (d *daemon) unrevoked() (list []api.Lease) {
	for _, l := range d.leases.List() {
		if l.Ending {
			list = append(list, api.Lease{ID: l.ID, Credential: l.Credential, Sandbox: l.Sandbox, Expires: l.Expires, Error: l.Error})
		}
	}
	return list
}
