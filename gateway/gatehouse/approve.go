package gatehouse

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"sallyport/internal/ipc"
	"sallyport/policy/approval"
)

type WithdrawRequest struct{ Sandbox, ID string }

type AnsweredRequest struct{ ID string }

// approvalClient asks operators by way of the Warden, in the process. A question is a call
// that is answered at once, however long the request waits: so none keeps a lease
// from being asked for.
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
	// Whoever gives up waiting for it must not leave a grant used and unheard of:
	// the question is short, and is waited for.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), AnswerWithin)
	defer cancel()
	return v, d.peer.Call(ctx, MethodAsk, q, &v)
}

// Withdraw implements gateway.Approvals.
func (d *approvalClient) Withdraw(sandbox, id string) {
	go func() { // a few at a time: there are no more than requests that are held
		ctx, cancel := context.WithTimeout(context.Background(), AnswerWithin)
		defer cancel()
		_ = d.peer.Call(ctx, MethodWithdraw, WithdrawRequest{sandbox, id}, &ipc.None{}) // else its time ends it
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

// answered is the Warden's call.
func (d *approvalClient) answered(_ context.Context, c AnsweredRequest) (ipc.None, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	select {
	case d.watchers[c.ID] <- struct{}{}: // never of nil: nobody watches then
	default:
	}
	return ipc.None{}, nil
}

// Approvals is where the Warden takes questions to.
type Approvals interface {
	Ask(approval.Question) (approval.Verdict, error)
	Withdraw(sandboxID, id string)
	// WithdrawHeld takes back what a process held that is gone.
	WithdrawHeld()
}

// Answered tells the process that it is time to ask about a request again.
func (w *Supervisor) Answered(id string) { w.tell(MethodAnswered, AnsweredRequest{id}) }

var errQuestion = errors.New("not what can be asked about")

// ask takes a question of the process's, under the names that the daemon knows
// its sandboxes by.
func (w *Supervisor) ask(_ context.Context, q approval.Question) (approval.Verdict, error) {
	if w.o.Approvals == nil {
		return approval.Verdict{}, errors.New("no operator can be asked")
	}
	s := &q.Subject
	if !w.enrol(s) {
		return approval.Verdict{}, errStranger
	}
	if err := CheckQuestion(q); err != nil {
		return approval.Verdict{}, err
	}
	return w.o.Approvals.Ask(q)
}

func (w *Supervisor) withdraw(_ context.Context, c WithdrawRequest) (ipc.None, error) {
	if w.o.Approvals != nil {
		w.o.Approvals.Withdraw(c.Sandbox, c.ID)
	}
	return ipc.None{}, nil
}

// enrol gives a subject the name and session of its sandbox, or client, as they
// are known here, and tells whether there is one.
func (w *Supervisor) enrol(s *approval.Subject) bool {
	for _, i := range w.o.Identities() {
		if i.ID == s.SandboxID {
			s.Sandbox, s.Session, s.Owner = i.Name, i.Session, i.Owner
			return true
		}
	}
	if w.o.Clients == nil {
		return false
	}
	for _, c := range w.o.Clients() {
		if c.ID == s.SandboxID {
			s.Sandbox, s.Session, s.Owner = c.Name, "", ""
			return true
		}
	}
	return false
}

// Bounds of a question, in bytes and names; a whole call is bounded too.
const (
	maxText  = 1 << 10
	maxNames = 256
)

// CheckQuestion checks what a process says of a request.
func CheckQuestion(q approval.Question) error {
	s := q.Subject
	for _, f := range []struct {
		text string
		max  int
	}{
		{s.Protocol, 16}, {s.Host, 253}, {s.Method, 256}, {s.Path, 8 << 10}, {s.Target, 8 << 10}, {s.Query, 64}, {s.Rule, maxText}, {s.RuleType, 32},
		{s.Policy, 128}, {s.Body, 64}, {q.ID, 64}, {q.Reason, 4 * maxText},
	} {
		if len(f.text) > f.max || !utf8.ValidString(f.text) {
			return fmt.Errorf("%w: a text of %d bytes", errQuestion, len(f.text))
		}
	}
	for _, digest := range []string{s.Query, s.Body} {
		if digest != "" && (len(digest) != 64 || strings.Trim(digest, "0123456789abcdef") != "") {
			return fmt.Errorf("%w: a digest that is none", errQuestion)
		}
	}
	if len(s.QueryKeys) > maxNames || len(s.Credentials) > maxNames || s.Host == "" || s.Port == 0 || (s.Method == "") != (s.Path == "") || s.Length < -1 {
		return errQuestion
	}
	if q.Timeout < 0 || q.Timeout > 2*time.Hour {
		return errQuestion
	}
	return nil
}
