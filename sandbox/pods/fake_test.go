package pods

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"sallyport/audit"
	"sallyport/internal/test/must"
	"sallyport/sandbox"
	"sallyport/sandbox/pods/cni"
	"sallyport/sandbox/state"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeCluster is an API server that a test writes pods to.
type fakeCluster struct {
	mu      sync.Mutex
	pods    map[string]*Pod // by NAMESPACE/NAME
	away    bool
	version int
	asked   func() // called as Pod is, before it answers
}

func (c *fakeCluster) Pod(ctx context.Context, namespace, name string) (*Pod, error) {
	c.mu.Lock()
	p, away, asked := c.pods[namespace+"/"+name], c.away, c.asked
	c.mu.Unlock()
	if asked != nil {
		asked()
	}
	switch {
	case away:
		return nil, errors.New("connection refused")
	case p == nil:
		return nil, errors.New("pods not found")
	}
	return p.copied(), ctx.Err()
}

func (c *fakeCluster) Follow(context.Context, string, Follower) error { return nil }

// fakeNetwork is a datapath, whose state outlives a Pods as the kernel's does.
type fakeNetwork struct {
	links    map[string]int // interfaces that are there
	attached map[uint32]sandbox.Endpoint
	fail     error
	stale    map[netip.Addr]bool // that an endpoint had which is detached, whose connections are not ended
	unended  error               // why they cannot be
	bed      *bed
}

func (n *fakeNetwork) Attach(e sandbox.Endpoint) error {
	n.bed.step("attach")
	if n.fail != nil {
		return n.fail
	}
	for _, o := range n.attached {
		if o.Generation != e.Generation && n.there(o.Link) && (o.Address == e.Address || o.MAC == e.MAC) {
			return fmt.Errorf("%s belongs to %s", e.Address, o.Sandbox)
		}
	}
	if i := n.bed.known[e.Address]; !e.Offline && (i.ID != e.ID || i.Generation != e.Generation) {
		n.bed.t.Errorf("%s is attached and the gateway knows %q there", e.Sandbox, i.Name)
	}
	if rec, err := state.Read(filepath.Join(n.bed.opt.Dir, e.Sandbox)); err != nil || rec.Generation != e.Generation || rec.Session == "" || rec.Pending != nil && !slices.ContainsFunc(n.bed.events, func(ev *audit.Event) bool { return ev.ID() == rec.Pending.ID() }) {
		n.bed.t.Errorf("%s is attached and its record is %+v, %v", e.Sandbox, rec, err)
	}
	if n.stale[e.Address] {
		n.bed.t.Errorf("%s is attached and there are connections of before with %s", e.Sandbox, e.Address)
	}
	n.attached[e.Generation] = e
	return nil
}

func (n *fakeNetwork) Detach(generation uint32) error {
	n.bed.step("detach")
	if e, was := n.attached[generation]; was {
		n.stale[e.Address] = true
	}
	delete(n.attached, generation)
	return nil
}

func (n *fakeNetwork) EndFlows(a netip.Addr) error {
	n.bed.step("flows")
	for _, e := range n.attached {
		if e.Address == a && n.there(e.Link) {
			n.bed.t.Errorf("the connections of %s are ended", e.Sandbox)
		}
	}
	if n.unended == nil {
		delete(n.stale, a)
	}
	return n.unended
}

func (n *fakeNetwork) there(link int) bool {
	return slices.Contains(slices.Collect(maps.Values(n.links)), link)
}

func (n *fakeNetwork) Endpoints() (list []sandbox.Endpoint, err error) {
	for _, e := range n.attached {
		if n.there(e.Link) {
			list = append(list, e)
		}
	}
	return list, nil
}

// crash is a panic in the place of the process's end.
type crash struct{ at string }

// bed is a node: what survives the daemon, and the daemon.
type bed struct {
	*Pods
	t       testing.TB
	cluster *fakeCluster
	network *fakeNetwork
	opt     Options

	known  map[netip.Addr]sandbox.Info // what the gateway was told
	events []*audit.Event
	forgot []string
	ended  []netip.Addr // whose connections
	broken error        // the audit log's
	die    int          // the step at which the process ends, from 1; 0 is never
	steps  int          // that were taken
	trace  string       // of the steps
}

func newBed(t testing.TB) *bed {
	t.Helper()
	dir := t.TempDir()
	if d, err := os.MkdirTemp("/dev/shm", "pods"); err == nil { // where a data sync costs nothing
		t.Cleanup(func() { _ = os.RemoveAll(d) })
		dir = d
	}
	b := &bed{t: t, cluster: &fakeCluster{pods: map[string]*Pod{}}}
	b.network = &fakeNetwork{links: map[string]int{}, attached: map[uint32]sandbox.Endpoint{}, stale: map[netip.Addr]bool{}, bed: b}
	b.opt = Options{
		Dir: filepath.Join(dir, "pods"), Subnet: netip.MustParsePrefix("10.231.0.0/16"), Node: "n1",
		Cluster: b.cluster, Network: b.network, Authority: b, Recorder: b, Logger: slog.New(slog.DiscardHandler),
		Recorded: func(_ context.Context, id string) (bool, error) {
			return slices.ContainsFunc(b.events, func(e *audit.Event) bool { return e.ID() == id }), nil
		},
		Forget: func(id string) error {
			for _, e := range b.network.attached {
				if e.ID == id && b.network.there(e.Link) {
					b.t.Errorf("%s is forgotten while it is attached", e.Sandbox)
				}
			}
			b.forgot = append(b.forgot, id)
			return nil
		},
		Publish: func(a netip.Addr, i sandbox.Info) {
			b.step("publish")
			if i.ID == "" {
				delete(b.known, a)
			} else {
				b.known[a] = i
			}
		},
		End: func(a netip.Addr) {
			b.step("end")
			if i, known := b.known[a]; known {
				b.t.Errorf("the connections of %s are ended while the gateway knows %s there", a, i.Name)
			}
			b.ended = append(b.ended, a)
		},
		Link: func(name string) (int, error) {
			if i := b.network.links[name]; i != 0 {
				return i, nil
			}
			return 0, errors.New("no such interface")
		},
	}
	b.restart()
	return b
}

// restart begins another daemon, which knows nothing but what is on disk and in the kernel.
func (b *bed) restart() {
	b.t.Helper()
	b.known = map[netip.Addr]sandbox.Info{}
	var err error
	b.Pods, err = Open(b.t.Context(), b.opt)
	must.OK(b.t, err)
	maps.Copy(b.known, b.Identities())
}

// step is called before each effect of the code on the world.
func (b *bed) step(what string) {
	if b.steps++; b.steps == b.die {
		b.die = 0
		panic(crash{what})
	}
	b.trace += what + " "
}

func (b *bed) Append(_ context.Context, events ...*audit.Event) error {
	b.step("append")
	if b.broken != nil {
		return b.broken
	}
	b.events = append(b.events, events...)
	return nil
}

func (b *bed) Root(string) ([]byte, error) { b.step("root"); return nil, nil }

func (b *bed) Forget(string) error { b.step("forget"); return nil }

// pod makes a pod at the API server.
func (b *bed) pod(namespace, name string, change ...func(*Pod)) *Pod {
	p := &Pod{
		Metadata: Metadata{Namespace: namespace, Name: name, UID: "uid-" + namespace + "-" + name, Labels: map[string]string{"app": "agent"}},
		Spec:     PodSpec{NodeName: "n1", RuntimeClassName: "sallyport", Containers: []Container{{Image: "agent:1"}}},
	}
	for _, c := range change {
		c(p)
	}
	return b.write(p)
}

func (b *bed) write(p *Pod) *Pod {
	b.cluster.version++
	p = p.copied()
	p.ResourceVersion = fmt.Sprint(b.cluster.version)
	b.cluster.pods[p.Namespace+"/"+p.Name] = p
	return p
}

// copied is a pod that can be changed without changing p.
func (p *Pod) copied() *Pod {
	c := new(Pod)
	data, err := json.Marshal(p)
	if err == nil {
		err = json.Unmarshal(data, c)
	}
	if err != nil {
		panic(err)
	}
	return c
}

// label changes a pod's labels at the API server.
func (b *bed) label(p *Pod, labels map[string]string) *Pod {
	p = p.copied()
	p.Labels = labels
	return b.write(p)
}

// plug is what the plugins before ours have made for a session of a pod.
func (b *bed) plug(p *Pod, session string, host byte) cni.Attachment {
	link := "veth-" + session
	if b.network.links[link] == 0 {
		b.network.links[link] = 100 + len(b.network.links)
	}
	return cni.Attachment{
		Session: session, Namespace: p.Namespace, Pod: p.Name, UID: p.UID, Link: link,
		Address: netip.AddrFrom4([4]byte{10, 231, 0, host}), MAC: fmt.Sprintf("02:42:0a:e7:00:%02x", host),
	}
}

func (b *bed) unplug(a cni.Attachment) { delete(b.network.links, a.Link) }

func (b *bed) attach(a cni.Attachment) {
	b.t.Helper()
	must.OK(b.t, b.Attach(b.t.Context(), a))
}

func (b *bed) follow(p *Pod) { follower{b.t.Context(), b.Pods}.Changed(p) }
func (b *bed) gone(p *Pod) {
	delete(b.cluster.pods, p.Namespace+"/"+p.Name)
	follower{b.t.Context(), b.Pods}.Gone(p)
}

// vouched are the names of those that the datapath lets pass, with + if the gateway knows
// them and - if not.
func (b *bed) vouched() string {
	var names []string
	all, _ := b.network.Endpoints()
	for _, e := range all {
		mark := "-"
		if i, ok := b.known[e.Address]; ok && i.ID == e.ID && i.Name == e.Sandbox && i.Generation == e.Generation {
			mark = "+"
		}
		if e.Offline {
			mark += "offline"
		}
		names = append(names, e.Sandbox+mark)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// history are the states of a sandbox's events.
func (b *bed) history(name string) string {
	var states []string
	for _, e := range b.events {
		if x := e.Unmapped.Sallyport; x.Sandbox == name {
			states = append(states, x.State)
		}
	}
	return strings.Join(states, " ")
}

// until runs f, which may crash, and reports whether it did.
func (b *bed) until(f func()) (crashed bool) {
	defer func() {
		if r := recover(); r != nil {
			if _, ok := r.(crash); !ok {
				panic(r)
			}
			crashed = true
		}
	}()
	f()
	return false
}

func get[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
