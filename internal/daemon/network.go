package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	"sallyport/internal/config"
	"sallyport/internal/daemon/drops"
	"sallyport/internal/reconcile"
	"sallyport/sandbox/datapath"
)

// network is the sandboxes' network: its guard, and what the gateway listens on.
type network struct {
	guard   *datapath.Datapath
	steered *net.TCPListener
	dnsUDP  *net.UDPConn
	dnsTCP  *net.TCPListener
}

func (d *daemon) openNetwork(ctx context.Context) (err error) {
	n := &network{}
	if n.guard, err = datapath.Open(d.datapathConfig()); err != nil {
		return err
	}
	d.onClose(n.guard.Close)
	if n.steered, err = datapath.Listen(); err != nil {
		return err
	}
	d.closeLate(n.steered) // the gateway may have closed it
	at := netip.AddrPortFrom(d.datapathConfig().Gateway(), 53)
	listen := net.ListenConfig{Control: datapath.Mark}
	listen.SetMultipathTCP(false)
	udp, err := listen.ListenPacket(ctx, "udp4", at.String())
	if err != nil {
		return fmt.Errorf("listening for the sandboxes' DNS: %w: is another DNS server on every address of this host?", err)
	}
	n.dnsUDP = udp.(*net.UDPConn)
	d.closeLate(udp)
	tcp, err := listen.Listen(ctx, "tcp4", at.String())
	if err != nil {
		return fmt.Errorf("listening for the sandboxes' DNS: %w", err)
	}
	n.dnsTCP = tcp.(*net.TCPListener)
	d.closeLate(tcp)
	d.network = n
	return nil
}

// serveNetwork has connections come to the gateway, and records what is refused before it.
func (d *daemon) serveNetwork(ctx context.Context, g *errgroup.Group) error {
	n := d.network
	if n == nil {
		return nil
	}
	refused := drops.New(d.auditLog, d.sandboxes.Identities, d.log)
	g.Go(func() error { return refused.Run(ctx) })
	g.Go(func() error {
		defer refused.Flush() // what came after the last tick
		return n.guard.Drops(ctx, refused.Add)
	})
	flows := reconcile.New(reconcile.Options{
		Flows: n.guard, Dir: d.cfg.AuditDir(), Subnet: d.cfg.Network.Subnet,
		Worker: func() int { return d.supervisor.Status().PID }, Stats: d.auditLog.Stats, Record: d.auditLog.Enqueue, Logger: d.log,
	})
	d.metrics.MustRegister(flows.Collectors()...)
	g.Go(func() error { return flows.Run(ctx) })
	return n.guard.Steer(n.steered)
}

func (d *daemon) datapathConfig() datapath.Config { return datapathConfig(d.cfg, d.log) }

func datapathConfig(cfg *config.Config, log *slog.Logger) datapath.Config {
	n := cfg.Network
	return datapath.Config{Bridge: n.Bridge, Subnet: n.Subnet, Logger: log, Pins: PinDir(cfg)}
}

// PinDir is the folder in the BPF file system that keeps the datapath's programs and maps.
func PinDir(cfg *config.Config) string {
	return filepath.Join("/sys/fs/bpf/sallyport", cfg.Network.Bridge)
}

// RemoveDatapath takes the datapath off this host. No sandbox may run.
func RemoveDatapath(cfg *config.Config) error {
	return datapath.Remove(datapathConfig(cfg, slog.New(slog.DiscardHandler)))
}
