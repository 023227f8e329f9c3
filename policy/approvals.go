package policy

import (
	"cmp"
	"time"
)

// Approvals says what becomes of a request that an operator has to approve. The
// zero Approvals holds it.
type Approvals struct {
	// Answer is hold (default: the request waits on its connection), or poll:
	// it is answered at once with 428 (Precondition Required) and an id, and is
	// to be sent again.
	// Example: poll
	Answer string `yaml:"answer" json:",omitempty"`
	// Timeout is after how long no answer is a no, from 1s to 1h. Default: 5m.
	// Example: 10m
	Timeout Duration `yaml:"timeout" json:",omitempty"`
	// Body is how much of a request's body is kept, in memory, to bind an
	// approval to it, up to 16MiB. A request with a larger one can be approved for
	// the session or for a time only. Default: 1MiB.
	// Example: 4MiB
	Body Size `yaml:"body" json:",omitempty"`
}

// Values of Approvals.Answer.
const (
	AnswerHold = "hold"
	AnswerPoll = "poll"
)

const MaxApprovalBody = 16 << 20 // bytes

// Defaulted is a with what it leaves out filled in.
func (a Approvals) Defaulted() Approvals {
	a.Answer = cmp.Or(a.Answer, AnswerHold)
	a.Timeout = cmp.Or(a.Timeout, Duration(5*time.Minute))
	a.Body = cmp.Or(a.Body, 1<<20)
	return a
}
