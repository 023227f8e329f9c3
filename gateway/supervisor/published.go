package supervisor

import (
	"context"
	"errors"
	"slices"
	"time"

	"sallyport/gateway"
	"sallyport/gateway/access"
	"sallyport/gateway/inbound"
	"sallyport/gateway/workerapi"
)

// Ports tells the worker the published ports, which have changed. Connections to a
// port that is not among them end.
func (s *Supervisor) Ports() {
	s.notify(workerapi.MethodTables, workerapi.Tables{Published: whole(s.publishedPorts())})
}

func (s *Supervisor) publishedPorts() []access.Port {
	if s.o.Ports == nil {
		return nil
	}
	return s.o.Ports()
}

// errNotPublished keeps a worker from starting sandboxes without published ports.
var errNotPublished = errors.New("no such sandbox is exposed")

func (s *Supervisor) isExposed(id string) bool {
	return s.routable(id, 0) || slices.ContainsFunc(s.publishedPorts(), func(e access.Port) bool { return e.SandboxID == id })
}

// Router tells the worker what the listener of a router's clients works with, which has
// changed. Requests of a client that is no more end.
func (s *Supervisor) Router() {
	s.notify(workerapi.MethodTables, workerapi.Tables{Router: s.o.Router()})
}

func (s *Supervisor) routable(id string, port uint16) bool {
	return s.o.Routable != nil && s.o.Routable(id, port)
}

// findWithin bounds how long that may take: the worker waits no longer, and cannot say so.
const findWithin = 10 * time.Second

// find looks up where a sandbox is.
func (s *Supervisor) find(ctx context.Context, to inbound.Route) (inbound.Place, error) {
	if s.o.Find == nil {
		return inbound.Place{}, inbound.ErrNotPlaced
	}
	ctx, cancel := context.WithTimeout(ctx, findWithin)
	defer cancel()
	return s.o.Find(ctx, to)
}

func (s *Supervisor) published(id string, port uint16) (e access.Port, is bool) {
	all := s.publishedPorts()
	i := slices.IndexFunc(all, func(e access.Port) bool { return e.SandboxID == id && e.Port == port })
	if i < 0 {
		return e, false
	}
	return all[i], true
}

func (s *Supervisor) identify(ctx context.Context, c workerapi.SandboxRequest) (workerapi.IdentifyReply, error) {
	if !s.isExposed(c.ID) {
		return workerapi.IdentifyReply{}, errNotPublished
	}
	box, err := s.o.Whose(ctx, c.ID)
	return workerapi.IdentifyReply{Sandbox: box}, err
}

// wake starts a sandbox. It lasts no longer than the worker: a sandbox that wakes waits
// until that is recorded, the record waits until the log is taken back, and that waits for
// the last answer to the worker.
func (s *Supervisor) wake(ctx context.Context, c workerapi.SandboxRequest) (workerapi.WakeReply, error) {
	if !s.isExposed(c.ID) {
		return workerapi.WakeReply{}, errNotPublished
	}
	type woken struct {
		gateway.Identity
		err error
	}
	done := make(chan woken, 1)
	go func() {
		i, err := s.o.Wake(ctx, c.ID)
		done <- woken{i, err}
	}()
	select {
	case i := <-done:
		return workerapi.WakeReply{Sandbox: i.Sandbox, Address: i.Address}, i.err
	case <-ctx.Done():
		return workerapi.WakeReply{}, context.Cause(ctx)
	}
}
