package gatehouse

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"sallyport/gateway"
	"sallyport/internal/ipc"
	"sallyport/policy"
)

// Exposures tells what is exposed now. What goes on by an exposure that is not
// among it ends.
func (w *Supervisor) Exposures() { w.tell(MethodPublished, PublishedRequest{w.exposures()}) }

func (w *Supervisor) exposures() []gateway.Exposure {
	if w.o.Exposures == nil {
		return nil
	}
	return w.o.Exposures()
}

// errUnexposed keeps a process from starting sandboxes that nobody has exposed.
var errUnexposed = errors.New("no such sandbox is exposed")

func (w *Supervisor) isExposed(id string) bool {
	return slices.ContainsFunc(w.exposures(), func(e gateway.Exposure) bool { return e.SandboxID == id })
}

func (w *Supervisor) opened(id string, port uint16) (e gateway.Exposure, is bool) {
	all := w.exposures()
	i := slices.IndexFunc(all, func(e gateway.Exposure) bool { return e.SandboxID == id && e.Port == port })
	if i < 0 {
		return e, false
	}
	return all[i], true
}

type SandboxRequest struct{ ID string }

type IdentifyReply struct{ Sandbox policy.Sandbox }

type WakeReply struct {
	Sandbox policy.Sandbox
	Address netip.Addr
}

func (w *Supervisor) whose(ctx context.Context, c SandboxRequest) (IdentifyReply, error) {
	if !w.isExposed(c.ID) {
		return IdentifyReply{}, errUnexposed
	}
	s, err := w.o.Whose(ctx, c.ID)
	return IdentifyReply{s}, err
}

// wake has the sandbox run. It does not go on for longer than the process: a sandbox
// that has begun to wake waits until that is on record, the record for the log to be
// taken back, and that for the last answer to the process.
func (w *Supervisor) wake(ctx context.Context, c SandboxRequest) (WakeReply, error) {
	if !w.isExposed(c.ID) {
		return WakeReply{}, errUnexposed
	}
	type woken struct {
		gateway.Identity
		err error
	}
	done := make(chan woken, 1)
	go func() {
		i, err := w.o.Wake(ctx, c.ID)
		done <- woken{i, err}
	}()
	select {
	case i := <-done:
		return WakeReply{i.Sandbox, i.Address}, i.err
	case <-ctx.Done():
		return WakeReply{}, context.Cause(ctx)
	}
}

// Sandboxes is a gateway.Waker and a gateway.Inside in the process.
type Sandboxes struct{ peer *ipc.Peer }

// Whose implements gateway.Waker.
func (w Sandboxes) Whose(ctx context.Context, id string) (policy.Sandbox, error) {
	var got IdentifyReply
	err := w.peer.Call(ctx, MethodIdentify, SandboxRequest{id}, &got)
	return got.Sandbox, err
}

// Wake implements gateway.Waker.
func (w Sandboxes) Wake(ctx context.Context, id string) (gateway.Identity, error) {
	var got WakeReply
	err := w.peer.Call(ctx, MethodWake, SandboxRequest{id}, &got)
	return gateway.Identity{Sandbox: got.Sandbox, Address: got.Address}, err
}

func (in *Worker) setExposures(_ context.Context, c PublishedRequest) (ipc.None, error) {
	in.exposed.Replace(c.Exposures)
	in.gateway.Redecide() // what goes on by one that has been removed ends
	return ipc.None{}, nil
}
