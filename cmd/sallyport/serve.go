package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sync/errgroup"

	"sallyport/gateway/supervisor"
	"sallyport/internal/api"
	"sallyport/internal/recorded"
	"sallyport/internal/secretfile"
	"sallyport/policy"
	"sallyport/sandbox"
)

// serveAPI listens on the unix socket, and over TLS where that is configured.
func (d *daemon) serveAPI(ctx context.Context, g *errgroup.Group) error {
	var sandboxes *sandbox.Manager
	if d.house != nil {
		sandboxes = d.house.sandboxes
	}
	l, users, err := d.listenControl()
	if err != nil {
		return err
	}
	routes := api.NewHandler(api.Options{
		Sandboxes: sandboxes,
		Secrets:   secrets{d},
		Clients:   clients{d},
		Root:      d.authority.Root,
		Forget:    func(id string) error { return errors.Join(d.authority.Forget(id), d.forget(id)) },
		Recorded: func(ctx context.Context, decision string) (recorded.Explanation, error) {
			return recorded.Explain(ctx, d.rules.Policy(), auditDir(d.cfg), decision)
		},
		Explain: func(ctx context.Context, in policy.Input, body *policy.Sent) policy.Explanation {
			p := d.rules.Policy()
			return p.Explain(ctx, p.Show(in, body))
		},
		Named:     func(name string) bool { return d.rules.Policy().Names(name) },
		Reload:    func(ctx context.Context) error { return d.reload(ctx, byAPI, nil) },
		Shutdown:  func(ctx context.Context) { d.downBy.Store(&ctx); d.down.Store(true); d.cancel() },
		Status:    d.status,
		Limits:    limits{d},
		Exposures: exposures{d},
		Approvals: d.approvals,
		Logger:    d.log,
		Recorder:  d.trail,
		Keys:      d.apiKeys,
		Users:     users,
		Once:      d.once,
		Events:    d.lifecycles,
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
	if d.house != nil {
		for a, i := range d.house.sandboxes.Identities() {
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
