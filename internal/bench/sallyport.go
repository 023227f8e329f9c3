package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime/pprof"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/audit/tree"
	"sallyport/gateway"
	"sallyport/gateway/access"
	"sallyport/gateway/ca"
	"sallyport/gateway/credential"
	"sallyport/gateway/mitm"
	"sallyport/gateway/supervisor"
	"sallyport/gateway/upstream"
	"sallyport/gateway/worker"
	"sallyport/internal/jail"
	"sallyport/internal/seal"
	"sallyport/policy"
	"sallyport/policy/engine"
)

// stats are what the gateway's process says last.
type stats struct {
	Requests    uint64 // decided on and carried
	Events      uint64
	Syncs       uint64
	Rules       int
	Unevaluated uint64
	Recalled    uint64 // decisions from answers that were kept
}

// err says why what was measured does not count.
func (s *stats) err() error {
	switch {
	case s.Events != 2*s.Requests:
		return fmt.Errorf("%d events for %d requests: every request has a decision and a completion", s.Events, s.Requests)
	case s.Unevaluated != 0:
		return fmt.Errorf("%d decisions were not evaluated", s.Unevaluated)
	}
	return nil
}

// count reads what a gateway's metrics say.
func (s *stats) count(metrics prometheus.Gatherer) (err error) {
	if s.Requests, err = sum(metrics, "sallyport_gateway_responses_total"); err != nil {
		return err
	}
	if s.Recalled, err = sum(metrics, "sallyport_gateway_recalled_decisions_total"); err != nil {
		return err
	}
	s.Unevaluated, err = sum(metrics, "sallyport_gateway_unevaluated_total")
	return err
}

// memory is a source whose secret is in the process: what a source costs is not
// measured here.
type memory struct{}

func (memory) TTL() time.Duration { return time.Hour }

func (memory) Read(context.Context) (credential.Material, error) {
	return credential.Material{Fields: map[string]credential.Secret{"token": credential.NewSecret(secret)}, Version: "1"}, nil
}

// rules is a document of o.rules rules, one of which is for each upstream.
func rules(o options) policy.Document {
	near := &policy.Upstream{Addresses: []string{"127.0.0.0/8"}, Roots: filepath.Join(o.dir, "upstream.pem")}
	d := policy.Document{
		EgressAuth: []policy.EgressAuthRule{
			{Name: "bench", Destination: o.upstreams.secured, AuthRef: "bench", Upstream: near},
			{Name: "bench-multiplexed", Destination: o.upstreams.multiplexed, AuthRef: "bench", Upstream: near},
		},
		Egress:      []policy.EgressRule{{Name: "bench-open", Destination: o.upstreams.open, Upstream: near}},
		Credentials: []policy.Credential{{Name: "bench"}},
	}
	if o.role != "kept" {
		d.Policy.Cache = new(0) // each decision is evaluated
	}
	for i := range o.rules - len(d.EgressAuth) - len(d.Egress) {
		d.Egress = append(d.Egress, policy.EgressRule{
			Name: fmt.Sprintf("rule-%d", i), Destination: fmt.Sprintf("host-%d.example.test", i), Paths: []string{"/v1/**"},
		})
	}
	return d
}

// clients is how many the proxy has: one may have 1,024 connections.
const clients = 16

// house is what a gateway works with, of which it is the daemon's.
type house struct {
	compiled  *engine.Policy
	engine    *engine.Engine
	authority *ca.Authority
	clients   *access.Clients
	broker    *credential.Broker
	key       *seal.Key
	audit     string // folder
	own       uint64 // events about the log itself
	listener  *net.TCPListener
	urls      string // of the proxy, with each client's token
	logger    *slog.Logger
}

// newHouse makes it below a folder of the role's own.
func newHouse(ctx context.Context, o options) (h *house, err error) {
	h = &house{logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))}
	if h.compiled, err = engine.Compile(ctx, rules(o), engine.Options{Logger: h.logger}); err != nil {
		return nil, err
	}
	h.engine = engine.NewEngine(h.compiled)
	data := filepath.Join(o.dir, o.role)
	if err := os.MkdirAll(data, 0o700); err != nil {
		return nil, err
	}
	if h.key, err = seal.Open(filepath.Join(o.dir, o.role+".key"), data); err != nil {
		return nil, err
	}
	if h.authority, err = ca.Open(ca.Options{Dir: filepath.Join(data, "ca"), Sealer: h.key, Logger: h.logger}); err != nil {
		return nil, err
	}
	h.audit = filepath.Join(data, "audit")
	if h.clients, err = access.OpenClients(filepath.Join(data, "clients.json")); err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	h.listener = l.(*net.TCPListener)
	var urls []string
	var roots []byte
	for i := range clients {
		client, token, err := h.clients.Add(fmt.Sprint("bench-", i), nil)
		if err != nil {
			return nil, err
		}
		root, err := h.authority.Root(client.ID)
		if err != nil {
			return nil, err
		}
		roots = append(roots, root...)
		urls = append(urls, fmt.Sprintf("http://%s:%s@%s", client.Name, token, l.Addr()))
	}
	h.urls = strings.Join(urls, " ")
	if err := os.WriteFile(filepath.Join(o.dir, o.role+".pem"), roots, 0o600); err != nil {
		return nil, err
	}
	h.broker = credential.New(credential.Options{
		Sources: map[string]credential.Source{"bench": memory{}}, Bound: h.engine.Bound, Log: h.logger,
	})
	return h, nil
}

// ownLog is the audit log as the Sealer has it, which counts what it appends.
type ownLog struct {
	tree.Log
	appended *uint64
}

func (l ownLog) Append(ctx context.Context, events ...*audit.Event) error {
	err := l.Log.Append(context.WithoutCancel(ctx), events...) // or it may be in the log nevertheless
	if err == nil {
		*l.appended += uint64(len(events))
	}
	return err
}

// seal keeps the tree of the audit log, as the daemon does. stop, after ctx is done, signs
// the last checkpoint.
func (h *house) seal(ctx context.Context, log tree.Log, seen func(auditlog.Entry), settled func()) (stop func() error) {
	s := tree.NewSealer(tree.Options{Dir: h.audit, Log: ownLog{log, &h.own}, Key: h.key, Logger: h.logger, Seen: seen, Settled: settled})
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }()
	return func() error { return errors.Join(<-ended, s.Close()) }
}

// report says what the gateway has done, which then is over.
func (h *house) report(counted auditlog.Stats, metrics prometheus.Gatherer) (err error) {
	s := stats{Events: counted.Events - h.own, Syncs: counted.Syncs, Rules: h.compiled.Rules()}
	if err := s.count(metrics); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(s)
}

// sallyportRole is the gateway as the daemon runs it: with everything on, in a
// process without privileges beside this one.
func sallyportRole(ctx context.Context, o options) (err error) {
	h, err := newHouse(ctx, o)
	if err != nil {
		return err
	}
	trail, err := supervisor.OpenAuditLog(h.audit, auditlog.Options{Logger: h.logger}, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, trail.Close()) }()
	view, err := jail.OpenView(filepath.Join(o.dir, o.role+".view"), h.logger)
	if err != nil {
		return err
	}
	super := supervisor.New(supervisor.Options{
		IDs: jail.IDs{UID: jail.Nobody, GID: jail.Nobody}, View: view, Listeners: supervisor.Listeners{Explicit: h.listener},
		AuditLog: trail, AuditDir: h.audit, Broker: h.broker, Authority: h.authority,
		Local:      func() []netip.Prefix { return nil },
		Identities: func() map[netip.Addr]policy.Sandbox { return nil }, Clients: h.clients.List,
		Event: func(string) *audit.Event {
			return audit.New(audit.KindLifecycle, audit.ClassLifecycle, audit.ActivityOther)
		},
		Logger: h.logger,
	})
	if err := super.Start(ctx, rules(o), h.compiled.Revision()); err != nil {
		return err
	}
	sealed := h.seal(ctx, trail, trail.Seen, trail.Settle)
	fmt.Println(h.urls)
	<-ctx.Done()
	_ = h.listener.Close()
	families, err := super.Gather()
	if err != nil {
		return err
	}
	_ = super.Stop(5 * time.Second) // idle connections of the load may remain
	trail.Flush()
	if err := errors.Join(sealed(), trail.Close()); err != nil {
		return err
	}
	return h.report(trail.Stats(), prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) { return families, nil }))
}

// plainLog is a log that this process writes.
type plainLog struct{ *auditlog.Log }

func (l plainLog) Durable() uint64 { return l.Begins() - 1 + l.Stats().Events }

// unsplitRole is the same gateway in one process, for what the split costs. Its
// profiles are those of a gateway.
func unsplitRole(ctx context.Context, o options) (err error) {
	worker.Tune()
	h, err := newHouse(ctx, o)
	if err != nil {
		return err
	}
	records, err := auditlog.Open(h.audit, auditlog.Options{Logger: h.logger})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, records.Close()) }()
	pool := upstream.New(upstream.Options{Logger: h.logger})
	defer pool.Close()
	registry := prometheus.NewRegistry()
	g, err := gateway.New(gateway.Options{
		Clients:      h.clients,
		Decider:      h.engine,
		Recorder:     records,
		Certificates: mitm.NewLeaves(h.authority.Sign, time.Now),
		Upstreams:    pool,
		Broker:       h.broker,
		Logger:       h.logger,
		Metrics:      registry,
	})
	if err != nil {
		return err
	}
	if o.profile != "" {
		stop, err := profile(o.profile)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, stop()) }()
	}
	sealed := h.seal(ctx, plainLog{records}, nil, nil)
	fmt.Println(h.urls)
	if err := g.ServeExplicit(ctx, h.listener); err != nil {
		return err
	}
	patience, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = g.Shutdown(patience) // idle connections of the load may remain
	if err := errors.Join(sealed(), records.Close()); err != nil {
		return err
	}
	return h.report(records.Stats(), registry)
}

// sum adds up a counter over its labels.
func sum(registry prometheus.Gatherer, name string) (uint64, error) {
	families, err := registry.Gather()
	if err != nil {
		return 0, err
	}
	var total float64
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				total += m.GetCounter().GetValue()
			}
		}
	}
	return uint64(total), nil
}

// profile records CPU and allocations into a folder until stop.
func profile(dir string) (stop func() error, err error) {
	cpu, err := os.Create(filepath.Join(dir, "cpu.pprof"))
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(cpu); err != nil {
		return nil, errors.Join(err, cpu.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		allocs, err := os.Create(filepath.Join(dir, "allocs.pprof"))
		if err != nil {
			return errors.Join(err, cpu.Close())
		}
		return errors.Join(pprof.Lookup("allocs").WriteTo(allocs, 0), allocs.Close(), cpu.Close())
	}, nil
}
