package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"sallyport/audit"
	"sallyport/gateway/credential"
	"sallyport/internal/api"
	"sallyport/internal/bundle"
	"sallyport/internal/config"
	"sallyport/policy/engine"
	"sallyport/sandbox"
)

// Causes for loading a policy.
const (
	byStart  = "start"
	bySignal = "signal"
	byAPI    = "api"
	byFiles  = "files"
	byBundle = "bundle"
)

// errAway is wrapped where another try may do better although no file has changed.
var errAway = errors.New("policy.bundle")

// retryAfter is when that is made.
const retryAfter = 10 * time.Second

// loader is what the daemon needs to load policy and credentials again.
type loader struct {
	hangup <-chan os.Signal
	keeper *bundle.Keeper
	nudge  chan struct{} // for followBundle: look at the configuration again

	reloading  sync.Mutex     // guards what follows and makes reloads follow each other
	endSources func()         // of the broker's sources
	attempted  *config.Config // what the last load was of
	printed    config.Print   // its files then, and those of what is in force
	retry      time.Time      // when to try it again, zero for not before it changes

	telling sync.Mutex // guards what follows
	state   api.Policy
	token   bundle.Token // of the bundle's server, for what is in force
	reloads map[string]uint64
}

func newLoader(cfg *config.Config, log *slog.Logger, hangup <-chan os.Signal) loader {
	return loader{
		hangup: hangup, keeper: bundle.Open(filepath.Join(cfg.DataDir, "policy"), log), nudge: make(chan struct{}, 1),
		state: api.Policy{Loaded: time.Now().UTC(), By: byStart}, reloads: map[string]uint64{},
	}
}

func (d *daemon) openPolicy(ctx context.Context) error {
	sources, end, err := d.sources(d.cfg)
	if err != nil {
		return err
	}
	d.endSources = end
	d.onClose(func() error { d.endSources(); return nil })
	if d.attempted = d.cfg; !d.location.Changed() {
		d.printed = d.print(d.cfg)
	}
	bundled, err := d.bundle(ctx, d.cfg, sources)
	if err != nil {
		return err
	}
	p, err := engine.Compile(ctx, d.cfg.Document, engine.Options{Logger: d.log})
	if err != nil {
		return err
	}
	if err := d.keeper.Accept(bundled); err != nil {
		return err
	}
	d.rules = engine.NewEngine(p)
	d.broker = credential.New(credential.Options{
		Sources: sources, Revision: p.Revision(), Bound: d.rules.Bound, AllowShort: d.rules.AllowsShort, OnRead: d.recordRead, Log: d.log,
	})
	d.inForce.Store(d.cfg)
	d.leases.use(d.cfg)
	d.warn(ctx, d.cfg)
	return nil
}

func (d *daemon) reloadOnSignal(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-d.hangup:
			_ = d.reload(ctx, bySignal, nil) // which has logged it
		}
	}
}

// reload swaps policy and credentials for what the configuration says now, with a
// new bundle where there is one. A configuration with an error changes nothing.
func (d *daemon) reload(ctx context.Context, by string, fresh *bundle.Candidate) error {
	d.reloading.Lock()
	defer d.reloading.Unlock()
	cfg, err := d.location.Load()
	if cfg == nil {
		cfg = d.inForce.Load() // the file cannot be read
	}
	// Before they are read: what changes meanwhile shows against this.
	d.attempted, d.printed = cfg, d.print(cfg, d.inForce.Load())
	alone := d.print(cfg)
	if d.location.Changed() {
		d.printed, alone = config.Print{}, config.Print{}
	}
	if err == nil {
		err = d.load(ctx, cfg, by, fresh)
	}
	d.retry = time.Time{}
	switch {
	case err == nil:
		d.printed = alone
	case errors.Is(err, errAway):
		d.retry = time.Now().Add(retryAfter)
	}
	if err != nil && ctx.Err() == nil {
		d.refuse(ctx, by, err)
	}
	return err
}

// load puts a configuration into force. d.reloading is held.
func (d *daemon) load(ctx context.Context, cfg *config.Config, by string, fresh *bundle.Candidate) error {
	sources, end, err := d.sources(cfg)
	if err != nil {
		return err
	}
	done := false
	defer func() {
		if !done {
			end()
		}
	}()
	token := bundleToken(cfg, sources)
	if fresh == nil {
		if fresh, err = d.bundle(ctx, cfg, sources); err != nil {
			return err
		}
	} else if b := cfg.Policy.Bundle; b == nil || b.URL != d.inForce.Load().Policy.Bundle.URL {
		return errors.New("the policy's bundle is another one by now")
	} else {
		cfg.Policy.Verified = fresh.Bundle
	}
	planned, err := d.prepareSinks(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() {
		if !done {
			planned.Discard()
		}
	}()
	began := time.Now()
	p, err := engine.Compile(ctx, cfg.Document, engine.Options{Logger: d.log})
	if err != nil {
		return err
	}
	took := time.Since(began)
	if err := d.supervisor.Prepare(ctx, cfg.Document, p.Revision(), took); err != nil {
		return err
	}
	// A policy that cannot be recorded does not come into force.
	events := []*audit.Event{d.about("reloaded", p, "by "+by)}
	var there []sandbox.Info
	if d.sandboxes != nil {
		there = d.sandboxes.List()
	}
	selected := selectedAnew(d.rules.Policy(), p, there)
	if len(selected) > 0 {
		e := d.about("selected", p, "rules select by name what was there before them: "+strings.Join(selected, ", "))
		e.SeverityID = audit.SeverityMedium
		events = append(events, e)
		d.log.Warn("rules of the policy now select sandboxes by a name that they had before: see that each is the one that is meant", "sandboxes", selected)
	}
	if err := d.auditLog.Append(context.WithoutCancel(ctx), events...); err != nil {
		return err
	}
	done = true
	// Between these two a decision of the old policy leases nothing.
	d.broker.Replace(sources, p.Revision())
	d.leases.use(cfg)
	d.sinks.Use(planned)
	d.retention.Use(retentionPolicy(cfg))
	d.endSources()
	d.endSources = end
	d.rules.Swap(p)
	d.supervisor.Use(cfg.Document, p.Revision())
	before := d.inForce.Swap(cfg)
	d.supervisor.Placeholders()
	d.endLeases()
	d.warn(ctx, cfg)
	if !reflect.DeepEqual(before.Credentials, cfg.Credentials) {
		d.recheckMemories()
	}
	if d.ssh != nil {
		d.ssh.Use(sshKeys(cfg))
	}
	if err := d.keeper.Accept(fresh); err != nil {
		d.log.Error("a restart without the bundle's server would use an older bundle", "error", err)
	}
	d.telling.Lock()
	d.token = token
	d.telling.Unlock()
	d.accepted(by, selected)
	if by != byBundle {
		select {
		case d.nudge <- struct{}{}:
		default:
		}
	}
	d.log.Info("policy loaded", "policy", p.Revision(), "rules", p.Rules(), "by", by)
	if keys := cfg.NeedsRestart(d.cfg); keys != nil {
		d.log.Warn("what has changed here comes into force with a restart", "keys", keys)
	}
	return nil
}

// selectedAnew lists the sandboxes that the rules of a policy select by name, and those
// of the one before did not. The caller that made one needed no more than the scope run for
// its name, and may be another than the rule's author has in mind.
func selectedAnew(before, now *engine.Policy, there []sandbox.Info) (names []string) {
	for _, i := range there {
		if now.Names(i.Name) && !before.Names(i.Name) {
			names = append(names, i.FullName())
		}
	}
	return names
}

// bundle reads the bundle that a configuration names, if any, into it.
func (d *daemon) bundle(ctx context.Context, cfg *config.Config, sources map[string]credential.Source) (*bundle.Candidate, error) {
	b := cfg.Policy.Bundle
	if b == nil {
		return nil, nil
	}
	token := bundleToken(cfg, sources)
	c, err := d.keeper.Get(ctx, *b, token, config.ReadBundle)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errAway, err)
	}
	if b.Key == "" {
		d.log.Warn("the policy bundle is not verified: policy.bundle has no key", "file", b.File)
	}
	cfg.Policy.Verified = c.Bundle
	d.telling.Lock()
	defer d.telling.Unlock()
	if d.token == nil {
		d.token = token
	}
	return c, nil
}

// bundleToken reads the token anew for each question.
func bundleToken(cfg *config.Config, sources map[string]credential.Source) bundle.Token {
	b := cfg.Policy.Bundle
	if b == nil || b.AuthRef == "" {
		return nil
	}
	source := sources[b.AuthRef]
	return func(ctx context.Context) (string, error) {
		m, err := source.Read(ctx)
		if err != nil {
			return "", err
		}
		secret, ok := m.Fields["token"]
		if !ok && len(m.Fields) == 1 {
			for _, only := range m.Fields {
				secret, ok = only, true
			}
		}
		if !ok {
			return "", errors.New("it has no field token")
		}
		return secret.Reveal(), nil
	}
}

// refuse tells of a policy that was not taken: in the log, the status, and, when
// it is not the same one over and over, as an event.
func (d *daemon) refuse(ctx context.Context, by string, cause error) {
	d.log.Error("the configuration was not loaded; the running policy stays", "by", by, "error", cause)
	d.telling.Lock()
	was := d.state.Refused
	now := &api.Refused{Since: time.Now().UTC(), By: by, Reason: cause.Error()}
	if was != nil {
		now.Since = was.Since
	}
	d.state.Refused = now
	d.reloads["refused"]++
	d.telling.Unlock()
	if was != nil && was.Reason == now.Reason {
		return
	}
	e := d.about("refused", d.rules.Policy(), "by "+by+": "+now.Reason)
	e.StatusID, e.SeverityID = audit.StatusFailure, audit.SeverityMedium
	audit.Attribute(ctx, e)
	d.record(e)
}

// accepted says that what is there is in force since now.
func (d *daemon) accepted(by string, selected []string) {
	d.telling.Lock()
	defer d.telling.Unlock()
	d.state = api.Policy{Loaded: time.Now().UTC(), By: by, Selected: selected}
	d.reloads["loaded"]++
}

// unchanged says that the bundle's server has what is in force again.
func (d *daemon) unchanged() {
	d.telling.Lock()
	defer d.telling.Unlock()
	if r := d.state.Refused; r != nil && r.By == byBundle {
		d.state.Refused = nil
	}
}

// loaded is the status of it all.
func (d *daemon) loaded() api.Policy {
	d.telling.Lock()
	s := d.state
	d.telling.Unlock()
	if b := d.keeper.Status(); b.Source != "" {
		s.Bundle = (*api.Bundle)(&b)
	}
	return s
}

func (d *daemon) counted() map[string]uint64 {
	d.telling.Lock()
	defer d.telling.Unlock()
	return maps.Clone(d.reloads)
}

// print is what the files of configurations look like.
func (d *daemon) print(of ...*config.Config) config.Print {
	var files []string
	if own := d.location.Path(); own != "" {
		files = append(files, own)
	}
	for _, cfg := range of {
		files = append(files, cfg.Files()...)
	}
	slices.Sort(files)
	return config.NewPrint(slices.Compact(files)...)
}
