// Package pods keeps the pods of one Kubernetes node that are sandboxes: those of one
// RuntimeClass, whose only interface is a port of Sallyport's bridge. Kubernetes makes,
// starts and ends them; this package only attaches and detaches their network.
//
// A pod is attached by [Pods.Attach]. The CNI plugin calls it when the pod's interface is
// there and before any process of the pod runs. In this order:
//
//  1. The API server is asked for the pod. Its UID, node and RuntimeClass must be what the
//     container runtime said. Without an answer, nothing is attached.
//  2. Name, ID, tags and the ports of its probes are made from the pod: see [Pods.Attach].
//  3. Older sessions that are in the way end: of the same pod, and of pods whose interface is
//     gone. An address, name or ID that another pod has is refused. Connections
//     that processes of the host, as the gateway's, still have with the address end.
//  4. Approvals and the like that an earlier pod of the sandbox had are forgotten. The sandbox
//     has an authority, which certifies hosts to it.
//  5. The record is on disk, with the event that the session started.
//  6. The gateway is told who has the address.
//  7. The datapath lets the pod's packets pass.
//
// One request of the pod comes by the datapath, which knows its port, to the gateway, which
// looks the address up in what it was told in step 6: as on one machine.
//
// Guarantees: a pod reaches the gateway only after all of these steps; a crash between any
// two of them leaves it cut off, and the next [Open] ends a session that has not got to the
// last one. No pod has the address, the name or the ID of another pod that is there, nor a
// connection of an earlier pod that had its address. The end of an old session never detaches
// a newer one of the same pod. While a pod runs, its tags are its labels: [Pods.Follow]
// notices changes, and an API server that is away leaves the pods that run as they are. An
// attached pod survives the daemon, cut off until the next one but for its probes.
//
// Not guaranteed: anything between pods of one namespace. Anybody who may write pods there
// sets their labels, and may name any Sandbox of the namespace as their owner. Nothing is
// kept from root of the node, which the container runtime and the plugin are.
package pods

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"sallyport/audit"
	"sallyport/sandbox"
	"sallyport/sandbox/state"
)

// WarmPool is the label that agent-sandbox gives to the pods of a warm pool and takes away
// when a pod is claimed (SandboxWarmPoolLabel in its api/v1beta1). A pod with it is offline.
const WarmPool = "agents.x-k8s.io/warm-pool-sandbox"

// RuntimeClass is that of the pods that are sandboxes. The admission policies and the class's
// handler in containerd have this name too.
const RuntimeClass = "sallyport"

// Options of Pods. All are needed but those that have a default.
type Options struct {
	Dir       string // of the records
	Subnet    netip.Prefix
	Node      string // name of this node in Kubernetes
	Cluster   Cluster
	Network   Network
	Authority Authority
	Recorder  Recorder
	// Recorded reports whether the log has an event, by its ID.
	Recorded func(ctx context.Context, id string) (bool, error)
	// Forget is called with the ID of a sandbox that is no more, or that begins anew in another
	// pod. Default: nothing is.
	Forget func(id string) error
	// Publish is called for each change of Identities, in order: with a sandbox before its
	// packets may pass, and with the zero Info when it has ended or is offline.
	Publish func(netip.Addr, sandbox.Info)
	// End closes the gateway's connections with an address, after Publish of the zero Info:
	// the next pod with the address must not get one of them.
	End    func(netip.Addr)
	Logger *slog.Logger
	// Link returns the index of an interface of the host. Default: the kernel's.
	Link func(name string) (int, error)
}

// Cluster is the API server.
type Cluster interface {
	// Pod returns the pod as it is now, not as a cache has it.
	Pod(ctx context.Context, namespace, name string) (*Pod, error)
	// Follow tells of each pod of a node until ctx is done: first of all that there are,
	// then synced, then of changes. It repeats itself, and goes on when the server is away.
	Follow(ctx context.Context, node string, f Follower) error
}

// Follower is told about pods, one call at a time.
type Follower interface {
	Changed(*Pod) // or there
	Gone(*Pod)
	Synced()
}

// Network vouches for packets: see manager.Network.
type Network interface {
	Attach(sandbox.Endpoint) error
	Detach(generation uint32) error
	Endpoints() ([]sandbox.Endpoint, error)
	// EndFlows ends the host's connections with an address that no endpoint has.
	EndFlows(netip.Addr) error
}

// Authority keeps what certifies hosts to a sandbox.
type Authority interface {
	Root(sandboxID string) ([]byte, error)
	Forget(sandboxID string) error
}

// Recorder is the audit log.
type Recorder interface {
	Append(context.Context, ...*audit.Event) error
}

// Pods keeps the pods. Its methods may be called concurrently; changes run one after the
// other.
type Pods struct {
	opt     Options
	journal *state.Journal

	mu        sync.Mutex // guards what follows, and makes changes follow each other
	counters  state.Counters
	entries   map[string]*entry     // by name
	attaching map[string]*attaching // by session
	seen      map[string]*Pod       // by Follow
	synced    bool                  // seen has all pods of the node

	shown atomic.Pointer[snapshot]
}

// entry is the last session of a pod.
type entry struct {
	state.Stored
	live    bool   // it has its address: Rec.Session is its session
	version string // the pod's resourceVersion that its tags are of; "" after a restart
}

// snapshot is what readers see, while a change goes on too.
type snapshot struct {
	list      []sandbox.Info // by name
	byAddress map[netip.Addr]sandbox.Info
}

var errKubernetes = errors.New("pods are made, started and ended by Kubernetes: use kubectl")

// Open reads the records and brings the network into agreement with them: see adopt.
func Open(ctx context.Context, opt Options) (*Pods, error) {
	if opt.Link == nil {
		opt.Link = func(name string) (int, error) {
			i, err := net.InterfaceByName(name)
			if err != nil {
				return 0, err
			}
			return i.Index, nil
		}
	}
	if opt.Forget == nil {
		opt.Forget = func(string) error { return nil }
	}
	if err := os.MkdirAll(opt.Dir, 0o700); err != nil {
		return nil, err
	}
	c, err := state.ReadCounters(filepath.Join(opt.Dir, ".counters"))
	if err != nil {
		return nil, err
	}
	p := &Pods{
		opt: opt, journal: &state.Journal{Dir: opt.Dir, Append: opt.Recorder.Append, Find: opt.Recorded}, counters: c,
		entries: map[string]*entry{}, attaching: map[string]*attaching{}, seen: map[string]*Pod{},
	}
	p.show()
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.read(); err != nil {
		return nil, err
	}
	return p, p.adopt(ctx)
}

// publish shows what an entry has become, and tells the gateway.
func (p *Pods) publish(e *entry) {
	p.show()
	i := info(e)
	if !e.live || i.Spec.Offline {
		i = sandbox.Info{}
	}
	p.opt.Publish(e.Rec.Address, i)
	if i.ID == "" {
		p.opt.End(e.Rec.Address)
	}
}

// show makes the snapshot anew.
func (p *Pods) show() {
	s := &snapshot{byAddress: map[netip.Addr]sandbox.Info{}}
	for _, e := range p.entries {
		i := info(e)
		s.list = append(s.list, i)
		if e.live && !i.Spec.Offline {
			s.byAddress[i.Address] = i
		}
	}
	slices.SortFunc(s.list, func(a, b sandbox.Info) int { return strings.Compare(a.Name, b.Name) })
	p.shown.Store(s)
}

func info(e *entry) sandbox.Info {
	i := sandbox.Info{
		Name: e.Rec.Name, ID: e.Rec.ID, State: sandbox.Stopped, Spec: e.Rec.Spec,
		Generation: e.Rec.Generation, Created: e.Rec.Created, Pod: e.Rec.Pod,
	}
	if e.live { // the address of a session that has ended may be another pod's
		i.State, i.Session, i.Address = sandbox.Running, e.Rec.Session, e.Rec.Address
	}
	return i
}

// Identities returns the pods that may reach the gateway by their addresses. It must not
// be changed.
func (p *Pods) Identities() map[netip.Addr]sandbox.Info { return p.shown.Load().byAddress }

// List returns the pods by name, also those whose session has ended while Kubernetes still
// has them.
func (p *Pods) List() []sandbox.Info { return slices.Clone(p.shown.Load().list) }

// Get returns one pod by its name, NAMESPACE/NAME.
func (p *Pods) Get(name string) (sandbox.Info, error) {
	list := p.shown.Load().list
	at, ok := slices.BinarySearchFunc(list, name, func(i sandbox.Info, name string) int { return strings.Compare(i.Name, name) })
	if !ok {
		return sandbox.Info{}, fmt.Errorf("%w: %q: `sallyport sandbox ls` shows those of this node, as NAMESPACE/NAME", sandbox.ErrNotFound, name)
	}
	return list[at], nil
}

// ListVisible is List for a context's owner, which is a namespace.
func (p *Pods) ListVisible(ctx context.Context) []sandbox.Info {
	return slices.DeleteFunc(p.List(), func(i sandbox.Info) bool { return !i.Spec.Owned(sandbox.OwnerOf(ctx)) })
}

// Visible is Get for a context's owner, who may leave NAMESPACE/ out.
func (p *Pods) Visible(ctx context.Context, name string) (sandbox.Info, error) {
	owner := sandbox.OwnerOf(ctx)
	if owner != "" && !strings.Contains(name, "/") {
		name = owner + "/" + name
	}
	i, err := p.Get(name)
	if err == nil && !i.Spec.Owned(owner) {
		_, err = p.Get("") // as if it were not there
	}
	return i, err
}

// Start returns a pod that runs.
func (p *Pods) Start(_ context.Context, name string) (sandbox.Info, error) {
	i, err := p.Get(name)
	if err == nil && i.State != sandbox.Running {
		err = fmt.Errorf("%w: %s does not run here: %w", sandbox.ErrState, name, errKubernetes)
	}
	return i, err
}

// Connect is an error: nothing of Sallyport's runs in a pod that could connect to its
// loopback address.
func (p *Pods) Connect(_ context.Context, name, _ string, _ uint16) (sandbox.Conn, error) {
	return nil, fmt.Errorf("%w: a port of pod %s is reached at the pod's own address only: have the program listen on 0.0.0.0", sandbox.ErrNoPort, name)
}

// bySession returns the entry whose session it is, or nil.
func (p *Pods) bySession(session string) *entry {
	for e := range maps.Values(p.entries) {
		if e.Rec.Session == session {
			return e
		}
	}
	return nil
}
