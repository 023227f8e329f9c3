package pods

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"sallyport/internal/durable"
	"sallyport/sandbox/pods/cni"
	"sallyport/sandbox/state"
)

// Detach ends a session. A session that is not known, or that a newer one of its pod has
// replaced, has ended already. After an error the pod is cut off all the same, and Detach
// can be repeated.
func (p *Pods) Detach(ctx context.Context, session string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if a := p.attaching[session]; a != nil {
		a.ended = true
	}
	e := p.bySession(session)
	if e == nil || session == "" {
		return nil
	}
	return p.finish(ctx, e, "")
}

// Collect ends all sessions but those that the container runtime still has.
func (p *Pods) Collect(ctx context.Context, valid []string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	has := map[string]bool{"": true}
	for _, session := range valid {
		has[session] = true
	}
	var errs []error
	for _, e := range p.entries {
		if !has[e.Rec.Session] {
			errs = append(errs, p.finish(ctx, e, "the container runtime no longer has it"))
		}
	}
	return errors.Join(errs...)
}

// Check reports what is wrong with an attached session.
func (p *Pods) Check(a cni.Attachment) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.bySession(a.Session)
	if e == nil || a.Session == "" || !e.live {
		return fmt.Errorf("pod %s/%s is not attached", a.Namespace, a.Pod)
	}
	there, err := p.endpoints()
	if err != nil {
		return err
	}
	if ep := there[e.Rec.Generation]; ep.Link == 0 || ep.Address != a.Address || ep.MAC != a.MAC {
		return fmt.Errorf("pod %s/%s is attached otherwise than with %s and %s", a.Namespace, a.Pod, a.Address, a.MAC)
	}
	return nil
}

// finish ends a session, and forgets a pod that Kubernetes no longer has.
func (p *Pods) finish(ctx context.Context, e *entry, why string) error {
	if err := p.end(ctx, e, why); err != nil {
		return err
	}
	if p.synced && !p.inKubernetes(e) {
		return p.discard(ctx, e)
	}
	return nil
}

// end ends a session: first its packets, then its identity, then its record. It goes on
// after an error, and can be repeated.
func (p *Pods) end(ctx context.Context, e *entry, why string) error {
	err := p.opt.Network.Detach(e.Rec.Generation)
	e.live = false
	p.publish(e)
	return errors.Join(err, p.journal.CommitWithEvent(context.WithoutCancel(ctx), &e.Stored, state.Lifecycle(e.Rec, "stopped", why), func(r *state.Record) { r.Session = "" }))
}

// discard forgets a pod whose session has ended, once that is on record.
func (p *Pods) discard(ctx context.Context, e *entry) error {
	if err := p.journal.Deliver(ctx, &e.Stored); err != nil {
		return err
	}
	others := false
	for _, o := range p.entries {
		others = others || o != e && o.Rec.ID == e.Rec.ID
	}
	if !others {
		if err := p.forget(e.Rec.ID); err != nil {
			return err
		}
	}
	dir := p.dir(e.Rec.Name)
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	delete(p.entries, e.Rec.Name)
	p.show()
	namespace := filepath.Dir(dir)
	if os.Remove(namespace) == nil { // it had no other pod
		namespace = p.opt.Dir
	}
	return durable.SyncDir(namespace)
}

// forget forgets what is kept for a sandbox that is no more.
func (p *Pods) forget(id string) error {
	return errors.Join(p.opt.Authority.Forget(id), p.opt.Forget(id))
}

// inKubernetes reports whether Kubernetes has the pod, as far as Follow has seen.
func (p *Pods) inKubernetes(e *entry) bool { return p.seen[e.Rec.Pod.UID] != nil }
