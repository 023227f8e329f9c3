package worker

import (
	"context"
	"net/netip"

	"sallyport/gateway/workerapi"
	"sallyport/internal/ipc"
	"sallyport/policy"
)

// Sandboxes identifies, wakes and reaches the sandboxes that have published ports, by
// asking the supervisor. It is a inbound.Waker and a inbound.Loopback.
type Sandboxes struct{ Peer *ipc.Peer }

// Whose implements inbound.Waker.
func (s Sandboxes) Whose(ctx context.Context, id string) (policy.Sandbox, error) {
	var got workerapi.IdentifyReply
	err := s.Peer.Call(ctx, workerapi.MethodIdentify, workerapi.SandboxRequest{ID: id}, &got)
	return got.Sandbox, err
}

// Wake implements inbound.Waker.
func (s Sandboxes) Wake(ctx context.Context, id string) (policy.Sandbox, netip.Addr, error) {
	var got workerapi.WakeReply
	err := s.Peer.Call(ctx, workerapi.MethodWake, workerapi.SandboxRequest{ID: id}, &got)
	return got.Sandbox, got.Address, err
}
