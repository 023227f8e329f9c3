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
func (w *Warden) Exposures() { w.tell(callExposures, exposuresCall{w.exposures()}) }

func (w *Warden) exposures() []gateway.Exposure {
	if w.o.Exposures == nil {
		return nil
	}
	return w.o.Exposures()
}

// errUnexposed keeps a process from starting sandboxes that nobody has exposed.
var errUnexposed = errors.New("no such sandbox is exposed")

func (w *Warden) isExposed(id string) bool {
	return slices.ContainsFunc(w.exposures(), func(e gateway.Exposure) bool { return e.SandboxID == id })
}

func (w *Warden) opened(id string, port uint16) (e gateway.Exposure, is bool) {
	all := w.exposures()
	i := slices.IndexFunc(all, func(e gateway.Exposure) bool { return e.SandboxID == id && e.Port == port })
	if i < 0 {
		return e, false
	}
	return all[i], true
}

type exposedCall struct{ ID string }

type whoseReply struct{ Sandbox policy.Sandbox }

type wakeReply struct {
	Sandbox policy.Sandbox
	Address netip.Addr
}

func (w *Warden) whose(ctx context.Context, c exposedCall) (whoseReply, error) {
	if !w.isExposed(c.ID) {
		return whoseReply{}, errUnexposed
	}
	s, err := w.o.Whose(ctx, c.ID)
	return whoseReply{s}, err
}

// wake has the sandbox run. It does not go on for longer than the process: a sandbox
// that has begun to wake waits until that is on record, the record for the log to be
// taken back, and that for the last answer to the process.
func (w *Warden) wake(ctx context.Context, c exposedCall) (wakeReply, error) {
	if !w.isExposed(c.ID) {
		return wakeReply{}, errUnexposed
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
		return wakeReply{i.Sandbox, i.Address}, i.err
	case <-ctx.Done():
		return wakeReply{}, context.Cause(ctx)
	}
}

// waker is a gateway.Waker and a gateway.Inside in the process.
type waker struct{ peer *ipc.Peer }

// Whose implements gateway.Waker.
func (w waker) Whose(ctx context.Context, id string) (policy.Sandbox, error) {
	var got whoseReply
	err := w.peer.Call(ctx, callWhose, exposedCall{id}, &got)
	return got.Sandbox, err
}

// Wake implements gateway.Waker.
func (w waker) Wake(ctx context.Context, id string) (gateway.Identity, error) {
	var got wakeReply
	err := w.peer.Call(ctx, callWake, exposedCall{id}, &got)
	return gateway.Identity{Sandbox: got.Sandbox, Address: got.Address}, err
}

func (in *inside) setExposures(_ context.Context, c exposuresCall) (ipc.None, error) {
	in.exposed.Replace(c.Exposures)
	in.gate.Redecide() // what goes on by one that has been removed ends
	return ipc.None{}, nil
}
