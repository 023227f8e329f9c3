package pods

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"sallyport/internal/test/must"
	"sallyport/sandbox"
	"sallyport/sandbox/pods/cni"
)

// play is a node on which anything may happen, and what the container runtime knows of it.
type play struct {
	*bed
	dice     *rand.Rand
	pods     []*Pod
	sessions []cni.Attachment  // that were begun, the oldest first
	current  map[string]string // session that the runtime runs, by pod
	replaced []*Pod            // that Kubernetes no longer has, and of which the watch has not told
	log      []string
}

func (p *play) say(format string, args ...any) { p.log = append(p.log, fmt.Sprintf(format, args...)) }

// do runs a call that may be cut short by the daemon's end, and begins another one then.
func (p *play) do(call func() error) (err error, crashed bool) {
	p.steps, p.die, p.trace = 0, 0, ""
	if p.dice.IntN(4) == 0 {
		p.die = 1 + p.dice.IntN(6)
	}
	if crashed = p.until(func() { err = call() }); crashed {
		p.say("crash after %q", p.trace)
		p.restart()
	}
	p.die = 0
	return err, crashed
}

func (p *play) turn() {
	ctx := p.t.Context()
	pod := p.pods[p.dice.IntN(len(p.pods))]
	name := pod.Namespace + "/" + pod.Name
	switch p.dice.IntN(11) {
	case 0, 1, 2: // a session begins, sometimes with an address that another has
		a := p.plug(pod, fmt.Sprint("s", len(p.sessions)), byte(10+p.dice.IntN(8)))
		p.sessions = append(p.sessions, a)
		p.say("add %s to %s at %s", a.Session, name, a.Address)
		delete(p.current, name) // the runtime has given up the one before, though its DEL may come late
		err, crashed := p.do(func() error { return p.Attach(ctx, a) })
		if err == nil && !crashed {
			p.current[name] = a.Session
		} else { // the runtime gives it up
			p.say("which failed: %v", err)
			must.OK(p.t, p.Detach(ctx, a.Session))
			p.end(a)
		}
	case 3, 4: // the end of any session, also of one that has ended
		if len(p.sessions) == 0 {
			return
		}
		a := p.sessions[p.dice.IntN(len(p.sessions))]
		p.say("del %s", a.Session)
		if _, crashed := p.do(func() error { return p.Detach(ctx, a.Session) }); crashed {
			must.OK(p.t, p.Detach(ctx, a.Session))
		}
		p.end(a)
	case 5:
		var valid []string
		for _, s := range p.current {
			valid = append(valid, s)
		}
		p.say("gc but %v", valid)
		if _, crashed := p.do(func() error { return p.Collect(ctx, valid) }); crashed {
			must.OK(p.t, p.Collect(ctx, valid))
		}
	case 6:
		labels := map[string]string{"team": fmt.Sprint(p.dice.IntN(3))}
		if p.dice.IntN(3) == 0 {
			labels[WarmPool] = "x"
		}
		p.say("label %s %v", name, labels)
		changed := p.label(p.cluster.pods[name], labels)
		p.do(func() error { p.follow(changed); return nil })
		p.follow(changed) // again, as now and then
	case 7:
		p.say("restart")
		p.restart()
	case 8:
		if len(p.sessions) > 0 { // an interface goes whose DEL came or was lost
			a := p.sessions[p.dice.IntN(len(p.sessions))]
			if p.current[a.Namespace+"/"+a.Pod] != a.Session {
				p.say("unplug %s", a.Session)
				p.unplug(a)
			}
		}
	case 9: // another pod of the name, though the runtime may still run the one before
		p.say("replace %s", name)
		next := pod.copied()
		next.UID = fmt.Sprint(pod.UID, "'")
		next = p.write(next)
		p.pods[slices.Index(p.pods, pod)] = next
		p.replaced = append(p.replaced, pod)
		delete(p.current, name)
	case 10: // the watch begins again
		p.say("list")
		p.do(func() error {
			f := follower{ctx, p.Pods}
			for _, pod := range p.pods {
				f.Changed(p.cluster.pods[pod.Namespace+"/"+pod.Name])
			}
			for _, gone := range p.replaced {
				f.Gone(gone)
			}
			f.Synced()
			return nil
		})
		p.replaced = nil
	}
}

func (p *play) end(a cni.Attachment) {
	p.unplug(a)
	if name := a.Namespace + "/" + a.Pod; p.current[name] == a.Session {
		delete(p.current, name)
	}
}

// check holds the node against what must be true at any time.
func (p *play) check() bool {
	there, _ := p.network.Endpoints()
	var wrong []string
	addresses := map[string]string{}
	sessions := map[string]string{} // attached, by name
	for _, e := range there {
		i := get(p.Get(e.Sandbox))
		sessions[e.Sandbox] = i.Session
		if was, twice := addresses[e.Address.String()]; twice {
			wrong = append(wrong, fmt.Sprintf("%s is %s's and %s's", e.Address, was, e.Sandbox))
		}
		addresses[e.Address.String()] = e.Sandbox
		k, known := p.known[e.Address]
		if known == e.Offline || known && (k.ID != e.ID || k.Name != e.Sandbox || k.Generation != e.Generation) {
			wrong = append(wrong, fmt.Sprintf("%s is attached (offline %v), and the gateway knows %q at its address", e.Sandbox, e.Offline, k.Name))
		}
		if i.State != sandbox.Running || i.Spec.Offline != e.Offline || i.Address != e.Address {
			wrong = append(wrong, fmt.Sprintf("%s is attached, and shown as %+v", e.Sandbox, i))
		}
		if labels := p.cluster.pods[e.Sandbox].Labels; i.Pod.UID == p.cluster.pods[e.Sandbox].UID && i.Tags()["team"] != labels["team"] && len(labels) > 1 {
			wrong = append(wrong, fmt.Sprintf("%s has tags %v of labels %v", e.Sandbox, i.Tags(), labels))
		}
	}
	for address, i := range p.known {
		if addresses[address.String()] != i.Name && !p.lost(i.Name) {
			wrong = append(wrong, fmt.Sprintf("the gateway knows %s at %s, and nothing is attached there", i.Name, address))
		}
	}
	for name, session := range p.current {
		if sessions[name] != session {
			wrong = append(wrong, fmt.Sprintf("the runtime runs %s of %s, and %q is attached", session, name, sessions[name]))
		}
	}
	for _, pod := range p.pods {
		name := pod.Namespace + "/" + pod.Name
		h := p.history(name)
		_, attached := sessions[name]
		if live := strings.Count(h, "started") - strings.Count(h, "stopped"); live != map[bool]int{true: 1}[attached] && !p.lost(name) {
			wrong = append(wrong, fmt.Sprintf("%s is attached: %v, and recorded: %s", name, attached, h))
		}
	}
	for _, w := range wrong {
		p.t.Error(w)
	}
	return len(wrong) == 0
}

// lost reports whether the record of a pod is of a session whose interface went without a
// DEL: it ends with the next call that is about it.
func (p *play) lost(name string) bool {
	i, err := p.Get(name)
	if err != nil || i.State != sandbox.Running {
		return false
	}
	return p.network.attached[i.Generation].Link == 0 || !p.network.there(p.network.attached[i.Generation].Link)
}

// Whatever comes in whatever order, and wherever the daemon ends: what the datapath lets
// pass is what the gateway knows, each address is one pod's, what the runtime runs is
// attached, and each session has one beginning and one end on record.
func TestAnyOrder(t *testing.T) {
	seeds := uint64(40)
	if os.Getenv("SALLYPORT_SOAK") != "" {
		seeds = 2000
	}
	for seed := range seeds {
		p := &play{bed: newBed(t), dice: rand.New(rand.NewPCG(seed, 1)), current: map[string]string{}}
		p.pods = []*Pod{p.pod("ns", "a", owned("a")), p.pod("ns", "b"), p.pod("ns2", "a")}
		for range 30 {
			p.turn()
			if !p.check() {
				t.Fatalf("seed %d:\n%s", seed, strings.Join(p.log, "\n"))
			}
		}
		must.OK(t, p.Collect(t.Context(), nil))
		if len(p.network.attached) > 0 || len(p.known) > 0 {
			t.Fatalf("seed %d: at the end %v are attached, and the gateway knows %v", seed, p.network.attached, slices.Collect(maps.Keys(p.known)))
		}
	}
}
