package gateway_test

import (
	"net/http"
	"testing"

	"sallyport/policy"
)

// TestReached: a completion says which address its request has gone to, also by a
// connection that was there; the decision, which is made before, has the name alone.
func TestReached(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ version, scheme string }{{"h1", "https"}, {"h2", "https"}, {"h1", "http"}} {
		t.Run(c.version+" "+c.scheme, func(t *testing.T) {
			m := newVersionEnv(t, "transparent", c.version, c.version, c.scheme)
			m.origin.handle("/", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) })
			for range 2 {
				if resp, _ := get(t, m.client, m.url("/")); resp.StatusCode != 204 {
					t.Fatal(resp.Status)
				}
			}
			decisions, completions := m.settled(t)
			if len(decisions) != 2 {
				t.Fatalf("%d decisions", len(decisions))
			}
			for _, d := range decisions {
				done := completions[d.ID()].Destination
				if done.IP != "127.0.0.1" || done.Hostname != "api.example.test" || done.Port != d.Destination.Port || d.Destination.IP != "" {
					t.Errorf("the decision has %+v, and the completion %+v", d.Destination, done)
				}
			}
		})
	}
}

// TestReachedByProxy: of a request that goes by another proxy, both records name that.
func TestReachedByProxy(t *testing.T) {
	t.Parallel()
	m := newVersionEnv(t, "transparent", "h1", "h1", "https")
	m.policy(func(in policy.Input) policy.Decision {
		d := m.allow(in)
		other := *m.reach
		other.Proxy = "http://127.0.0.1:1" // nobody listens
		d.Upstream = &other
		return d
	})
	_, _ = get(t, m.client, m.url("/"))
	decisions, completions := m.settled(t)
	for _, d := range decisions {
		for _, e := range []any{d.Proxy.Hostname, completions[d.ID()].Proxy.Hostname} {
			if e != "127.0.0.1" || d.Proxy.Port != 1 || completions[d.ID()].Destination.IP != "" {
				t.Errorf("%+v, %+v", d.Proxy, completions[d.ID()])
			}
		}
	}
	if len(decisions) == 0 {
		t.Error("nothing is on record")
	}
}
