package pods

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/google/uuid"

	"sallyport/internal/durable"
	"sallyport/internal/image"
	"sallyport/sandbox"
	"sallyport/sandbox/pods/cni"
	"sallyport/sandbox/state"
)

// askWithin bounds how long the API server may take to answer what a pod is.
const askWithin = 10 * time.Second

// attaching is a call of Attach that is under way.
type attaching struct {
	ended bool // its session has ended meanwhile
}

var (
	errEnded    = errors.New("the session ended while it was attached")
	errNotThere = errors.New("Kubernetes has no such pod for this node")
)

// sessionForm is what the CNI specification allows as CNI_CONTAINERID, bounded.
var sessionForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$`)

// Attach vouches for a pod that is about to run. The pod becomes a sandbox with
//
//   - the name NAMESPACE/NAME, where NAME is that of agent-sandbox's Sandbox that controls
//     the pod, else the pod's own;
//   - an ID that is made of the namespace and the UID of that Sandbox, or of the pod: it is
//     the same after a suspension and on each node, and nobody in another namespace can
//     have it, whatever owner a pod says it has;
//   - CRI's ID as its session, and the namespace as its owner;
//   - the pod's labels as its tags, but for those that begin with [sandbox.TagPrefix], and
//     [sandbox.TagNamespace] and [sandbox.TagPod]. A pod whose labels have more than
//     maxLabels is refused;
//   - the ports of its probes and hooks as its ProbePorts. A pod with more than there is
//     room for is refused.
//
// After an error nothing vouches for the pod. Attach can be repeated.
func (p *Pods) Attach(ctx context.Context, a cni.Attachment) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("pod %s/%s: %w", a.Namespace, a.Pod, err)
			p.opt.Logger.Warn("a pod is not attached, and does not start", "error", err)
		}
	}()
	if !sessionForm.MatchString(a.Session) || a.Namespace == "" || a.Pod == "" || a.UID == "" {
		return fmt.Errorf("%w: the container runtime did not say which pod it is: CNI_CONTAINERID, or K8S_POD_NAMESPACE, K8S_POD_NAME and K8S_POD_UID in CNI_ARGS", errMalformed)
	}
	call, err := p.beginAttach(a.Session)
	if err != nil {
		return err
	}
	defer p.endAttach(a.Session)
	asked, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	pod, err := p.opt.Cluster.Pod(asked, a.Namespace, a.Pod)
	if err != nil {
		return fmt.Errorf("asking the API server: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if call.ended {
		return errEnded
	}
	if later := p.seen[pod.UID]; later != nil && newer(later.ResourceVersion, pod.ResourceVersion) {
		pod = later
	}
	rec, err := p.record(a, pod)
	if err != nil {
		return err
	}
	link, err := p.opt.Link(a.Link)
	if err != nil {
		return fmt.Errorf("interface %q: %w", a.Link, err)
	}
	if err := p.endOlder(ctx, rec); err != nil {
		return err
	}
	if err := p.opt.Network.EndFlows(rec.Address); err != nil {
		return err
	}
	if err := p.forgetFormer(rec); err != nil {
		return err
	}
	if _, err := p.opt.Authority.Root(rec.ID); err != nil {
		return err
	}
	e, err := p.start(ctx, rec)
	if err != nil {
		return err
	}
	e.live, e.version = true, pod.ResourceVersion
	p.publish(e)
	if err := p.opt.Network.Attach(endpoint(e, link)); err != nil {
		return errors.Join(err, p.end(context.WithoutCancel(ctx), e, "it could not be attached: "+err.Error()))
	}
	return nil
}

// beginAttach notes that a session is being attached, for a Detach that comes meanwhile.
func (p *Pods) beginAttach(session string) (*attaching, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.attaching[session] != nil {
		return nil, errors.New("the session is being attached already")
	}
	a := new(attaching)
	p.attaching[session] = a
	return a, nil
}

func (p *Pods) endAttach(session string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.attaching, session)
}

// record returns a pod's record with a new session, but without a generation. It refuses a
// pod that is not the one that the container runtime is about to run.
func (p *Pods) record(a cni.Attachment, pod *Pod) (rec state.Record, err error) {
	switch {
	case pod.UID != a.UID:
		return rec, fmt.Errorf("%w: it has UID %s, and the container runtime runs %s; a static pod cannot be a sandbox", errNotThere, pod.UID, a.UID)
	case pod.Spec.NodeName != p.opt.Node:
		return rec, fmt.Errorf("%w: it is of node %q, and this one is %q (pods.node)", errNotThere, pod.Spec.NodeName, p.opt.Node)
	case pod.Spec.RuntimeClassName != RuntimeClass:
		return rec, fmt.Errorf("it is not of RuntimeClass %q", RuntimeClass)
	case pod.DeletionTimestamp != nil:
		return rec, errors.New("it is being deleted")
	case !labelsFit(pod.Labels):
		return rec, fmt.Errorf("its labels have more than %d bytes", maxLabels)
	case !a.Address.Is4() || !p.opt.Subnet.Contains(a.Address):
		return rec, fmt.Errorf("address %s is not in %s (network.subnet)", a.Address, p.opt.Subnet)
	}
	name, uid := pod.Name, pod.UID
	if o := pod.sandbox(); o != nil {
		name, uid = o.Name, o.UID // the pod's author may have invented them
	}
	if err := errors.Join(sandbox.CheckName(name), sandbox.CheckName(pod.Namespace)); err != nil {
		return rec, err
	}
	rec = state.Record{
		Name: pod.Namespace + "/" + name, ID: uuid.NewSHA1(idSpace, []byte(pod.Namespace+"/"+uid)).String(),
		Address: a.Address, MAC: a.MAC, Created: pod.CreationTimestamp.UTC(), Session: a.Session, Ready: true,
		Pod: &sandbox.Pod{Name: pod.Name, UID: pod.UID},
	}
	rec.Spec.Owner, rec.Spec.Runtime = pod.Namespace, sandbox.GVisor
	if c := pod.Spec.Containers; len(c) > 0 {
		if _, err := image.Parse(c[0].Image); err == nil { // else it is any text: the container does not start
			rec.Spec.Image = c[0].Image
		}
	}
	rec.Spec.Tags, rec.Spec.Offline = p.tags(pod)
	rec.ProbePorts, err = pod.Spec.probePorts()
	return rec, err
}

// idSpace is the name space of sandboxes' IDs (RFC 9562, section 5.5).
var idSpace = uuid.NewSHA1(uuid.NameSpaceDNS, []byte("pods.sallyport.dev"))

// endOlder ends older sessions that are in the way of a new one: of the same pod, and of pods
// whose interface is gone. It refuses what another pod has.
func (p *Pods) endOlder(ctx context.Context, rec state.Record) error {
	there, err := p.endpoints()
	if err != nil {
		return err
	}
	for _, e := range p.entries {
		old := e.Rec
		if old.Session == "" || old.Name != rec.Name && old.ID != rec.ID && old.Address != rec.Address && old.MAC != rec.MAC && old.Session != rec.Session {
			continue
		}
		why := "its interface is gone"
		if there[old.Generation].Link != 0 {
			if old.Pod.UID != rec.Pod.UID {
				return stillThere(old, rec)
			}
			why = "another session of its pod began"
		}
		if err := p.end(ctx, e, why); err != nil {
			return err
		}
	}
	return nil
}

// forgetFormer forgets what is kept for a sandbox if an earlier pod was it: one that was suspended
// begins anew, also if Follow has not been told yet that the earlier pod is gone.
func (p *Pods) forgetFormer(rec state.Record) error {
	for _, e := range p.entries {
		if e.Rec.ID == rec.ID && e.Rec.Pod.UID != rec.Pod.UID {
			return p.forget(rec.ID)
		}
	}
	return nil
}

// stillThere refuses a pod because of another. Kubernetes shows the error to all who may read
// the events of the pod's namespace: it names pods of that alone.
func stillThere(old, rec state.Record) error {
	if old.Spec.Owner != rec.Spec.Owner {
		return fmt.Errorf("a pod of another namespace, which is still there, has %s or %s", rec.Address, rec.MAC)
	}
	return fmt.Errorf("%s, with %s and %s, is pod %s/%s here, which is still there", old.Name, old.Address, old.MAC, old.Spec.Owner, old.Pod.Name)
}

// start writes the record of a new session to disk, and its event to the audit log.
func (p *Pods) start(ctx context.Context, rec state.Record) (_ *entry, err error) {
	e := p.entries[rec.Name]
	if e != nil && e.Rec.ID != rec.ID { // another pod had the name before
		if err := p.discard(ctx, e); err != nil {
			return nil, err
		}
		e = nil
	}
	if rec.Generation, err = p.counters.NextGeneration(); err != nil {
		return nil, err
	}
	if e == nil {
		if err := durable.MkdirAll(p.dir(rec.Name), 0o700); err != nil {
			return nil, err
		}
		before := rec
		before.Session = "" // until Transact has recorded it
		e = &entry{Stored: state.Stored{Rec: before}}
		p.entries[rec.Name] = e
	}
	err = p.journal.Transact(ctx, &e.Stored, state.Lifecycle(rec, "started", ""), func(r *state.Record) { *r = rec })
	if err != nil {
		p.show()
	}
	return e, err
}

func endpoint(e *entry, link int) sandbox.Endpoint {
	r := e.Rec
	return sandbox.Endpoint{
		Link: link, Sandbox: r.Name, ID: r.ID, Generation: r.Generation, Address: r.Address, MAC: r.MAC, Offline: r.Spec.Offline,
		ProbePorts: r.ProbePorts,
	}
}

// endpoints returns what the network vouches for, by generation. Only interfaces that are
// there have one.
func (p *Pods) endpoints() (map[uint32]sandbox.Endpoint, error) {
	all, err := p.opt.Network.Endpoints()
	if err != nil {
		return nil, fmt.Errorf("listing network endpoints: %w", err)
	}
	there := map[uint32]sandbox.Endpoint{}
	for _, ep := range all {
		there[ep.Generation] = ep
	}
	return there, nil
}
