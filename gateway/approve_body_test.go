package gateway_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"sallyport/internal/test/must"
	"sallyport/policy"
	"sallyport/policy/approval"
)

// An approval of a request whose body a rule sees is one of that body, and of no
// other that passes the rule.
func TestApprovalBindsABodyThatIsJudged(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"h1", "h2"} {
		t.Run(version, func(t *testing.T) {
			f := newOperatorStore(t)
			j := newBodyEnv(t, version, true, asking(f))
			j.doc.Egress[0].Action = policy.Approve
			j.doc.Approvals = policy.Approvals{Answer: policy.AnswerPoll}
			j.load(t)
			client := j.agent(version, true, j.steer, false)
			post := func(body string, status int) {
				t.Helper()
				r, err := http.NewRequestWithContext(t.Context(), "POST", j.origin.url("https", "/mcp"), strings.NewReader(body))
				must.OK(t, err)
				r.Header.Set("Content-Type", "application/json")
				resp, err := client.Do(r)
				must.OK(t, err)
				if said := text(t, resp); resp.StatusCode != status {
					t.Errorf("%s: %d %s, want %d", body, resp.StatusCode, said, status)
				}
			}
			shown := `{"method": "initialize"}`
			post(shown, 428)
			asked := f.waiting(t, 1)[0]
			if asked.Subject.Length != int64(len(shown)) || asked.Subject.Body == "" {
				t.Errorf("the operator is shown %+v", asked.Subject)
			}
			f.answer(t, asked.ID, approval.Answer{Approve: true})
			post(`{"method": "resources/list"}`, 428)
			post(shown, 200)
			if got := j.taken(); len(got) != 1 || got[0] != shown {
				t.Errorf("the upstream got %q", got)
			}
			j.settled(t)
		})
	}
}

// Bodies that wait for an operator and those that a rule sees have one bound.
func TestHeldBodiesHaveOneBound(t *testing.T) {
	t.Parallel()
	f := newOperatorStore(t)
	j := newBodyEnv(t, "h1", true, asking(f))
	j.doc.Egress[2].Action = policy.Approve
	j.doc.Approvals = policy.Approvals{Timeout: policy.Duration(time.Minute)}
	j.load(t)
	client := j.agent("h1", true, j.steer, false)
	done := make(chan int, 1)
	go func() {
		resp, err := client.Post(j.origin.url("https", "/other"), "text/plain", strings.NewReader(strings.Repeat("x", 300_000)))
		if err != nil {
			done <- 0
			return
		}
		resp.Body.Close()
		done <- resp.StatusCode
	}()
	asked := f.waiting(t, 1)[0]
	if n := j.gauge(t, "sallyport_gateway_held_body_bytes"); n < 300_000 {
		t.Errorf("%v bytes are held", n)
	}
	f.answer(t, asked.ID, approval.Answer{Approve: true})
	if status := <-done; status != 200 {
		t.Errorf("got %d", status)
	}
	j.settled(t)
	for deadline := time.Now().Add(patience); j.gauge(t, "sallyport_gateway_held_body_bytes") != 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the room is not given back")
		}
	}
}
