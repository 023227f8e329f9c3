package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"runtime/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sallyport/audit"
	"sallyport/gateway"
	"sallyport/gateway/credential"
	"sallyport/gateway/mitm"
	"sallyport/gateway/upstream"
	"sallyport/internal/seal"
	"sallyport/policy"
)

// stats are what the gateway's process says last.
type stats struct {
	Requests    uint64 // decided on and carried
	Events      uint64
	Syncs       uint64
	Rules       int
	Unevaluated uint64
}

// memory is a source whose secret is in the process: what a source costs is not
// measured here.
type memory struct{}

func (memory) TTL() time.Duration { return time.Hour }

func (memory) Read(context.Context) (credential.Material, error) {
	return credential.Material{Fields: map[string]credential.Secret{"token": credential.NewSecret(secret)}, Version: "1"}, nil
}

// rules is a document of n rules, one of which is for the target.
func rules(o options) policy.Document {
	d := policy.Document{
		EgressAuth: []policy.EgressAuthRule{{
			Name: "bench", Destination: o.target, AuthRef: "bench",
			Upstream: &policy.Upstream{Addresses: []string{"127.0.0.0/8"}, Roots: filepath.Join(o.dir, "upstream.pem")},
		}},
		Credentials: []policy.Credential{{Name: "bench"}},
	}
	for i := range o.rules - 1 {
		d.Egress = append(d.Egress, policy.EgressRule{
			Name: fmt.Sprintf("rule-%d", i), Destination: fmt.Sprintf("host-%d.example.test", i), Paths: []string{"/v1/**"},
		})
	}
	return d
}

// sallyportRole is the gateway with everything on.
func sallyportRole(ctx context.Context, o options) (err error) {
	debug.SetGCPercent(gateway.GCPercent) // as the daemon does
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	compiled, err := policy.Compile(ctx, rules(o), policy.Options{Logger: logger})
	if err != nil {
		return err
	}
	engine := policy.NewEngine(compiled)
	data := filepath.Join(o.dir, "data")
	if err := os.MkdirAll(data, 0o700); err != nil {
		return err
	}
	key, err := seal.Open(filepath.Join(o.dir, "key"), data)
	if err != nil {
		return err
	}
	authority, err := mitm.Open(mitm.Options{Dir: filepath.Join(data, "ca"), Sealer: key, Logger: logger})
	if err != nil {
		return err
	}
	records, err := audit.Open(filepath.Join(data, "audit"), audit.Options{Logger: logger})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, records.Close()) }()
	pool := upstream.New(upstream.Options{Logger: logger})
	defer pool.Close()
	clients, err := gateway.OpenClients(filepath.Join(data, "clients.json"))
	if err != nil {
		return err
	}
	client, token, err := clients.Add("bench", nil)
	if err != nil {
		return err
	}
	root, err := authority.Root(client.ID)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(o.dir, "sallyport.pem"), root, 0o600); err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	g, err := gateway.New(gateway.Options{
		Clients:      clients,
		Decider:      engine,
		Recorder:     records,
		Certificates: authority,
		Upstreams:    pool,
		Broker:       credential.New(credential.Options{Sources: map[string]credential.Source{"bench": memory{}}, Bound: engine.Bound, Log: logger}),
		Logger:       logger,
		Metrics:      registry,
	})
	if err != nil {
		return err
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
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
	fmt.Printf("http://bench:%s@127.0.0.1:%d\n", token, port(ln))
	if err := g.ServeExplicit(ctx, ln); err != nil {
		return err
	}
	patience, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = g.Shutdown(patience) // idle connections of the load may remain
	if err := records.Close(); err != nil {
		return err
	}
	counted := records.Stats()
	s := stats{Events: counted.Events, Syncs: counted.Syncs, Rules: compiled.Rules()}
	if s.Requests, err = sum(registry, "sallyport_gateway_responses_total"); err != nil {
		return err
	}
	if s.Unevaluated, err = sum(registry, "sallyport_gateway_unevaluated_total"); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(s)
}

// sum adds up a counter over its labels.
func sum(registry *prometheus.Registry, name string) (uint64, error) {
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
