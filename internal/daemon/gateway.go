package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"time"

	"sallyport/audit"
	"sallyport/gateway/access"
	"sallyport/gateway/ca"
	"sallyport/gateway/placeholder"
	"sallyport/gateway/resolver"
	"sallyport/gateway/supervisor"
	"sallyport/gateway/workerapi"
	"sallyport/internal/durable"
	"sallyport/internal/jail"
	"sallyport/internal/secretfile"
	"sallyport/policy"
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
