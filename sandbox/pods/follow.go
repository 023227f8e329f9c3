package pods

import (
	"context"
	"maps"

	"sallyport/sandbox/state"
)

// Follow follows the node's pods until ctx is done: the tags of a pod that runs become its
// labels, one that is claimed gets its network, and one that Kubernetes no longer has is
// forgotten when its session has ended. While the API server is away, all stays as it is.
func (p *Pods) Follow(ctx context.Context) error {
	return p.opt.Cluster.Follow(ctx, p.opt.Node, follower{ctx, p})
}

type follower struct {
	ctx context.Context
	*Pods
}

// Changed implements [Follower]. A change that could not be recorded comes again with the
// next list of all pods.
func (f follower) Changed(pod *Pod) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if pod.Spec.RuntimeClassName != RuntimeClass {
		return
	}
	f.seen[pod.UID] = pod
	for _, e := range f.entries {
		if e.live && e.Rec.Pod.UID == pod.UID && newer(pod.ResourceVersion, e.version) {
			if err := f.change(f.ctx, e, pod); err != nil && f.ctx.Err() == nil {
				f.opt.Logger.Error("the labels of a pod are not its tags yet", "pod", e.Rec.Name, "error", err)
			}
		}
	}
}

// change gives an entry the tags that its pod's labels make: recorded first, then in force.
func (p *Pods) change(ctx context.Context, e *entry, pod *Pod) error {
	rec := e.Rec
	rec.Spec.Tags, rec.Spec.Offline = p.tags(pod)
	if was := e.Rec.Spec; was.Offline != rec.Spec.Offline || !maps.Equal(was.Tags, rec.Spec.Tags) {
		why := ""
		if was.Offline != rec.Spec.Offline {
			why = map[bool]string{true: "it is offline", false: "it was claimed"}[rec.Spec.Offline]
		}
		if err := p.journal.Transact(ctx, &e.Stored, state.Lifecycle(rec, "changed", why), func(r *state.Record) { r.Spec = rec.Spec }); err != nil {
			return err
		}
		p.publish(e)
	}
	// A pod's probes do not change. One that runs may be of a daemon that did not read them.
	if ports, err := pod.Spec.probePorts(); err == nil && ports != e.Rec.ProbePorts {
		if err := p.journal.Commit(&e.Stored, func(r *state.Record) { r.ProbePorts = ports }); err != nil {
			return err
		}
	}
	there, err := p.endpoints()
	if err != nil {
		return err
	}
	if ep := there[e.Rec.Generation]; ep.Link != 0 && ep != endpoint(e, ep.Link) {
		if err := p.opt.Network.Attach(endpoint(e, ep.Link)); err != nil {
			return err
		}
	}
	e.version = pod.ResourceVersion
	return nil
}

// Gone implements [Follower].
func (f follower) Gone(pod *Pod) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.seen, pod.UID)
	f.sweep()
}

// Synced implements [Follower].
func (f follower) Synced() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.synced = true
	f.sweep()
}

// sweep ends sessions whose interface is gone, as one whose DEL found no daemon while the next
// one read which interfaces there were, and forgets pods that Kubernetes no longer has and whose
// session has ended.
func (f follower) sweep() {
	if !f.synced {
		return
	}
	there, err := f.endpoints()
	if err != nil {
		f.opt.Logger.Error("pods whose interface is gone are not ended yet", "error", err)
	}
	for _, e := range f.entries {
		var err error
		switch {
		case e.Rec.Session == "" && !f.inKubernetes(e):
			err = f.discard(f.ctx, e)
		case e.Rec.Session != "" && there != nil && there[e.Rec.Generation].Link == 0:
			err = f.finish(f.ctx, e, "its interface is gone")
		}
		if err != nil {
			f.opt.Logger.Error("what is kept of a pod that is gone cannot be removed", "pod", e.Rec.Name, "error", err)
		}
	}
}
