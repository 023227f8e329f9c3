package daemon

import (
	"context"
	"net"
	"net/http"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"sallyport/audit"
	"sallyport/gateway/ca"
	"sallyport/gateway/credential/vault"
	"sallyport/internal/daemon/node"
	"sallyport/sandbox/pods"
	"sallyport/sandbox/pods/cni"
)

// podHost is a node of Kubernetes whose pods are the sandboxes.
type podHost struct {
	*node.Node
	cluster *pods.Client
	pods    *pods.Pods
	plugin  net.Listener // of the CNI plugin's calls
}

// openNode opens the node of Kubernetes that this daemon is on, and returns its intermediate,
// or nil for a daemon whose sandboxes have roots of their own.
func (d *daemon) openNode(ctx context.Context) (*ca.Issuer, error) {
	if d.cfg.Engine.Kind != "pods" {
		return nil, nil
	}
	cluster, err := pods.Connect(d.cfg.Pods.Kubeconfig, d.log)
	if err != nil {
		return nil, err
	}
	n, issuer, err := node.Open(ctx, node.Options{
		Config: d.cfg.Pods, Cluster: cluster, Dir: d.cfg.CADir(), Key: d.key, Logger: d.log,
		Vault: func() *vault.Client {
			d.reloading.Lock()
			defer d.reloading.Unlock()
			return d.leases.inForce.client
		},
		Record: func(ctx context.Context, e *audit.Event) error { return d.auditLog.Append(ctx, e) },
		Event:  d.changed,
		Renewed: func(i *ca.Issuer) { // when the supervisor is there
			d.authority.SetIssuer(i)
			d.supervisor.ForgetLeaves()
		},
	})
	if err != nil {
		return nil, err
	}
	d.node = &podHost{Node: n, cluster: cluster}
	return issuer, nil
}

// openPods opens the records of the node's pods, and goes on with those that run. It does
// not need the API server.
func (d *daemon) openPods(ctx context.Context) (err error) {
	n := d.node
	n.Prepare(ctx)
	n.pods, err = pods.Open(ctx, pods.Options{
		Dir: d.cfg.PodsDir(), Subnet: d.cfg.Network.Subnet, Node: d.cfg.Pods.Node,
		Cluster: n, Network: d.network.guard, Authority: d.authority, Recorder: d.auditLog,
		Recorded: d.recorded, Forget: d.forget, Publish: d.publish, End: d.gate().End, Logger: d.log,
	})
	if err != nil {
		return err
	}
	d.sandboxes = n.pods
	if n.plugin, err = pods.Listen(ctx, filepath.Join(d.cfg.RunDir, cni.SocketName)); err != nil {
		return err
	}
	d.closeLate(n.plugin)
	return nil
}

// Pod implements [pods.Cluster]. It fails until the node's addresses are known: no pod is
// attached without it.
func (n *podHost) Pod(ctx context.Context, namespace, name string) (*pods.Pod, error) {
	if err := n.Learnt(); err != nil {
		return nil, err
	}
	return n.cluster.Pod(ctx, namespace, name)
}

// Follow implements [pods.Cluster].
func (n *podHost) Follow(ctx context.Context, name string, f pods.Follower) error {
	return n.cluster.Follow(ctx, name, f)
}

// Bounds of a call of the CNI plugin.
const (
	pluginHead = 10 * time.Second
	pluginCall = time.Minute
)

// servePods lets pods come, when all that they need is there.
func (d *daemon) servePods(ctx context.Context, g *errgroup.Group) {
	n := d.node
	if n == nil {
		return
	}
	serveHTTP(ctx, g, n.plugin, &http.Server{Handler: n.pods.Handler(), ReadHeaderTimeout: pluginHead, ReadTimeout: pluginCall, WriteTimeout: pluginCall})
	g.Go(func() error { return n.pods.Follow(ctx) })
	g.Go(func() error { return n.Run(ctx) })
	if d.router != nil {
		g.Go(func() error { return d.followRouter(ctx) })
	}
}
