// Package daemon is what `sallyport up` runs: it opens the parts in order, connects them,
// serves until it is asked to end, and closes them in reverse.
//
//	daemon.go      opens the parts, in the order in which they depend on each other
//	run.go         starts them, and ends them
//	audit.go       the audit log: sealed, kept, and the events of the daemon itself
//	reload.go      puts another policy into force; follow.go notices that there is one
//	gateway.go     the gateway's process: its listeners, what it is told, its clients and limits
//	network.go     the sandboxes' network, and what the gateway listens on there
//	sandboxes.go   the engine and the sandboxes
//	pods.go        the pods of a node of Kubernetes
//	api.go         the API's listeners, and that of the metrics
//
// An event is in the audit log before its change takes effect.
package daemon

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"sallyport/audit/retention"
	"sallyport/audit/tree"
	"sallyport/gateway/access"
	"sallyport/gateway/ca"
	"sallyport/gateway/credential"
	"sallyport/gateway/credential/exchange"
	"sallyport/gateway/credential/file"
	"sallyport/gateway/resolver"
	"sallyport/gateway/supervisor"
	"sallyport/internal/api"
	"sallyport/internal/api/idempotency"
	"sallyport/internal/config"
	"sallyport/internal/daemon/contact"
	"sallyport/internal/daemon/events"
	"sallyport/internal/seal"
	"sallyport/internal/ssh"
	"sallyport/memory/keeper"
	"sallyport/policy/approval"
	"sallyport/policy/engine"
)

// Options are what a daemon is started with.
type Options struct {
	Location *config.Location // of Config, read again at each reload
	Config   *config.Config   // as Location was read last
	Version  string           // of this program
	Log      *slog.Logger     // the operational log, which is not the audit log
	Hangup   <-chan os.Signal // each element asks for a reload
}

// Run runs a daemon until ctx is done or an operator asks it to end, and returns when
// everything is closed.
func Run(ctx context.Context, o Options) error {
	d, err := open(ctx, o)
	if err != nil {
		return err
	}
	return d.run(ctx)
}

// daemon is everything that `sallyport up` runs, in the order in which it is made.
type daemon struct {
	location *config.Location
	cfg      *config.Config
	version  string
	log      *slog.Logger
	metrics  *prometheus.Registry
	closers  []func() error // in the order in which they were made

	inForce   atomic.Pointer[config.Config] // the configuration of the last load
	key       *seal.Key
	auditLog  *supervisor.AuditLog
	events    *events.Reader // of the audit log
	sealer    *tree.Sealer
	retention *retention.Keeper
	store     *file.Store
	logins    *exchange.Keeper
	rules     *engine.Engine
	broker    *credential.Broker
	readings  *readings
	leases    vaultLeases

	loader // of policy and credentials, again and again

	placeholderKey []byte                 // that placeholders follow from
	saved          *supervisor.SavedStore // what answers are searched for
	authority      *ca.Authority
	names          *resolver.NameTable
	clients        *access.Clients
	supervisor     *supervisor.Supervisor // of the gateway's process
	proxy          *net.TCPListener       // nil without an explicit proxy
	inbound        *net.TCPListener       // nil where nothing comes in
	routed         *net.TCPListener       // likewise, for router
	router         *router                // nil without one
	exposed        *access.Ports
	approvals      *approval.Store
	ssh            *ssh.Server // nil without SSH

	sinks sinks // of the audit log

	memories *keeper.Keeper
	contacts *contact.Contacts

	network   *network     // nil for a gateway without sandboxes of its own
	sandboxes sandboxes    // likewise
	host      *sandboxHost // where this daemon makes the sandboxes; nil elsewhere
	node      *podHost     // where they are pods; nil elsewhere

	// down is set when the daemon was asked to stop its sandboxes too.
	down   atomic.Bool
	downBy atomic.Pointer[context.Context] // of the request that asked
	cancel context.CancelFunc

	apiKeys     *api.Keys
	once        *idempotency.Store
	certificate *tls.Certificate // of the API's listener, nil without one
}

// open makes all parts. When it fails, it closes again those that it made.
func open(ctx context.Context, o Options) (_ *daemon, err error) {
	d := &daemon{location: o.Location, cfg: o.Config, version: o.Version, log: o.Log, metrics: prometheus.NewRegistry()}
	d.loader, d.readings = newLoader(d.cfg, d.log, o.Hangup), newReadings()
	defer func() {
		if err != nil {
			err = errors.Join(err, d.close())
		}
	}()
	if err := raiseDescriptors(); err != nil {
		d.log.Warn("the daemon may run out of open files, and then stops what it does: raise the limit, as by LimitNOFILE= in its unit", "needs", descriptors, "error", err)
	}
	for _, step := range []func(context.Context) error{
		d.lockDataDir, d.openAuditLog, d.openLeases, d.openPolicy, d.openGateway, d.openMemories, d.openStores, d.openSandboxes, d.openSupervisor, d.openSinks, d.openSSH, d.openAPI,
	} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// onClose runs f when the daemon ends, last made first.
func (d *daemon) onClose(f func() error) { d.closers = append(d.closers, f) }

func (d *daemon) close() error {
	var errs []error
	for i := len(d.closers) - 1; i >= 0; i-- {
		errs = append(errs, d.closers[i]())
	}
	return errors.Join(errs...)
}

// lockDataDir makes the folders and takes the data directory.
func (d *daemon) lockDataDir(context.Context) error {
	// The memory of this process is written to no disk when it crashes, nor that of the
	// processes that it starts, the engine and gVisor among them. A limit of 0 would not
	// keep it from a program that takes cores, and one of 1 does (core(5),
	// do_coredump in fs/coredump.c).
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: 1, Max: 1}); err != nil {
		return fmt.Errorf("RLIMIT_CORE: %w", err)
	}
	for _, dir := range []string{d.cfg.DataDir, d.cfg.RunDir} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	release, err := Lock(d.cfg)
	if err != nil {
		return err
	}
	d.onClose(release)
	return nil
}

// descriptors is how many files the daemon makes sure that it can have open. The bounds
// of its listeners come to less than half of that: the rest is for its own work.
const descriptors = 1 << 14

func raiseDescriptors() error {
	var have unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &have); err != nil || have.Cur >= descriptors {
		return err
	}
	return unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: descriptors, Max: max(have.Max, descriptors)})
}
