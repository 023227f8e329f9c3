package policy

import (
	"cmp"
	"fmt"
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

// What Approvals.Answer may say.
const (
	AnswerHold = "hold"
	AnswerPoll = "poll"
)

const maxApprovalBody = 16 << 20 // bytes

// Defaulted is a with what it leaves out filled in.
func (a Approvals) Defaulted() Approvals {
	a.Answer = cmp.Or(a.Answer, AnswerHold)
	a.Timeout = cmp.Or(a.Timeout, Duration(5*time.Minute))
	a.Body = cmp.Or(a.Body, 1<<20)
	return a
}

func (v *validator) approvals(path string, a Approvals) {
	if a.Answer != "" && a.Answer != AnswerHold && a.Answer != AnswerPoll {
		fix := "write hold or poll"
		if near := Nearest(a.Answer, []string{AnswerHold, AnswerPoll}); near != "" {
			fix = "did you mean " + near + "?"
		}
		v.fail(path+".answer", fmt.Sprintf("%q is neither hold nor poll", a.Answer), fix)
	}
	if d := time.Duration(a.Timeout); d != 0 && (d < time.Second || d > time.Hour) {
		v.fail(path+".timeout", fmt.Sprintf("%v is not from 1s to 1h", a.Timeout), "write a time as 10m, or leave it out for 5m")
	}
	if a.Body < 0 || a.Body > maxApprovalBody {
		v.fail(path+".body", fmt.Sprintf("%v is more than 16MiB", a.Body), "write a size as 4MiB, or leave it out for 1MiB")
	}
}
