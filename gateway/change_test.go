package gateway_test

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sallyport/policy"
)

// A policy that changes between a decision and what comes of it is asked again.
func TestChangeDuringADecision(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, m *versionEnv) {
		m.handle("/", func(w http.ResponseWriter, r *http.Request) { t.Error("the request left") })
		for _, phase := range []policy.Phase{policy.PhaseConnect, policy.PhaseRequest} {
			// A connection of its own: the one before is told to go, and may not be idle yet.
			m.client = m.agent(m.version, m.scheme == "https", m.dial, m.explicit && m.version == "h1")
			changed := false
			var mu sync.Mutex
			m.policy(func(in policy.Input) policy.Decision {
				mu.Lock()
				now := !changed && in.Phase == phase
				before := !changed
				changed = changed || now
				mu.Unlock()
				if now {
					m.gateway.Redecide()
					time.Sleep(30 * time.Millisecond) // it has looked at all there was
				}
				// A connection that is allowed still is not closed a moment later, before a
				// busy machine has answered on it.
				if before || in.Phase != phase {
					return m.allow(in)
				}
				return policy.Decision{Action: policy.Deny, Reason: "closed", Revision: "r2"}
			})
			resp := m.do(t, m.request(t, "GET", "/", nil))
			if body := text(t, resp); resp.StatusCode != 403 || !strings.Contains(body, "closed") {
				t.Errorf("a change during %s: %d %s", phase, resp.StatusCode, body)
			}
		}
		if n := m.conns.Load(); n > 0 {
			t.Errorf("%d connections to the upstream", n)
		}
	})
}

// However a request begins while the policy changes, it does not go on under the
// policy of before.
func TestRequestsThatBeginDuringAChange(t *testing.T) {
	const clients = 8
	rounds, each := 4, 10
	if soaking() {
		rounds, each = 8, 60
	}
	w := newNetEnv(t)
	w.quiet = true
	o := w.origin("api.example.test", "h2", true)
	var open atomic.Int64
	o.handle("/", func(w http.ResponseWriter, r *http.Request) {
		open.Add(1)
		defer open.Add(-1)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	var all []*http.Client
	for i := range clients {
		all = append(all, w.agent([]string{"h1", "h2"}[i%2], true, w.steer, false))
	}
	denied := func(policy.Input) policy.Decision {
		return policy.Decision{Action: policy.Deny, Reason: "closed", Revision: "r2"}
	}
	slow := func(in policy.Input) policy.Decision { // which gives a change time to come between
		d := w.allow(in)
		if in.Phase == policy.PhaseRequest {
			time.Sleep(time.Millisecond)
		}
		return d
	}
	began := 0
	for round := range rounds {
		w.policy(slow)
		w.gateway.Redecide()
		var asked sync.WaitGroup
		var answered atomic.Int64
		for _, c := range all {
			for range each {
				asked.Go(func() {
					r, _ := http.NewRequestWithContext(t.Context(), "GET", o.url("https", "/"), nil)
					resp, err := c.Do(r)
					if err != nil {
						return
					}
					defer resp.Body.Close()
					if resp.StatusCode == 200 {
						answered.Add(1)
					}
					_, _ = io.Copy(io.Discard, resp.Body)
				})
			}
		}
		for answered.Load() == 0 && open.Load() == 0 {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Duration(round*5) * time.Millisecond)
		w.policy(denied)
		w.gateway.Redecide()
		changed := time.Now()
		done := make(chan struct{})
		go func() { asked.Wait(); close(done) }()
		select { // those that had not begun are denied, those that had are ended
		case <-done:
		case <-time.After(2 * time.Minute):
			t.Fatalf("round %d: %d requests go on at the upstream", round, open.Load())
		}
		for open.Load() > 0 && time.Since(changed) < soon {
			time.Sleep(5 * time.Millisecond)
		}
		if n := open.Load(); n > 0 {
			t.Fatalf("round %d: %d requests go on at the upstream", round, n)
		}
		began += int(answered.Load())
		t.Logf("round %d: %d had begun, all over after %v", round, answered.Load(), time.Since(changed))
	}
	if began == 0 {
		t.Error("no request had begun: nothing was tested")
	}
}
