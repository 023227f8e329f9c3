package daemon

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"sallyport/gateway/access"
	"sallyport/gateway/inbound"
	"sallyport/gateway/supervisor"
	"sallyport/gateway/workerapi"
	"sallyport/internal/config"
	"sallyport/internal/periodic"
	"sallyport/internal/quota"
	"sallyport/internal/secretfile"
	"sallyport/sandbox"
	"sallyport/sandbox/pods"
)

// routerPeriod is how often the files of pods.router are looked at.
const routerPeriod = 5 * time.Second

// leastToken is the length of a token of a router's client, in bytes.
const leastToken = 32

// maxLookups bounds the questions to the API server for sandboxes elsewhere that are under way.
// They are half of the calls of the gateway that are answered at a time, which others need too.
const maxLookups = 128

var errLookups = fmt.Errorf("%w: the API server has not answered too many such questions", inbound.ErrNotPlaced)

// router has requests for sandboxes of all nodes come in: see inbound.Router.
type router struct {
	now     atomic.Pointer[workerapi.Router]
	files   config.Print  // as they were read
	lookups *quota.Places // of the API server, by namespace, or by client for an address
}

// openRouter opens the listener, if it is configured.
func (d *daemon) openRouter(to *supervisor.Listeners) (err error) {
	c := d.cfg.Pods.Router
	if c.Listen == "" {
		return nil
	}
	d.router = &router{files: d.routerPrint(), lookups: quota.New(maxLookups, maxLookups)}
	now, err := d.readRouter()
	if err != nil {
		return fmt.Errorf("pods.router: %w", err)
	}
	d.router.now.Store(now)
	if d.routed, err = d.listen("pods.router", c.Listen); err == nil {
		to.Routed = d.routed
	}
	return err
}

func (d *daemon) routerPrint() config.Print {
	c := d.cfg.Pods.Router
	files := []string{c.Certificate, c.Key}
	for _, client := range c.Clients {
		files = append(files, client.TokenFile)
	}
	return config.NewPrint(files...)
}

// readRouter reads the files of pods.router. A client whose file is not good is left out, and
// a certificate that is not good leaves the one of before.
func (d *daemon) readRouter() (*workerapi.Router, error) {
	c := d.cfg.Pods.Router
	pair, public, private, err := keyPair(c.Certificate, c.Key, secretfile.ReadMounted)
	if err == nil && workerapi.RouterName(pair.Leaf) == "" {
		err = fmt.Errorf("%s has no DNS name, by which nodes know each other", c.Certificate)
	}
	if before := d.router.now.Load(); err != nil && before != nil {
		d.log.Error("pods.router goes on with the certificate of before", "error", err)
		public, private, err = before.Certificate, before.Key, nil
	}
	if err != nil {
		return nil, err
	}
	now := &workerapi.Router{Certificate: public, Key: private}
	for _, client := range c.Clients {
		text, err := secretfile.ReadMounted(client.TokenFile, maxSecretFile)
		tokens := strings.Fields(string(text))
		for _, t := range tokens {
			if len(t) < leastToken {
				err = fmt.Errorf("%s: a token has less than %d characters", client.TokenFile, leastToken)
			}
		}
		if err == nil && len(tokens) == 0 {
			err = fmt.Errorf("%s is empty", client.TokenFile)
		}
		if err != nil {
			d.log.Error("a client of pods.router is refused until its token can be read", "client", client.Name, "error", err)
			continue
		}
		now.Clients = append(now.Clients, access.NewRouterClient(client.Name, client.Namespaces, tokens))
	}
	return now, nil
}

// followRouter reads changed files, until ctx is done.
func (d *daemon) followRouter(ctx context.Context) error {
	return periodic.Run(ctx, routerPeriod, func(time.Time) {
		print := d.routerPrint()
		if print == d.router.files {
			return
		}
		now, err := d.readRouter()
		if err != nil {
			return // only where there is none of before
		}
		d.router.files = print
		d.router.now.Store(now)
		d.supervisor.Router()
	})
}

// routable reports whether some client of the router's may ask a sandbox, as far as the
// expose rules allow it.
func (d *daemon) routable(id string, port uint16) bool {
	if d.router == nil {
		return false
	}
	i, err := d.exposedOf(id)
	if err != nil || i.State != sandbox.Running || i.Spec.Offline {
		return false
	}
	for _, c := range d.router.now.Load().Clients {
		if c.MayAsk(i.Spec.Owner) {
			return port == 0 || d.rules.Policy().Exposable(identity(i), port)
		}
	}
	return false
}

// find finds a sandbox of this node, else asks the API server on which node it is. By its
// address it is asked about always, since nodes may give pods the same one.
func (d *daemon) find(ctx context.Context, to inbound.Route) (inbound.Place, error) {
	if d.router == nil {
		return inbound.Place{}, inbound.ErrNotPlaced
	}
	if !to.Address.IsValid() {
		if at, here, err := d.here(to.Namespace, to.Name); here {
			return at, err
		}
	}
	of := cmp.Or(to.Namespace, "client "+to.Client) // an address may be of any namespace
	if !d.router.lookups.Enter(of, of) {
		return inbound.Place{}, errLookups
	}
	defer d.router.lookups.Leave(of, of)
	if !to.Address.IsValid() {
		list, err := d.node.cluster.Named(ctx, to.Namespace, to.Name)
		return d.elsewhere(list, err)
	}
	list, err := d.node.cluster.At(ctx, to.Address)
	list = slices.DeleteFunc(list, func(p *pods.Pod) bool { return p.Spec.RuntimeClassName != pods.RuntimeClass || p.Ended() })
	if len(list) == 1 && list[0].Spec.NodeName == d.cfg.Pods.Node {
		at, here, err := d.here(list[0].Namespace, list[0].SandboxName())
		if !here {
			err = inbound.ErrNotPlaced
		}
		return at, err
	}
	return d.elsewhere(list, err)
}

// here finds a sandbox of this node. One that is offline is here, and an error.
func (d *daemon) here(namespace, name string) (at inbound.Place, here bool, err error) {
	i, err := d.sandboxes.Get(namespace + "/" + name)
	if err != nil || i.State != sandbox.Running {
		return at, false, nil
	}
	if i.Spec.Offline {
		return at, true, inbound.ErrNotPlaced
	}
	return inbound.Place{Namespace: namespace, Name: name, Sandbox: identity(i)}, true, nil
}

// elsewhere is where the one pod of a list is, on another node.
func (d *daemon) elsewhere(list []*pods.Pod, err error) (at inbound.Place, _ error) {
	if err != nil {
		return at, err
	}
	if len(list) != 1 {
		return at, fmt.Errorf("%w: %d pods have this name or address", inbound.ErrNotPlaced, len(list))
	}
	p := list[0]
	node, err := netip.ParseAddr(p.Status.HostIP)
	if err != nil || p.Spec.RuntimeClassName != pods.RuntimeClass || p.Spec.NodeName == d.cfg.Pods.Node || p.DeletionTimestamp != nil || p.Ended() {
		return at, inbound.ErrNotPlaced
	}
	return inbound.Place{Namespace: p.Namespace, Name: p.SandboxName(), Node: netip.AddrPortFrom(node, d.routed.Addr().(*net.TCPAddr).AddrPort().Port())}, nil
}
