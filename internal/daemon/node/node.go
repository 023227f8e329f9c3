// Package node is the part of the daemon that belongs to a node of Kubernetes, whose pods are
// the sandboxes: the node's taint, its addresses, and its intermediate certificate authority.
//
// Without the API server and Vault a node that has been set up before goes on as it was.
package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"sallyport/audit"
	"sallyport/gateway/ca"
	"sallyport/gateway/credential/vault"
	"sallyport/internal/config"
	"sallyport/internal/durable"
	"sallyport/internal/periodic"
	"sallyport/internal/seal"
	"sallyport/sandbox/pods"
)

// Cluster is the API server, as far as it is asked about this node.
type Cluster interface {
	Taint(ctx context.Context, node string, on bool) error
	// Known is what Local knows without asking.
	Known() []netip.Prefix
	Local(ctx context.Context, node string) ([]netip.Prefix, error)
}

// Options of a Node. All are needed, but for Vault where pods.ca has files.
type Options struct {
	Config  config.Pods
	Cluster Cluster
	Dir     string               // of the intermediate that Vault has signed, and of the addresses
	Key     *seal.Key            // by which the intermediate is sealed
	Vault   func() *vault.Client // that of the configuration in force
	// Record records that the intermediate has changed.
	Record func(context.Context, *audit.Event) error
	Event  func(subject, what, state string) *audit.Event
	// Renewed is told of an intermediate in the place of the one before.
	Renewed func(*ca.Issuer)
	Logger  *slog.Logger
}

// Node is the node that this daemon is on.
type Node struct {
	Options
	intermediate *intermediate

	preparing sync.WaitGroup
	untainted bool      // the API server has taken the taint away
	asked     time.Time // when learn was begun last

	learnt  atomic.Bool                    // by this daemon: local was complete
	local   atomic.Pointer[[]netip.Prefix] // see pods.Client.Local
	tainted atomic.Pointer[string]         // why the taint could not be changed, or ""
}

const (
	// period is how often it is looked whether something is left to ask the API server, and
	// whether the intermediate is to be renewed.
	period = 5 * time.Second
	// learnEvery is how often it is asked for addresses that have come since.
	learnEvery = time.Minute
	// askWithin bounds one question to the API server.
	askWithin = 5 * time.Second
)

// Open opens the node's intermediate, for which it may ask Vault, and what is known of its
// addresses without asking.
func Open(ctx context.Context, o Options) (*Node, *ca.Issuer, error) {
	n := &Node{Options: o, intermediate: &intermediate{Options: o}}
	if err := n.recall(); err != nil {
		return nil, nil, err
	}
	i, err := n.intermediate.open(ctx)
	return n, i, err
}

// Prepare taints the node and asks for its addresses, and waits for neither.
func (n *Node) Prepare(ctx context.Context) {
	n.preparing.Go(func() { n.Taint(ctx, true) })
	n.preparing.Go(func() { n.learn(ctx) })
}

// Run learns the addresses that are not known yet, then takes the taint away, and learns what
// comes later and renews the intermediate, until ctx is done.
func (n *Node) Run(ctx context.Context) error {
	n.preparing.Wait()
	return periodic.Run(ctx, period, func(now time.Time) { n.look(ctx, now) })
}

// look does what is left of it.
func (n *Node) look(ctx context.Context, now time.Time) {
	if !n.learnt.Load() || now.Sub(n.asked) >= learnEvery {
		n.learn(ctx)
	}
	if n.learnt.Load() && !n.untainted {
		n.untainted = n.Taint(ctx, false)
	}
	if i := n.intermediate.renewed(ctx, now); i != nil {
		n.Renewed(i)
	}
}

// Taint keeps new pods off the node, or lets them come, and says whether the API server has
// taken that.
func (n *Node) Taint(ctx context.Context, on bool) bool {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	err := n.Cluster.Taint(ctx, n.Config.Node, on)
	why := ""
	if err != nil {
		why = "the taint " + pods.NotReady + " cannot be changed: " + err.Error()
		n.Logger.Warn("the node's taint is not as it should be", "taint", pods.NotReady, "wanted", on, "error", err)
	}
	n.tainted.Store(&why)
	return err == nil
}

// Tainted says why the taint could not be changed, or is "".
func (n *Node) Tainted() string {
	if why := n.tainted.Load(); why != nil {
		return *why
	}
	return ""
}

// recall takes over what an earlier daemon has learnt.
func (n *Node) recall() error {
	list := n.Cluster.Known()
	text, err := os.ReadFile(n.addresses())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for line := range strings.Lines(string(text)) {
		p, err := netip.ParsePrefix(strings.TrimSpace(line))
		if err != nil {
			return fmt.Errorf("%s: %w: remove the file", n.addresses(), err)
		}
		list = append(list, p)
	}
	n.set(list)
	return nil
}

// addresses is the file that has what learn has learnt, for a daemon that starts while the API
// server is away.
func (n *Node) addresses() string { return filepath.Join(n.Dir, "node.addresses") }

// learn asks for the addresses of the node that are no upstream. Those that this daemon has
// learnt before stay until it ends.
func (n *Node) learn(ctx context.Context) {
	n.asked = time.Now()
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	before := n.learnt.Load()
	list, err := n.Cluster.Local(ctx, n.Config.Node)
	if err != nil || before {
		list = append(list, *n.local.Load()...)
	}
	n.set(list)
	if err == nil {
		err = n.keep()
	}
	switch {
	case err == nil:
		n.learnt.Store(true)
	case before:
		n.Logger.Warn("addresses that the API server or this node may have got since cannot be learnt", "error", err, "retry_in", learnEvery)
	default:
		n.Logger.Warn("some addresses of the API server or of this node are not known yet: new pods wait", "error", err, "retry_in", period)
	}
}

func (n *Node) set(list []netip.Prefix) {
	slices.SortFunc(list, netip.Prefix.Compare)
	list = slices.Compact(list)
	n.local.Store(&list)
}

func (n *Node) keep() error {
	var text strings.Builder
	for _, p := range *n.local.Load() {
		fmt.Fprintln(&text, p)
	}
	if there, err := os.ReadFile(n.addresses()); err == nil && string(there) == text.String() {
		return nil // as nearly each minute
	}
	if err := durable.MkdirAll(n.Dir, 0o700); err != nil {
		return err
	}
	return durable.WriteFile(n.addresses(), []byte(text.String()), 0o600)
}

// Learnt is an error until all of the node's addresses are known: a pod that came earlier could
// have them as upstreams.
func (n *Node) Learnt() error {
	if !n.learnt.Load() {
		return errors.New("the addresses of the API server and of this node, which no pod may reach, are not known yet: the daemon's log says why")
	}
	return nil
}

// Local are the addresses of the node that are no upstream: those of the configuration, and
// those that the API server has told this daemon or an earlier one.
func (n *Node) Local() []netip.Prefix {
	return append(slices.Clone(n.Config.Local), *n.local.Load()...)
}
