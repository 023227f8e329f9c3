package worker

import (
	"context"
	"sync"

	"sallyport/gateway/workerapi"
	"sallyport/internal/ipc"
	"sallyport/policy/approval"
)

// approvalClient asks operators for approval. The supervisor answers each question at
// once, however long the request waits, so that no question delays a lease.
type approvalClient struct {
	peer *ipc.Peer

	mu       sync.Mutex
	watchers map[string]chan struct{} // by id; bounded by what the gateway holds
}

func newApprovalClient(p *ipc.Peer) *approvalClient {
	return &approvalClient{peer: p, watchers: map[string]chan struct{}{}}
}

// Ask implements gateway.Approvals.
func (d *approvalClient) Ask(ctx context.Context, q approval.Question) (v approval.Verdict, err error) {
	// A caller that gives up waiting must not leave a grant used and unheard of:
	// the question is short, and is waited for.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), workerapi.AnswerWithin)
	defer cancel()
	return v, d.peer.Call(ctx, workerapi.MethodAsk, q, &v)
}

// Withdraw implements gateway.Approvals.
func (d *approvalClient) Withdraw(sandbox, id string) {
	go func() { // a few at a time: there are no more than requests that are held
		ctx, cancel := context.WithTimeout(context.Background(), workerapi.AnswerWithin)
		defer cancel()
		_ = d.peer.Call(ctx, workerapi.MethodWithdraw, workerapi.WithdrawRequest{Sandbox: sandbox, ID: id}, &ipc.None{}) // else its time ends it
	}()
}

// Watch implements gateway.Approvals.
func (d *approvalClient) Watch(id string) (woken <-chan struct{}, stop func()) {
	c := make(chan struct{}, 1)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.watchers[id] = c
	return c, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.watchers[id] == c {
			delete(d.watchers, id)
		}
	}
}

// answered is called by the supervisor.
func (d *approvalClient) answered(_ context.Context, c workerapi.AnsweredRequest) (ipc.None, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	select {
	case d.watchers[c.ID] <- struct{}{}: // never of nil: nobody watches then
	default:
	}
	return ipc.None{}, nil
}
