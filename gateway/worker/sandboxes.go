package worker

import (
	"context"

	"sallyport/gateway"
	"sallyport/gateway/workerapi"
	"sallyport/internal/ipc"
	"sallyport/policy"
)

// Sandboxes identifies, wakes and reaches the sandboxes that have published ports, by
// asking the supervisor. It is a gateway.Waker and a gateway.Inside.
type Sandboxes struct{ Peer *ipc.Peer }

// Whose implements gateway.Waker.
func (s Sandboxes) Whose(ctx context.Context, id string) (policy.Sandbox, error) {
	var got workerapi.IdentifyReply
	err := s.Peer.Call(ctx, workerapi.MethodIdentify, workerapi.SandboxRequest{ID: id}, &got)
	return got.Sandbox, err
}

// Wake implements gateway.Waker.
func (s Sandboxes) Wake(ctx context.Context, id string) (gateway.Identity, error) {
	var got workerapi.WakeReply
	err := s.Peer.Call(ctx, workerapi.MethodWake, workerapi.SandboxRequest{ID: id}, &got)
	return gateway.Identity{Sandbox: got.Sandbox, Address: got.Address}, err
}
