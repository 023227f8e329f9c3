package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"sallyport/audit"
	"sallyport/gateway/access"
	"sallyport/gateway/ca"
	"sallyport/gateway/placeholder"
	"sallyport/gateway/resolver"
	"sallyport/gateway/supervisor"
	"sallyport/gateway/workerapi"
	"sallyport/internal/api"
	"sallyport/internal/durable"
	"sallyport/internal/jail"
	"sallyport/internal/secretfile"
	"sallyport/policy"
	"sallyport/policy/approval"
	"sallyport/policy/finding"
	"sallyport/policy/limit"
	"sallyport/sandbox"
)

// listen listens on the address that a key of the configuration has. The listener is
// closed with the daemon, unless it was before.
func (d *daemon) listen(key, address string) (*net.TCPListener, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: set %[1]s.listen", key, err)
	}
	d.closeLate(l)
	return l.(*net.TCPListener), nil
}

// closeLate closes with the daemon what may be closed before.
func (d *daemon) closeLate(c io.Closer) {
	d.onClose(func() error { _ = c.Close(); return nil })
}

// openListeners opens the listeners of the explicit proxy and of what comes in, if they
// are configured.
func (d *daemon) openListeners(to *supervisor.Listeners) (err error) {
	if c := d.cfg.Proxy; c.Listen != "" {
		if d.proxy, err = d.listen("proxy", c.Listen); err != nil {
			return err
		}
		to.Explicit = d.proxy
		if c.Certificate != "" {
			if _, to.Certificate, to.Key, err = keyPair(c.Certificate, c.Key, secretfile.Read); err != nil {
				return fmt.Errorf("proxy: %w", err)
			}
		}
	}
	if d.cfg.Inbound.Listen != "" {
		if d.inbound, err = d.listen("inbound", d.cfg.Inbound.Listen); err != nil {
			return err
		}
		to.Inbound = d.inbound
	}
	return d.openRouter(to)
}

// identities are the running sandboxes as the gateway sees them.
func (d *daemon) identities() map[netip.Addr]policy.Sandbox {
	all := map[netip.Addr]policy.Sandbox{}
	if d.sandboxes != nil {
		for a, i := range d.sandboxes.Identities() {
			all[a] = identity(i)
		}
	}
	return all
}

func identity(i sandbox.Info) policy.Sandbox {
	return policy.Sandbox{Name: i.Name, ID: i.ID, Session: i.Session, Tags: i.Tags(), Owner: i.Spec.Owner}
}

// localAddresses are this host's own and the sandboxes': never an upstream.
func (d *daemon) localAddresses() []netip.Prefix {
	list := []netip.Prefix{d.cfg.Network.Subnet}
	if d.node != nil {
		list = append(list, d.node.Local()...)
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		d.log.Warn("the host's addresses cannot be read", "error", err)
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(n.IP); ok {
				ip = ip.Unmap()
				list = append(list, netip.PrefixFrom(ip, ip.BitLen()))
			}
		}
	}
	return list
}

func (d *daemon) openGateway(ctx context.Context) (err error) {
	if err := durable.MkdirAll(d.cfg.IndexDir(), 0o700); err != nil {
		return err
	}
	issuer, err := d.openNode(ctx)
	if err != nil {
		return err
	}
	if d.authority, err = ca.Open(ca.Options{Dir: d.cfg.CADir(), Sealer: d.key, Issuer: issuer, Logger: d.log}); err != nil {
		return err
	}
	if d.placeholderKey, err = placeholder.OpenKey(filepath.Join(d.cfg.DataDir, "placeholder.key"), d.key); err != nil {
		return err
	}
	if d.saved, err = supervisor.OpenSavedStore(filepath.Join(d.cfg.IndexDir(), "sent"), d.key); err != nil {
		return err
	}
	if d.names, err = resolver.OpenNameTable(filepath.Join(d.cfg.IndexDir(), "names"), resolver.NameTableOptions{Logger: d.log}); err != nil {
		return err
	}
	if d.approvals, err = d.openApprovals(); err != nil {
		return err
	}
	if d.exposed, err = access.OpenPorts(filepath.Join(d.cfg.IndexDir(), "exposures.json")); err != nil {
		return err
	}
	d.clients, err = access.OpenClients(filepath.Join(d.cfg.IndexDir(), "clients.json"))
	return err
}

// openSupervisor readies what the gateway's process is started with.
func (d *daemon) openSupervisor(context.Context) error {
	ids, err := jail.Lookup(d.cfg.Gateway.User)
	if err != nil {
		return fmt.Errorf("gateway.user: %w", err)
	}
	view, err := jail.OpenView(filepath.Join(d.cfg.RunDir, "gateway"), d.log)
	if err != nil {
		return err
	}
	var listeners supervisor.Listeners
	if n := d.network; n != nil {
		listeners.Transparent, listeners.DNS, listeners.DNSTCP = n.steered, n.dnsUDP, n.dnsTCP
		listeners.Restored = func() error { return n.guard.Steer(n.steered) }
	}
	if err := d.openListeners(&listeners); err != nil {
		return err
	}
	ledger, err := supervisor.OpenLimitStore(filepath.Join(d.cfg.IndexDir(), "limits.json"), d.cfg.AuditDir())
	if err != nil {
		return err
	}
	var router func() *workerapi.Router
	if d.router != nil {
		router = d.router.now.Load
	}
	d.supervisor = supervisor.New(supervisor.Options{
		Router: router, Find: d.find, Routable: d.routable,
		IDs: ids, View: view, Listeners: listeners,
		AuditLog: d.auditLog, AuditDir: d.cfg.AuditDir(), SegmentSize: d.cfg.Audit.SegmentSize, Cluster: d.cfg.Pods.Cluster, Node: d.cfg.Pods.Node,
		Broker: d.broker, Authority: d.authority, Names: d.names, Local: d.localAddresses,
		Held:         d.held,
		Placeholders: d.heldBy, Saved: d.saved,
		Identities: d.identities, Clients: d.clients.List, Approvals: d.approvals,
		Ports: d.exposed.List, Whose: d.whose, Wake: d.wake, Dial: d.reach, Loopback: d.inside,
		Event: func(state string) *audit.Event {
			return d.changed("sallyport-gateway", "gateway", state)
		},
		Logger: d.log,
		Found:  d.cfg.Gateway.Found,
		Limits: ledger, Limited: func() bool { return d.rules.Policy().Limited() },
		Every: func(limit string) time.Duration { return d.rules.Policy().Every(limit) },
	})
	d.onClose(func() error { return d.supervisor.Stop(0) }) // of no effect after end
	return nil
}

// forget drops what the gateway keeps under the ID of a sandbox or a client.
func (d *daemon) forget(id string) error {
	d.contacts.Forget(id)
	err := errors.Join(d.names.Forget(id), d.saved.Forget(id), d.approvals.Forget(id), d.exposed.Forget(id), d.memories.Forget(id))
	if d.supervisor != nil { // nothing is forgotten by it before it is there
		d.supervisor.Forget(id)
		d.supervisor.Ports()
	}
	return err
}

// clients are the users of the explicit proxy as the API sees them, with an
// event for each change.
type clients struct{ d *daemon }

func (c clients) Add(ctx context.Context, name string, tags map[string]string) (access.Client, string, error) {
	added, token, err := c.d.clients.Add(name, tags)
	if err != nil {
		return access.Client{}, "", err
	}
	if err := c.say(ctx, added, "added"); err != nil {
		return access.Client{}, "", errors.Join(err, c.d.clients.Remove(name)) // its token was never shown
	}
	c.d.supervisor.Clients()
	return added, token, nil
}

func (c clients) Remove(ctx context.Context, name string) error {
	var removed access.Client
	for _, have := range c.d.clients.List() {
		if have.Name == name {
			removed = have
		}
	}
	if err := c.d.clients.Remove(name); err != nil {
		return err
	}
	c.d.supervisor.Clients()
	return c.say(context.WithoutCancel(ctx), removed, "removed")
}

func (c clients) List() []access.Client { return c.d.clients.List() }

func (c clients) say(ctx context.Context, who access.Client, state string) error {
	e := c.d.changed("client/"+who.Name, "client "+who.Name, state)
	x := &e.Unmapped.Sallyport
	x.Sandbox, x.SandboxID, x.Tags = who.Name, who.ID, who.Tags
	return c.d.auditLog.Append(ctx, e)
}

// limits are the counters as the API sees them.
type limits struct{ d *daemon }

func (l limits) List(ctx context.Context) ([]api.Limit, error) {
	counts, err := l.d.supervisor.Limits(ctx)
	if err != nil {
		return nil, err
	}
	names := l.sandboxes()
	list := make([]api.Limit, 0, len(counts))
	for _, n := range counts {
		item := api.Limit{Name: n.Limit, Per: n.Per, Subject: n.Subject, Used: n.Used, Most: n.Most}
		if n.Every > 0 && n.Every != limit.Forever {
			item.Resets = n.Ends()
		}
		if n.Per == policy.PerSandbox {
			item.Sandbox = names[n.Subject]
		}
		list = append(list, item)
	}
	return list, nil
}

// sandboxes are the names of sandboxes and of users of the explicit proxy by ID.
func (l limits) sandboxes() map[string]string {
	names := map[string]string{}
	for _, c := range l.d.clients.List() {
		names[c.ID] = c.Name
	}
	if l.d.sandboxes != nil {
		for _, i := range l.d.sandboxes.List() {
			names[i.ID] = i.Name
		}
	}
	return names
}

func (l limits) Reset(ctx context.Context, by approval.Operator, name, subject string) (int, error) {
	counts, err := l.d.supervisor.Limits(ctx)
	if err != nil {
		return 0, err
	}
	if err := l.known(name, counts); err != nil {
		return 0, err
	}
	what := fmt.Sprintf("limit %s of %s", name, subject)
	if subject == "" {
		subject, what = limit.Every, "limit "+name
	}
	names := l.sandboxes()
	if l.d.sandboxes != nil {
		// A fork's counter is its lineage's.
		if i, err := l.d.sandboxes.Get(subject); err == nil && i.Lineage != nil {
			subject = i.Lineage.Root
		}
	}
	for _, n := range counts {
		if n.Limit == name && n.Per == policy.PerSandbox && names[n.Subject] == subject {
			subject = n.Subject
		}
	}
	e := l.d.changed("limit/"+name, what, "reset")
	e.Actor = actor(by)
	return l.d.supervisor.ResetLimit(ctx, name, subject, e)
}

// known is an error for a name that nothing has: it is most likely misspelled.
func (l limits) known(name string, counts []limit.Count) error {
	var names []string
	for _, limit := range l.d.inForce.Load().Limits {
		names = append(names, limit.Name)
	}
	for _, n := range counts {
		names = append(names, n.Limit)
	}
	near := finding.Nearest(name, names)
	switch {
	case slices.Contains(names, name):
		return nil
	case near != "":
		return fmt.Errorf("%w: %q: did you mean %q?", api.ErrNoLimit, name, near)
	}
	return fmt.Errorf("%w: %q: `sallyport limits` shows those in use", api.ErrNoLimit, name)
}
