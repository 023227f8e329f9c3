package supervisor

import (
	"context"
	"errors"

	"sallyport/gateway/workerapi"
	"sallyport/internal/ipc"
	"sallyport/policy/approval"
)

// Approvals keeps questions for operators.
type Approvals interface {
	Ask(approval.Question) (approval.Verdict, error)
	Withdraw(sandboxID, id string)
	// WithdrawHeld takes back what a process held that is gone.
	WithdrawHeld()
}

// Answered tells the worker to ask about a request again.
func (s *Supervisor) Answered(id string) {
	s.notify(workerapi.MethodAnswered, workerapi.AnsweredRequest{ID: id})
}

// ask passes a worker's question on, with the sandbox's name as the daemon knows it.
func (s *Supervisor) ask(_ context.Context, q approval.Question) (approval.Verdict, error) {
	if s.o.Approvals == nil {
		return approval.Verdict{}, errors.New("no operator can be asked")
	}
	if !s.identifySubject(&q.Subject) {
		return approval.Verdict{}, errNotRunning
	}
	if err := workerapi.CheckQuestion(q); err != nil {
		return approval.Verdict{}, err
	}
	return s.o.Approvals.Ask(q)
}

func (s *Supervisor) withdraw(_ context.Context, c workerapi.WithdrawRequest) (ipc.None, error) {
	if s.o.Approvals != nil {
		s.o.Approvals.Withdraw(c.Sandbox, c.ID)
	}
	return ipc.None{}, nil
}

// isKnown reports whether an ID is of a sandbox that runs or of a client.
func (s *Supervisor) isKnown(id string) bool {
	return s.identifySubject(&approval.Subject{SandboxID: id})
}

// identifySubject sets a subject's name, session and owner as they are known here, and
// reports whether there is such a sandbox or client.
func (s *Supervisor) identifySubject(subject *approval.Subject) bool {
	for _, i := range s.o.Identities() {
		if i.ID == subject.SandboxID {
			subject.Sandbox, subject.Session, subject.Owner = i.Name, i.Session, i.Owner
			return true
		}
	}
	if s.o.Clients == nil {
		return false
	}
	for _, c := range s.o.Clients() {
		if c.ID == subject.SandboxID {
			subject.Sandbox, subject.Session, subject.Owner = c.Name, "", ""
			return true
		}
	}
	return false
}
