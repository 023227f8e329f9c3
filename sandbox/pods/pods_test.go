package pods

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sallyport/internal/test/must"
	"sallyport/sandbox"
	"sallyport/sandbox/pods/cni"
)

// owned has a Sandbox of agent-sandbox control a pod.
func owned(by string) func(*Pod) {
	return func(p *Pod) {
		p.OwnerReferences = []OwnerReference{{APIVersion: "agents.x-k8s.io/v1beta1", Kind: "Sandbox", Name: by, UID: "uid-of-" + by, Controller: true}}
	}
}

// No attachment succeeds without a pod of the API server that agrees with what the
// container runtime said, and then nothing vouches for it.
func TestRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		pod  func(*Pod)
		call func(*bed, *cni.Attachment)
		want string
	}{
		"no such pod":             {call: func(_ *bed, a *cni.Attachment) { a.Pod = "other" }, want: "not found"},
		"another namespace's":     {call: func(_ *bed, a *cni.Attachment) { a.Namespace = "ns2" }, want: "not found"},
		"the API server is away":  {call: func(b *bed, _ *cni.Attachment) { b.cluster.away = true }, want: "connection refused"},
		"another UID":             {call: func(_ *bed, a *cni.Attachment) { a.UID = "uid-static" }, want: "UID"},
		"no UID":                  {call: func(_ *bed, a *cni.Attachment) { a.UID = "" }, want: "which pod it is"},
		"another node's":          {pod: func(p *Pod) { p.Spec.NodeName = "n2" }, want: "node"},
		"of no node":              {pod: func(p *Pod) { p.Spec.NodeName = "" }, want: "node"},
		"another class":           {pod: func(p *Pod) { p.Spec.RuntimeClassName = "gvisor" }, want: "RuntimeClass"},
		"no class":                {pod: func(p *Pod) { p.Spec.RuntimeClassName = "" }, want: "RuntimeClass"},
		"being deleted":           {pod: func(p *Pod) { now := time.Now(); p.DeletionTimestamp = &now }, want: "deleted"},
		"labels without end":      {pod: func(p *Pod) { p.Labels = manyLabels() }, want: "labels"},
		"too many probes":         {pod: func(p *Pod) { p.Spec = spec(t, manyProbes(17)) }, want: "16 is the most"},
		"an address elsewhere":    {call: func(_ *bed, a *cni.Attachment) { a.Address = get(a.Address.Prefix(8)).Addr() }, want: "network.subnet"},
		"no interface":            {call: func(b *bed, a *cni.Attachment) { b.unplug(*a) }, want: "no such interface"},
		"a session as a path":     {call: func(_ *bed, a *cni.Attachment) { a.Session = "../x" }, want: "which pod it is"},
		"an owner's name as path": {pod: owned("../ns2/a"), want: sandbox.ErrBadName.Error()},
		"the log is full":         {call: func(b *bed, _ *cni.Attachment) { b.broken = errors.New("disk full") }, want: "disk full"},
		"the datapath fails":      {call: func(b *bed, _ *cni.Attachment) { b.network.fail = errors.New("no tcx") }, want: "no tcx"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			p := b.pod("ns", "a")
			if tt.pod != nil {
				tt.pod(p)
				p = b.write(p)
			}
			a := b.plug(p, "s1", 7)
			if tt.call != nil {
				tt.call(b, &a)
			}
			err := b.Attach(t.Context(), a)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want an error with %q", err, tt.want)
			}
			if got := b.vouched(); got != "" || len(b.known) > 0 {
				t.Errorf("vouched for %q, and the gateway knows %v", got, b.known)
			}
			b.broken, b.network.fail = nil, nil
			b.restart()
			if got := b.vouched(); got != "" || len(b.known) > 0 {
				t.Errorf("after a restart: vouched for %q, and the gateway knows %v", got, b.known)
			}
		})
	}
}

// manyLabels are more than a tag is to be made of each, and no more than Kubernetes takes.
func manyLabels() map[string]string {
	labels := map[string]string{"team": "red"}
	for i := range 100 {
		labels[fmt.Sprintf("example.com/%040d", i)] = "x"
	}
	return labels
}

// A pod is named by its namespace and its Sandbox, has the labels as tags, and cannot give
// itself what is Sallyport's to say.
func TestIdentity(t *testing.T) {
	b := newBed(t)
	p := b.pod("ns", "web-x7", owned("web"), func(p *Pod) {
		p.Labels = map[string]string{"team": "red", sandbox.TagNamespace: "kube-system", "sallyport.admin": "true", sandbox.TagPod: "other"}
	})
	b.attach(b.plug(p, "s1", 7))
	i := get(b.Get("ns/web"))
	want := map[string]string{"team": "red", sandbox.TagNamespace: "ns", sandbox.TagPod: "web-x7"}
	if !maps.Equal(i.Tags(), want) {
		t.Errorf("tags %v, want %v", i.Tags(), want)
	}
	if i.Name != "ns/web" || i.FullName() != "ns/web" || i.Spec.Owner != "ns" || i.Session != "s1" || i.State != sandbox.Running || i.Pod.Name != "web-x7" {
		t.Errorf("got %+v", i)
	}
	if got := b.known[i.Address]; got.ID != i.ID || got.Name != "ns/web" {
		t.Errorf("the gateway knows %+v", got)
	}

	// Another namespace's pod says that the same Sandbox owns it: neither name nor ID.
	q := b.pod("ns2", "evil", owned("web"))
	b.attach(b.plug(q, "s2", 8))
	if j := get(b.Get("ns2/web")); j.ID == i.ID {
		t.Error("a pod of another namespace has the ID of the Sandbox")
	}

	// The Sandbox's next pod, on this node or another, is the same sandbox.
	must.OK(t, b.Detach(t.Context(), "s1"))
	if j := get(b.Get("ns/web")); j.State != sandbox.Stopped || j.Address.IsValid() {
		t.Errorf("after its session it is %s, and %s its address, which may be another pod's", j.State, j.Address)
	}
	next := b.pod("ns", "web-y2", owned("web"))
	b.attach(b.plug(next, "s3", 9))
	if j := get(b.Get("ns/web")); j.ID != i.ID || j.Session != "s3" {
		t.Errorf("the next pod is %+v, want ID %s", j, i.ID)
	}
	if got := b.history("ns/web"); got != "started stopped started" {
		t.Errorf("recorded %q", got)
	}
	if _, err := b.Visible(sandbox.ForOwner(t.Context(), "ns2"), "ns/web"); !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("a caller of another namespace sees it: %v", err)
	}
	if i, err := b.Visible(sandbox.ForOwner(t.Context(), "ns2"), "web"); err != nil || i.Name != "ns2/web" {
		t.Errorf("its own caller gets %v, %v", i.Name, err)
	}
}

// Nobody gets the name, the ID or the address that another pod has; when that is gone, they
// are free.
func TestNobodyElses(t *testing.T) {
	for name, tt := range map[string]struct {
		other func(*bed) cni.Attachment
	}{
		"the address": {func(b *bed) cni.Attachment { return b.plug(b.pod("ns", "b"), "s2", 7) }},
		"the name":    {func(b *bed) cni.Attachment { return b.plug(b.pod("ns", "b", owned("a")), "s2", 8) }},
		"another UID": {func(b *bed) cni.Attachment {
			return b.plug(b.pod("ns", "a", func(p *Pod) { p.UID = "new" }), "s2", 8)
		}},
		"a namespace's": {func(b *bed) cni.Attachment { return b.plug(b.pod("ns2", "a"), "s2", 7) }},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			first := b.plug(b.pod("ns", "a"), "s1", 7)
			b.attach(first)
			a := tt.other(b)
			err := b.Attach(t.Context(), a)
			if err == nil || !strings.Contains(err.Error(), "still there") {
				t.Fatalf("got %v, want a refusal", err)
			}
			if names := strings.Contains(err.Error(), "ns/a"); names != (a.Namespace == "ns") {
				t.Errorf("got %v: want the other pod named, if it is of this namespace", err)
			}
			if got := b.vouched(); got != "ns/a+" {
				t.Errorf("vouched for %q, want the first alone", got)
			}
			b.unplug(first) // its DEL was lost, and its interface is gone
			b.attach(a)
			if got := b.vouched(); strings.Contains(got, "-") || strings.Count(got, "+") != 1 {
				t.Errorf("vouched for %q, want the second alone", got)
			}
		})
	}
}

// Whatever order the calls for two sessions of one pod come in, the end of the old one never
// cuts off the newer, and repeated calls do nothing.
func TestOldSession(t *testing.T) {
	for name, order := range map[string]string{
		"in order":                   "+1 -1 +2",
		"the end comes late":         "+1 x1 +2 -1",
		"the end comes twice":        "+1 -1 +2 -1 -1",
		"the end was lost":           "+1 x1 +2",
		"the end comes first":        "-2 +1 -1 +2",
		"it is attached twice":       "+1 -1 +2 +2",
		"restarts":                   "+1 r -1 r +2 r -1",
		"the runtime collects":       "+1 x1 +2 gc2",
		"collected at once":          "+1 -1 +2 gc2 -1",
		"the old one comes too late": "+1 -1 x1 +2 !1",
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			p := b.pod("ns", "a")
			a := map[byte]cni.Attachment{'1': b.plug(p, "s1", 7), '2': b.plug(p, "s2", 8)}
			for _, call := range strings.Fields(order) {
				n := call[len(call)-1]
				switch call[0] {
				case '+':
					b.attach(a[n])
				case '-':
					must.OK(t, b.Detach(t.Context(), a[n].Session))
				case 'x':
					b.unplug(a[n])
				case '!':
					if b.Attach(t.Context(), a[n]) == nil {
						t.Error("a session without an interface is attached")
					}
				case 'g':
					must.OK(t, b.Collect(t.Context(), []string{a[n].Session}))
				case 'r':
					b.restart()
				}
			}
			if got := b.vouched(); got != "ns/a+" {
				t.Errorf("vouched for %q, want ns/a+", got)
			}
			if i := get(b.Get("ns/a")); i.Session != "s2" || i.Address != a['2'].Address || len(b.known) != 1 {
				t.Errorf("the session is %q at %s, and the gateway knows %v", i.Session, i.Address, b.known)
			}
			must.OK(t, b.Check(a['2']))
			if b.Check(a['1']) == nil {
				t.Error("the old session passes a check")
			}
			must.OK(t, b.Collect(t.Context(), nil))
			if got := b.vouched(); got != "" || len(b.known) > 0 {
				t.Errorf("collected, and vouched for %q", got)
			}
			if h := b.history("ns/a"); strings.Count(h, "started") != strings.Count(h, "stopped") {
				t.Errorf("recorded %q", h)
			}
		})
	}
}

// A session that ends, or whose caller gives up, while the API server is asked is never
// attached.
func TestEndedMeanwhile(t *testing.T) {
	b := newBed(t)
	a := b.plug(b.pod("ns", "a"), "s1", 7)
	b.cluster.asked = func() { must.OK(t, b.Detach(t.Context(), "s1")) }
	if err := b.Attach(t.Context(), a); !errors.Is(err, errEnded) {
		t.Errorf("got %v, want %v", err, errEnded)
	}
	b.cluster.asked = func() {
		if err := b.Attach(t.Context(), a); err == nil {
			t.Error("the session is attached twice at a time")
		}
		b.cluster.asked = nil
	}
	b.attach(a)
	must.OK(t, b.Detach(t.Context(), "s1"))
	if got := b.vouched(); got != "" {
		t.Errorf("vouched for %q", got)
	}
}

// The daemon's end between any two effects leaves each pod cut off or vouched for by all,
// and each change exactly one event. The calls that follow do what they would have.
func TestCrash(t *testing.T) {
	for name, play := range map[string]func(b *bed, p *Pod, a, next cni.Attachment){
		"attach": func(b *bed, _ *Pod, a, _ cni.Attachment) { b.attach(a) },
		"detach": func(b *bed, _ *Pod, a, _ cni.Attachment) {
			b.attach(a)
			must.OK(b.t, b.Detach(b.t.Context(), a.Session))
		},
		"a newer session": func(b *bed, _ *Pod, a, next cni.Attachment) {
			b.attach(a)
			b.unplug(a)
			b.attach(next)
		},
		"labels": func(b *bed, p *Pod, a, _ cni.Attachment) {
			b.attach(a)
			b.follow(b.label(p, map[string]string{WarmPool: "x"}))
			b.follow(b.label(p, map[string]string{"team": "red"}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			for die := 1; ; die++ {
				b := newBed(t)
				p := b.pod("ns", "a")
				a, next := b.plug(p, "s1", 7), b.plug(p, "s2", 8)
				b.steps, b.die = 0, die
				if !b.until(func() { play(b, p, a, next) }) {
					if die < 4 {
						t.Fatalf("only %d steps", die)
					}
					return
				}
				at := b.trace
				b.restart()
				for _, state := range strings.Fields(b.vouched()) {
					if !strings.HasSuffix(state, "+") && !strings.HasSuffix(state, "-offline") {
						t.Errorf("crash after %q: vouched for %q by half", at, state)
					}
				}
				for address, i := range b.known {
					if ep := b.network.attached[i.Generation]; ep.Address != address || ep.ID != i.ID || ep.Offline {
						t.Errorf("crash after %q: the gateway knows %s as %s, and the datapath does not", at, address, i.Name)
					}
				}
				h := b.history("ns/a")
				live := strings.Count(h, "started") - strings.Count(h, "stopped")
				if want := len(b.network.attached); live != want {
					t.Errorf("crash after %q: recorded %q, and %d are attached", at, h, want)
				}
				// The container runtime repeats what was cut short.
				must.OK(t, b.Detach(t.Context(), "s1"))
				b.unplug(a)
				b.attach(next)
				want := "ns/a+"
				if _, pooled := b.cluster.pods["ns/a"].Labels[WarmPool]; pooled {
					want = "ns/a-offline"
				}
				if got := b.vouched(); got != want {
					t.Errorf("crash after %q: then vouched for %q", at, got)
				}
			}
		})
	}
}

// Labels that change while a pod runs are its tags, in the order that the API server made
// them, whatever the watch sends late. One of a warm pool has no network until it is
// claimed.
func TestLabels(t *testing.T) {
	b := newBed(t)
	p := b.pod("ns", "a", func(p *Pod) { p.Labels = map[string]string{WarmPool: "x", "team": "red"} })
	a := b.plug(p, "s1", 7)
	b.attach(a)
	offline := func(when string) {
		t.Helper()
		if got := b.vouched(); got != "ns/a-offline" {
			t.Errorf("%s: vouched for %q, want offline and unknown to the gateway", when, got)
		}
	}
	tags := func(when string, want ...string) {
		t.Helper()
		if got := b.vouched(); got != "ns/a+" {
			t.Errorf("%s: vouched for %q", when, got)
		}
		for _, w := range want {
			if got := b.known[a.Address].Tags()["team"]; got != w {
				t.Errorf("%s: team is %q, want %q", when, got, w)
			}
		}
	}
	offline("in the pool")
	red := b.label(p, map[string]string{"team": "red"})
	b.follow(red)
	tags("claimed", "red")
	blue := b.label(p, map[string]string{"team": "blue"})
	b.follow(blue)
	tags("changed", "blue")
	b.follow(red)
	tags("after a late message", "blue")
	b.follow(blue) // again, as now and then
	if got := b.history("ns/a"); got != "started changed changed" {
		t.Errorf("recorded %q", got)
	}

	// A change that cannot be recorded is not in force, and is tried again.
	b.broken = errors.New("disk full")
	green := b.label(p, map[string]string{"team": "green"})
	b.follow(green)
	tags("while the log is full", "blue")
	b.broken = nil
	b.follow(green)
	tags("afterwards", "green")

	// Labels without end are no tags: they would be in each event.
	b.follow(b.label(p, manyLabels()))
	offline("with labels without end")
	if i := get(b.Get("ns/a")); len(i.Tags()) != 2 {
		t.Errorf("%d tags of labels without end, want the pod's name and namespace", len(i.Tags()))
	}
	b.follow(b.label(p, map[string]string{"team": "green"}))
	tags("with few again", "green")

	// The API server is away: what runs goes on, over a restart too, and nothing new comes.
	b.cluster.away = true
	b.restart()
	tags("after a restart", "green")
	if err := b.Attach(t.Context(), b.plug(b.pod("ns", "b"), "s9", 9)); err == nil {
		t.Error("a pod is attached without the API server")
	}
	tags("after that", "green")
	b.follow(b.label(p, map[string]string{WarmPool: "y", "team": "green"}))
	offline("back in a pool")
}

// An interface that the datapath vouches for without a record, and a record without an
// interface, are nobody's after a restart.
func TestAdoptNothing(t *testing.T) {
	b := newBed(t)
	a := b.plug(b.pod("ns", "a"), "s1", 7)
	b.attach(a)
	must.OK(t, os.RemoveAll(b.opt.Dir))
	b.restart()
	if got := b.vouched(); got != "" {
		t.Errorf("without a record: vouched for %q", got)
	}
	b.attach(a)
	b.unplug(a)
	b.restart()
	if i := get(b.Get("ns/a")); i.State != sandbox.Stopped || len(b.known) > 0 || len(b.network.attached) > 0 {
		t.Errorf("without an interface: %+v, and the gateway knows %v", i, b.known)
	}
	must.OK(t, os.WriteFile(filepath.Join(b.opt.Dir, "ns", "a", "record.json"), []byte("{"), 0o600))
	b.restart()
	if len(b.List()) > 0 {
		t.Error("a damaged record is a pod")
	}
}

// A label that changes between the API server's answer and the record is not lost.
func TestLabelDuringAttach(t *testing.T) {
	b := newBed(t)
	p := b.pod("ns", "a")
	b.cluster.asked = func() { b.follow(b.label(p, map[string]string{"team": "red"})) }
	a := b.plug(p, "s1", 7)
	b.attach(a)
	if got := b.known[a.Address].Tags()["team"]; got != "red" {
		t.Errorf("team is %q, want red", got)
	}
}

// The gateway's connections with a pod end with its session, however that ends, before another
// pod can have the address.
func TestConnectionsEnd(t *testing.T) {
	for name, end := range map[string]func(*bed, *Pod, cni.Attachment){
		"detached":  func(b *bed, _ *Pod, a cni.Attachment) { must.OK(b.t, b.Detach(b.t.Context(), a.Session)) },
		"collected": func(b *bed, _ *Pod, _ cni.Attachment) { must.OK(b.t, b.Collect(b.t.Context(), nil)) },
		"offline":   func(b *bed, p *Pod, _ cni.Attachment) { b.follow(b.label(p, map[string]string{WarmPool: "x"})) },
		"in the way of another": func(b *bed, _ *Pod, a cni.Attachment) {
			next := b.plug(b.pod("ns2", "b"), "s2", 7)
			b.unplug(a)
			b.attach(next)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			p := b.pod("ns", "a")
			a := b.plug(p, "s1", 7)
			b.attach(a)
			if len(b.ended) > 0 {
				t.Errorf("ended %v while it runs", b.ended)
			}
			end(b, p, a)
			if len(b.ended) != 1 || b.ended[0] != a.Address {
				t.Errorf("ended the connections of %v, want of %s", b.ended, a.Address)
			}
		})
	}
}

// An image's name is shown on terminals, and a pod's may be any text.
func TestImageName(t *testing.T) {
	b := newBed(t)
	for name, want := range map[string]string{"registry.example.com/agent:1": "registry.example.com/agent:1", "agent\x1b[2J": "", "x" + strings.Repeat("y", 1<<20): ""} {
		a := b.plug(b.pod("ns", "a", func(p *Pod) { p.Spec.Containers[0].Image = name }), "s1", 7)
		b.attach(a)
		if got := get(b.Get("ns/a")).Spec.Image; got != want {
			t.Errorf("the image is %.20q, want %q", got, want)
		}
	}
}

// A pod whose address some connection of the host's is still with does not start.
func TestConnectionsStay(t *testing.T) {
	b := newBed(t)
	a := b.plug(b.pod("ns", "a"), "s1", 7)
	b.network.unended = errors.New("operation not supported")
	if err := b.Attach(t.Context(), a); !errors.Is(err, b.network.unended) || b.vouched() != "" {
		t.Errorf("got %v, and %s is attached", err, b.vouched())
	}
	b.network.unended = nil
	b.attach(a)
}
