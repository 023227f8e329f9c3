package daemon

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"sallyport/audit"
	"sallyport/gateway/access"
	"sallyport/gateway/ca"
	"sallyport/gateway/resolver"
	"sallyport/gateway/supervisor"
	"sallyport/internal/durable"
	"sallyport/internal/jail"
	"sallyport/internal/secretfile"
	"sallyport/policy"
	"sallyport/sandbox"
)

// listenProxy opens the explicit proxy's listener, if one is configured.
func (d *daemon) listenProxy(to *supervisor.Listeners) error {
	c := d.cfg.Proxy
	if c.Listen == "" {
		return nil
	}
	l, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return fmt.Errorf("proxy: %w: set proxy.listen", err)
	}
	d.proxy = l.(*net.TCPListener)
	d.onClose(func() error { _ = l.Close(); return nil })
	to.Explicit = d.proxy
	if c.Certificate == "" {
		return nil
	}
	if to.Certificate, err = os.ReadFile(c.Certificate); err == nil {
		to.Key, err = secretfile.Read(c.Key, maxSecretFile)
	}
	if err == nil {
		_, err = tls.X509KeyPair(to.Certificate, to.Key)
	}
	if err != nil {
		return fmt.Errorf("proxy: %w", err)
	}
	return nil
}

// identities are the running sandboxes as the gateway sees them.
func (d *daemon) identities() map[netip.Addr]policy.Sandbox {
	all := map[netip.Addr]policy.Sandbox{}
	if d.host != nil {
		for a, i := range d.host.sandboxes.Identities() {
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

func (d *daemon) openGateway(context.Context) (err error) {
	if err := durable.MkdirAll(d.cfg.IndexDir(), 0o700); err != nil {
		return err
	}
	if d.authority, err = ca.Open(ca.Options{Dir: d.cfg.CADir(), Sealer: d.key, Logger: d.log}); err != nil {
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
	if h := d.host; h != nil {
		listeners.Transparent, listeners.DNS, listeners.DNSTCP = h.steered, h.dnsUDP, h.dnsTCP
		listeners.Restored = func() error { return h.guard.Steer(h.steered) }
	}
	if err := d.listenProxy(&listeners); err != nil {
		return err
	}
	if err := d.listenInbound(&listeners); err != nil {
		return err
	}
	ledger, err := supervisor.OpenLimitStore(filepath.Join(d.cfg.IndexDir(), "limits.json"), d.cfg.AuditDir())
	if err != nil {
		return err
	}
	d.supervisor = supervisor.New(supervisor.Options{
		IDs: ids, View: view, Listeners: listeners,
		AuditLog: d.auditLog, AuditDir: d.cfg.AuditDir(), SegmentSize: d.cfg.Audit.SegmentSize,
		Broker: d.broker, Authority: d.authority, Names: d.names, Local: d.localAddresses,
		Identities: d.identities, Clients: d.clients.List, Approvals: d.approvals,
		Ports: d.exposed.List, Whose: d.whose, Wake: d.wake, Dial: d.reach, Loopback: d.inside,
		Event: func(state string) *audit.Event {
			return changed(audit.Product{Name: "sallyport-gateway", Version: d.version}, "gateway", state)
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
	err := errors.Join(d.names.Forget(id), d.approvals.Forget(id), d.exposed.Forget(id))
	if d.supervisor != nil { // nothing is forgotten by it before it is there
		d.supervisor.Forget(id)
		d.supervisor.Ports()
	}
	return err
}

// listenInbound opens the listener of what comes in, if one is configured.
func (d *daemon) listenInbound(to *supervisor.Listeners) error {
	if d.cfg.Inbound.Listen == "" {
		return nil
	}
	l, err := net.Listen("tcp", d.cfg.Inbound.Listen)
	if err != nil {
		return fmt.Errorf("inbound: %w: set inbound.listen", err)
	}
	d.inbound = l.(*net.TCPListener)
	d.onClose(func() error { _ = l.Close(); return nil })
	to.Inbound = d.inbound
	return nil
}
