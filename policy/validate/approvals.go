package validate

import (
	"fmt"
	"time"

	"sallyport/policy"
)

func (v *validator) approvals(path string, a policy.Approvals) {
	if a.Answer != "" && a.Answer != policy.AnswerHold && a.Answer != policy.AnswerPoll {
		fix := "write hold or poll"
		if near := policy.Nearest(a.Answer, []string{policy.AnswerHold, policy.AnswerPoll}); near != "" {
			fix = "did you mean " + near + "?"
		}
		v.fail(path+".answer", fmt.Sprintf("%q is neither hold nor poll", a.Answer), fix)
	}
	if d := time.Duration(a.Timeout); d != 0 && (d < time.Second || d > time.Hour) {
		v.fail(path+".timeout", fmt.Sprintf("%v is not from 1s to 1h", a.Timeout), "write a time as 10m, or leave it out for 5m")
	}
	if a.Body < 0 || a.Body > policy.MaxApprovalBody {
		v.fail(path+".body", fmt.Sprintf("%v is more than 16MiB", a.Body), "write a size as 4MiB, or leave it out for 1MiB")
	}
}
