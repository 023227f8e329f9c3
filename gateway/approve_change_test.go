package gateway_test

import (
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"

	"sallyport/gateway/credential"
	"sallyport/policy"
	"sallyport/policy/approval"
)

// A policy that reads the clock gives a credential until six. A request that was asked about
// before, and is approved afterwards, leaves as the policy has it then, and not before an
// operator has seen that.
func TestHeldRequestWhoseCredentialIsGone(t *testing.T) {
	t.Parallel()
	f := newOperatorStore(t)
	m := newVersionEnv(t, "transparent", "h1", "h1", "https", asking(f))
	m.secrets(map[string]credential.Source{"openai": secret(token)})
	m.handle("/", func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "%d", len(r.Header["Authorization"])) })
	var after atomic.Bool
	ask := m.approve(policy.Approvals{})
	m.policy(func(in policy.Input) policy.Decision {
		d := ask(in)
		if in.Phase == policy.PhaseRequest && !after.Load() {
			d.Inject = []policy.Injection{{Credential: "openai"}}
		}
		return d
	})
	done := m.send(m.request(t, "GET", "/x", nil))
	asked := f.waiting(t, 1)[0]
	if !slices.Equal(asked.Subject.Credentials, []string{"openai"}) {
		t.Fatalf("asked about %+v", asked.Subject)
	}
	after.Store(true)
	f.answer(t, asked.ID, approval.Answer{Approve: true})
	again := f.waiting(t, 1)[0]
	if again.ID == asked.ID || len(again.Subject.Credentials) != 0 {
		t.Fatalf("asked again about %+v", again.Subject)
	}
	f.answer(t, again.ID, approval.Answer{Approve: true})
	got := <-done
	got.want(t, 200, "0")
}
