package daemon

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"sallyport/audit"
	"sallyport/internal/api"
	"sallyport/internal/api/idempotency"
	"sallyport/internal/connlimit"
	"sallyport/internal/daemon/metrics"
	"sallyport/internal/recorded"
	"sallyport/internal/secretfile"
	"sallyport/policy"
	"sallyport/policy/body"
	"sallyport/sandbox/manager"
)

// listenControl makes the unix socket, for root and the users that the
// configuration names: for all others it cannot be reached, which access control
// lists see to (acl(5)), and they may do nothing, which the API sees to.
func (d *daemon) listenControl() (net.Listener, map[uint32][]api.Scope, error) {
	users, err := d.users()
	if err != nil {
		return nil, nil, err
	}
	path := d.cfg.Socket()
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}
	if err := admit(d.cfg.RunDir, 0o700, nil, 0); err != nil {
		return nil, nil, err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, nil, err
	}
	uids := slices.Sorted(maps.Keys(users))
	const write, search = 2 | 4, 1
	if err = admit(path, 0o600, uids, write); err == nil {
		err = admit(d.cfg.RunDir, 0o700, uids, search)
	}
	if err != nil {
		return nil, nil, errors.Join(err, l.Close())
	}
	return l, users, nil
}

// users are those of api.users by number.
func (d *daemon) users() (map[uint32][]api.Scope, error) {
	users := map[uint32][]api.Scope{}
	for name, words := range d.cfg.API.Users {
		scopes, err := api.ParseScopes(words)
		if err != nil {
			return nil, fmt.Errorf("api.users.%s: %w", name, err)
		}
		id := name
		if u, err := user.Lookup(name); err == nil {
			id = u.Uid
		}
		n, err := strconv.ParseUint(id, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("api.users: there is no user %q here: write a name from /etc/passwd, or a number", name)
		}
		users[uint32(n)] = scopes
	}
	return users, nil
}

// admit sets the mode of a file and lets some users do a little with it besides:
// a POSIX access control list in the form of linux/posix_acl_xattr.h.
func admit(path string, mode fs.FileMode, uids []uint32, perm uint16) error {
	const list = "system.posix_acl_access"
	if err := unix.Removexattr(path, list); err != nil && !errors.Is(err, unix.ENODATA) && !errors.Is(err, unix.ENOTSUP) {
		return fmt.Errorf("%s: %w", path, err)
	}
	if err := os.Chmod(path, mode); err != nil || len(uids) == 0 {
		return err
	}
	const userObj, named, groupObj, mask, other, nobody = 0x01, 0x02, 0x04, 0x10, 0x20, 0xffffffff
	acl := binary.LittleEndian.AppendUint32(nil, 2) // POSIX_ACL_XATTR_VERSION
	entry := func(tag, perm uint16, id uint32) {
		acl = binary.LittleEndian.AppendUint16(acl, tag)
		acl = binary.LittleEndian.AppendUint16(acl, perm)
		acl = binary.LittleEndian.AppendUint32(acl, id)
	}
	entry(userObj, uint16(mode>>6&7), nobody)
	for _, uid := range uids {
		entry(named, perm, uid)
	}
	entry(groupObj, 0, nobody)
	entry(mask, perm, nobody)
	entry(other, 0, nobody)
	if err := unix.Setxattr(path, list, acl, 0); err != nil {
		return fmt.Errorf("api.users: %s cannot be opened to them: %w: have runDir on a file system with access control lists, as tmpfs has, or name no users", path, err)
	}
	return nil
}

// serveRemote listens where others reach the API too, if that is configured.
func (d *daemon) serveRemote(ctx context.Context, g *errgroup.Group, routes http.Handler) error {
	c := d.cfg.API
	if c.Listen == "" {
		return nil
	}
	l, err := d.listen("api", c.Listen)
	if err != nil {
		return err
	}
	server, over := api.Remote(l, *d.certificate, routes, d.log, d.crowded("api"))
	serveHTTP(ctx, g, over, server)
	d.log.Info("the API listens", "address", l.Addr().String(), "fingerprint", api.Fingerprint(*d.certificate))
	return nil
}

// openAPI opens what the API keeps.
func (d *daemon) openAPI(context.Context) (err error) {
	index := d.cfg.IndexDir()
	if d.apiKeys, err = api.OpenKeys(filepath.Join(index, "keys.json"), d.log); err != nil {
		return err
	}
	if d.once, err = idempotency.Open(filepath.Join(index, "requests"), d.log); err != nil {
		return err
	}
	c := d.cfg.API
	if c.Listen == "" {
		return nil
	}
	var pair tls.Certificate
	if c.Certificate != "" {
		pair, _, _, err = keyPair(c.Certificate, c.Key, secretfile.Read)
	} else {
		host, _, _ := net.SplitHostPort(c.Listen)
		pair, err = api.Certificate(filepath.Join(d.cfg.CADir(), "api.sealed"), d.key, host)
	}
	if err != nil {
		return fmt.Errorf("api: %w", err)
	}
	d.certificate = &pair
	return nil
}

// maxSecretFile bounds a file that holds a secret, in bytes.
const maxSecretFile = 1 << 20

// keyPair reads the PEM of a certificate, and of its key by secretfile.Read or ReadMounted.
func keyPair(certificate, key string, read func(path string, most int64) ([]byte, error)) (pair tls.Certificate, public, private []byte, err error) {
	if public, err = os.ReadFile(certificate); err == nil {
		private, err = read(key, maxSecretFile)
	}
	if err == nil {
		pair, err = tls.X509KeyPair(public, private)
	}
	return pair, public, private, err
}

// serveAPI listens on the unix socket, and over TLS where that is configured.
func (d *daemon) serveAPI(ctx context.Context, g *errgroup.Group) error {
	var m *manager.Manager
	if d.host != nil {
		m = d.host.manager
	}
	l, users, err := d.listenControl()
	if err != nil {
		return err
	}
	routes := api.NewHandler(api.Options{
		Sandboxes: d.sandboxes,
		Manager:   m,
		Secrets:   secrets{d},
		Clients:   clients{d},
		Root:      d.authority.Root,
		Forget:    func(id string) error { return errors.Join(d.authority.Forget(id), d.forget(id)) },
		Recorded: func(ctx context.Context, decision string) (recorded.Explanation, error) {
			return recorded.Explain(ctx, d.rules.Policy(), d.cfg.AuditDir(), decision)
		},
		Explain: func(ctx context.Context, in policy.Input, body *body.Raw) policy.Explanation {
			p := d.rules.Policy()
			return p.Explain(ctx, p.Show(in, body))
		},
		Named:     func(name string) bool { return d.rules.Policy().Names(name) },
		Reload:    func(ctx context.Context) error { return d.reload(ctx, byAPI, nil) },
		Shutdown:  func(ctx context.Context) { d.downBy.Store(&ctx); d.down.Store(true); d.cancel() },
		Status:    d.status,
		Limits:    limits{d},
		Exposures: exposures{d},
		Sinks:     d,
		Retention: d.retention,
		Approvals: d.approvals,
		Logger:    d.log,
		Recorder:  d.auditLog,
		Keys:      d.apiKeys,
		Users:     users,
		Once:      d.once,
		Events:    d.events.Lifecycles,
		Audit:     d.events.Find,
		Memory:    d.memories,
	})
	server, local := api.Local(l, routes, d.log)
	serveHTTP(ctx, g, local, server)
	return d.serveRemote(ctx, g, routes)
}

// serveHTTP runs an HTTP server in the group until ctx is done, and lets the
// answers that are under way be written.
func serveHTTP(ctx context.Context, g *errgroup.Group, l net.Listener, s *http.Server) {
	g.Go(func() error {
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	g.Go(func() error {
		<-ctx.Done()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			return s.Close()
		}
		return nil
	})
}

// serveMetrics listens for Prometheus, unless that is off.
func (d *daemon) serveMetrics(ctx context.Context, g *errgroup.Group) error {
	if d.cfg.Metrics.Listen == "off" {
		return nil
	}
	d.metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	d.metrics.MustRegister(metrics.Log(d.auditLog.Stats)...)
	d.metrics.MustRegister(metrics.Seal(d.sealer.Status)...)
	d.metrics.MustRegister(metrics.Retention(d.retention.Status)...)
	d.metrics.MustRegister(d.supervisor.Metrics()...)
	d.metrics.MustRegister(d.loaderMetrics()...)
	d.metrics.MustRegister(metrics.Sinks{Status: d.sinks.Status})
	d.metrics.MustRegister(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{
		Namespace: "sallyport_gateway",
		PidFn:     func() (int, error) { return d.supervisor.Status().PID, nil },
	}))
	if d.network != nil {
		d.metrics.MustRegister(metrics.Datapath{Guard: d.network.guard})
	}
	l, err := d.listen("metrics", d.cfg.Metrics.Listen)
	if err != nil {
		return err
	}
	limit := connlimit.New(scrapersAll, scrapersEach, d.crowded("metrics"))
	serveHTTP(ctx, g, limit.Listener(l), &http.Server{
		ReadHeaderTimeout: scrapeWithin, ReadTimeout: scrapeWithin, WriteTimeout: scrapeWithin, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10,
		Handler: metrics.Handler(prometheus.Gatherers{d.metrics, d.supervisor}, d.cfg.Metrics.Listen), ErrorLog: slog.NewLogLogger(d.log.Handler(), slog.LevelDebug),
	})
	return nil
}

// Bounds of connections to the metrics listener, which asks for no key.
const (
	scrapersAll  = 512
	scrapersEach = 256              // of one source
	scrapeWithin = 10 * time.Second // a request, and likewise its answer
)

// crowded records that a listener has more connections than it keeps which have not
// shown whose they are: the oldest of them begin to be closed.
func (d *daemon) crowded(listener string) func(source string) {
	return func(source string) {
		e := d.changed("listener/"+listener, "connections to the "+listener+" listener", "crowded")
		e.SeverityID = audit.SeverityMedium
		e.Detail = "too many of them have not shown whose they are: the oldest are closed. The last came from " + source
		d.enqueue(e)
	}
}
