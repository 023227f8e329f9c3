package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"time"

	"sallyport/audit"
	"sallyport/gateway/credential"
	"sallyport/gateway/credential/exchange"
	"sallyport/gateway/credential/host"
	"sallyport/gateway/credential/vault"
	"sallyport/gateway/placeholder"
	"sallyport/internal/api"
	"sallyport/internal/config"
	"sallyport/policy"
	"sallyport/sandbox"
)

func secretFields(plain map[string]string) map[string]credential.Secret {
	fields := map[string]credential.Secret{}
	for k, v := range plain {
		fields[k] = credential.NewSecret(v)
	}
	return fields
}

// sources has a source for each credential of cfg, and what ends them.
func (d *daemon) sources(cfg *config.Config) (_ map[string]credential.Source, end func(), err error) {
	sources := map[string]credential.Source{}
	var server *vault.Client
	var exchanges []*exchange.Source
	end = func() {
		if server != nil {
			server.Close()
		}
		for _, x := range exchanges {
			x.Close()
		}
	}
	defer func() {
		if err != nil {
			end()
		}
	}()
	if cfg.Vault.Address != "" { // also for leases of what the configuration had before
		if server, err = d.leases.server(d, cfg); err != nil {
			return nil, nil, err
		}
	}
	proxies, registries, sinks := cfg.ProxyLogins(), cfg.RegistryLogins(), cfg.SinkLogins()
	for _, c := range cfg.Credentials {
		var source credential.Source
		switch s := c.Source; {
		case s.Env != "":
			source = host.NewEnv(s.Env)
		case s.File != "":
			source = host.NewFile(s.File)
		case len(s.Command) > 0:
			source = host.NewCommand(s.Command)
		case s.Vault == nil:
			source = d.store.Source(c.Name)
		case s.Vault.Makes():
			source, err = d.leases.engine(server, c.Name, *s.Vault)
		default:
			source, err = server.Source(*s.Vault)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("credential %s: %w", c.Name, err)
		}
		if c.Exchange != nil {
			x, err := exchange.New(exchange.Options{Credential: c.Name, Secret: source, Exchange: *c.Exchange, Keeper: d.logins, Embedded: c.Source.Embedded()})
			if err != nil {
				return nil, nil, err
			}
			source, exchanges = x, append(exchanges, x)
		}
		if c.Grace > 0 || c.Cache != nil {
			source = credential.Lasting{Source: source, Grace: time.Duration(c.Grace), Cache: (*time.Duration)(c.Cache)}
		}
		if len(proxies[c.Name])+len(registries[c.Name])+len(sinks[c.Name]) > 0 {
			source = credential.Login{Source: source, Proxies: proxies[c.Name], Registries: registries[c.Name], Sinks: sinks[c.Name]}
		}
		sources[c.Name] = source
	}
	return sources, end, nil
}

// secrets is the embedded store as the API sees it, with an event for each change.
type secrets struct{ d *daemon }

func (s secrets) Set(ctx context.Context, name string, fields map[string]credential.Secret) error {
	if err := s.writable(name); err != nil {
		return err
	}
	if err := s.d.unfit(name, fields); err != nil {
		return err
	}
	if _, err := s.d.store.SetBy(audit.NameOf(ctx), name, fields); err != nil {
		return err
	}
	s.revoke(name)
	s.d.warn(ctx, s.d.inForce.Load())
	s.d.recheckMemories()
	return s.say(ctx, name, "set")
}

func (s secrets) Delete(ctx context.Context, name string) error {
	if err := s.writable(name); err != nil {
		return err
	}
	if err := s.d.store.DeleteBy(audit.NameOf(ctx), name); err != nil {
		return err
	}
	s.revoke(name)
	return s.say(ctx, name, "removed")
}

// unfit says why the configuration's exchange or rules could do nothing with a secret, so
// that whoever sets it is told before a request is.
func (d *daemon) unfit(name string, fields map[string]credential.Secret) error {
	cfg := d.inForce.Load()
	for _, c := range cfg.Credentials {
		if c.Name == name && c.Exchange != nil { // rules give what it is exchanged for
			if err := exchange.Check(*c.Exchange, fields); err != nil {
				return fmt.Errorf("%w: exchange of credential %s: %w", credential.ErrUnfit, name, err)
			}
			return nil
		}
	}
	for _, rule := range cfg.EgressAuth {
		if rule.AuthRef != name {
			continue
		}
		if err := credential.Check(deref(rule.Inject), fields, time.Now()); err != nil {
			return fmt.Errorf("%w: egressAuth rule %s: %w; --field or --file names each field that it is set with",
				credential.ErrUnfit, cmp.Or(rule.Name, rule.AuthRef+"@"+rule.Destination), err)
		}
	}
	return nil
}

// short says of each secret of the embedded store that the configuration's rules would
// not give, for its length or its form, why that is.
func (d *daemon) short(ctx context.Context, cfg *config.Config) map[string]string {
	all := map[string]string{}
	for _, rule := range cfg.EgressAuth {
		i := slices.IndexFunc(cfg.Credentials, func(c policy.Credential) bool {
			return c.Name == rule.AuthRef && c.Source.Embedded() && c.Exchange == nil
		})
		if i < 0 || all[rule.AuthRef] != "" {
			continue
		}
		m, err := d.store.Source(rule.AuthRef).Read(ctx)
		if err != nil {
			continue // each request says why
		}
		if err := credential.Check(deref(rule.Inject), m.Fields, time.Now()); err != nil {
			all[rule.AuthRef] = err.Error()
			continue
		}
		for _, field := range credential.Short(deref(rule.Inject), m.Fields) {
			if !slices.Contains(cfg.Credentials[i].AllowShort, field) {
				all[rule.AuthRef] = fmt.Sprintf("field %s is shorter than %d bytes and is not injected: set a longer one, or name it in allowShort", field, credential.MinSecret)
				break
			}
		}
	}
	return all
}

// warn says in the log which secrets are too short or do not fit, before a request finds
// out.
func (d *daemon) warn(ctx context.Context, cfg *config.Config) {
	short := d.short(ctx, cfg)
	for _, name := range slices.Sorted(maps.Keys(short)) {
		d.log.Warn("requests that need a credential will be refused", "credential", name, "why", short[name])
	}
}

// revoke ends what was leased of a secret, or of what was exchanged for it. Before the daemon
// runs there is nothing.
func (s secrets) revoke(name string) {
	if s.d.broker != nil {
		s.d.broker.Forget(name)
	}
	if s.d.supervisor != nil {
		s.d.supervisor.Revoke()
	}
}

// writable refuses a credential that lives elsewhere: a secret set here would
// never be used.
func (s secrets) writable(name string) error {
	for _, c := range s.d.credentials() {
		if c.Name == name && !c.Source.Embedded() {
			return fmt.Errorf("%w: %s comes from %s: change it there", api.ErrElsewhere, name, c.Source)
		}
	}
	return nil
}

// RotateKey gives the embedded store another key.
func (s secrets) RotateKey(ctx context.Context) (api.Rotation, error) {
	n, err := s.d.store.RotateKey()
	if err != nil {
		return api.Rotation{}, err
	}
	e := s.d.changed("secrets", "the key of the embedded store", "rotated")
	return api.Rotation{Secrets: n}, s.d.auditLog.Append(ctx, e)
}

// History is that of a secret of the embedded store.
func (s secrets) History(name string) ([]api.SecretChange, error) {
	past, err := s.d.store.History(name)
	if err != nil {
		return nil, err
	}
	changes := make([]api.SecretChange, len(past))
	for i, c := range past {
		changes[i] = api.SecretChange(c)
	}
	return changes, nil
}

func (s secrets) List() ([]api.Secret, error) {
	kept, err := s.d.store.List()
	if err != nil {
		return nil, err
	}
	list := []api.Secret{}
	leases := map[string]int{}
	for _, l := range s.d.leases.List() {
		leases[l.Credential]++
	}
	known := map[string]bool{}
	short := s.d.short(context.Background(), s.d.inForce.Load())
	elsewhere := map[string]bool{} // whose replaced refresh tokens are kept here
	for _, c := range s.d.credentials() {
		elsewhere[c.Name] = !c.Source.Embedded()
	}
	for _, e := range kept {
		if elsewhere[e.Name] {
			continue
		}
		list = append(list, api.Secret{Name: e.Name, Source: "embedded", Version: strconv.FormatUint(e.Version, 10), Updated: e.Updated, Error: short[e.Name]})
		known[e.Name] = true
	}
	for _, c := range s.d.credentials() {
		switch {
		case !c.Source.Embedded():
			list = append(list, api.Secret{Name: c.Name, Source: c.Source.String(), Leases: leases[c.Name]})
		case !known[c.Name]:
			list = append(list, api.Secret{Name: c.Name, Source: "embedded", Error: "not set: `sallyport secret set " + c.Name + "`"})
		}
	}
	return list, nil
}

func (s secrets) say(ctx context.Context, name, state string) error {
	e := s.d.changed("secret/"+name, "secret "+name, state)
	if err := s.d.auditLog.Append(ctx, e); err != nil {
		return errors.Join(fmt.Errorf("the secret is %s, but this could not be recorded", state), err)
	}
	return nil
}

// recordRead records that Vault was asked for a credential's secret. Leases do not wait for
// that record: the decision that uses the secret has one of its own.
func (d *daemon) recordRead(name string, r credential.Reading, err error) {
	did := "read"
	if r.Renewed {
		did = "renewed"
	}
	e := d.changed("secret/"+name, "secret "+name, did)
	e.Unmapped.Sallyport.Credentials = []audit.CredentialUse{{Lease: r.Accessor, Name: name, Version: r.Version}}
	d.readings.note(name, err)
	if r.Sandbox != "" {
		e.Detail = ofSandbox(r.Sandbox)
	}
	if err != nil {
		e.StatusID, e.SeverityID = audit.StatusFailure, audit.SeverityMedium
		e.Message, e.Detail = "secret "+name+" could not be read", err.Error()
	}
	d.enqueue(e)
}

// logins is the embedded store as exchanges see it, with an event for each change.
type logins struct{ d *daemon }

// Kept implements exchange.Store.
func (l logins) Kept(ctx context.Context, name string) (credential.Material, error) {
	return l.d.store.Source(name).Read(ctx)
}

// Replace implements exchange.Store.
func (l logins) Replace(name, after string, fields map[string]credential.Secret) (bool, error) {
	replaced, err := l.d.store.Replace(name, after, fields)
	if replaced {
		e := l.d.changed("secret/"+name, "secret "+name, "set")
		e.Message += ": a refresh token came in place of the last one"
		l.d.enqueue(e)
	}
	return replaced, err
}

// credentials are those of the configuration that is in force.
func (d *daemon) credentials() []policy.Credential { return d.inForce.Load().Credentials }

// registryLogin is that of a registry of images, of the configuration in force.
func (d *daemon) registryLogin(ctx context.Context, registry string) (sandbox.Login, error) {
	for _, r := range d.inForce.Load().Registries {
		if r.Host != registry {
			continue
		}
		l, err := d.broker.RegistryLogin(ctx, r.AuthRef, registry)
		if err != nil {
			return nil, err
		}
		return l, nil
	}
	return nil, nil
}

// SetSecret sets a secret where no daemon runs yet, under its lock and with its event.
func SetSecret(ctx context.Context, cfg *config.Config, version, name string, fields map[string]string) (err error) {
	d := &daemon{cfg: cfg, version: version, log: slog.New(slog.DiscardHandler)}
	defer func() { err = errors.Join(err, d.close()) }()
	d.inForce.Store(cfg)
	for _, step := range []func(context.Context) error{d.lockDataDir, d.openAuditLog} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return errors.Join(secrets{d}.Set(ctx, name, secretFields(fields)), d.markMemories())
}

// given are the placeholders that a sandbox's commands get: of the credentials that a rule
// gives the sandbox, one for each variable.
func (d *daemon) given(i sandbox.Info) (given []sandbox.Placeholder, env map[string]string) {
	cfg := d.inForce.Load()
	for _, c := range cfg.Credentials {
		if c.Placeholder == nil || env[c.Placeholder.Env] != "" {
			continue
		}
		if !slices.ContainsFunc(cfg.EgressAuth, func(r policy.EgressAuthRule) bool {
			return r.AuthRef == c.Name && r.Sandboxes.Picks(i.Name, i.Tags()) && (i.Lineage == nil || r.Inherit)
		}) {
			continue
		}
		held, ok := d.placeholder(c, i.ID)
		if !ok {
			continue
		}
		if env == nil {
			env = map[string]string{}
		}
		env[c.Placeholder.Env] = held.Text
		given = append(given, sandbox.Placeholder{Variable: c.Placeholder.Env, Credential: c.Name, Of: i.ID})
	}
	return given, env
}

func (d *daemon) placeholder(c policy.Credential, id string) (placeholder.Held, bool) {
	shape, err := c.Placeholder.Shape(c.Name)
	if err != nil { // it was checked
		return placeholder.Held{}, false
	}
	return placeholder.Derive(d.placeholderKey, id, c.Name, shape), true
}

// heldBy are the placeholders that a sandbox may hold: those that its commands were given,
// and those of the sandboxes that it is a fork of.
func (d *daemon) heldBy(id string) (held []placeholder.Held) {
	if d.sandboxes == nil {
		return nil
	}
	for _, i := range d.sandboxes.Identities() {
		if i.ID == id {
			return d.holds(i)
		}
	}
	return nil
}

func (d *daemon) holds(i sandbox.Info) (held []placeholder.Held) {
	for _, p := range i.Placeholders {
		at := slices.IndexFunc(d.credentials(), func(c policy.Credential) bool { return c.Name == p.Credential && c.Placeholder != nil })
		if at < 0 {
			continue
		}
		h, ok := d.placeholder(d.credentials()[at], p.Of)
		if ok && !slices.Contains(held, h) {
			held = append(held, h)
		}
	}
	return held
}
