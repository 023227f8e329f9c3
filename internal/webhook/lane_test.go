package webhook_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/internal/test/must"
	"sallyport/internal/webhook"
)

// owned appends an event of a tenant's sandbox.
func (l *trail) owned(owner, name string) {
	l.t.Helper()
	e := audit.Change("sandbox/"+name, "started")
	x := &e.Unmapped.Sallyport
	x.Owner, x.Sandbox, x.SandboxID = owner, name, "id-"+name
	must.OK(l.t, l.log.Append(l.t.Context(), e))
}

// A backlog of one tenant's events, and an event of its that the server never takes,
// hold up nobody else's: they are sent in turns, and each one's own in order, once,
// over a restart too.
func TestLanesAreShared(t *testing.T) {
	const many = 100
	var mu sync.Mutex
	var got []string
	var refused bool
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var m struct {
			Data struct{ Owner, Sandbox string }
		}
		_ = json.NewDecoder(r.Body).Decode(&m)
		mu.Lock()
		defer mu.Unlock()
		if m.Data.Sandbox == "refused" {
			refused = true
			w.WriteHeader(http.StatusForbidden)
			return
		}
		got = append(got, m.Data.Owner+"/"+m.Data.Sandbox)
	}))
	t.Cleanup(srv.Close)
	seen := func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(got)
	}
	l, dir := newTrail(t), t.TempDir()
	h := webhook.Hook{URL: srv.URL, Secret: secret, Addresses: loopback}
	l.owned("evil", "refused")
	l.owned("evil", "never")
	var want []string
	for i := range many {
		name := string(rune('a'+i/10)) + string(rune('0'+i%10))
		l.owned("acme", name)
		want = append(want, "acme/"+name)
	}
	l.owned("beta", "box")
	l.owned("", "hosts")
	stop := run(t, l, dir, h, time.Hour)
	late := func(name string, most int) {
		t.Helper()
		must.Soon(t, name, func() bool { return slices.Contains(seen(), name) })
		if at := slices.Index(seen(), name); at > most {
			t.Errorf("%s comes after %d others, want at most %d", name, at, most)
		}
	}
	late("beta/box", 4)
	late("/hosts", 4)
	must.Soon(t, "what is refused", func() bool { mu.Lock(); defer mu.Unlock(); return refused })
	must.Soon(t, "half", func() bool { return len(seen()) > many/2 })
	stop()
	l.owned("beta", "more")
	stop = run(t, l, dir, h, time.Hour)
	must.Soon(t, "all", func() bool {
		return slices.Contains(seen(), "acme/"+want[many-1][5:]) && slices.Contains(seen(), "beta/more")
	})
	time.Sleep(100 * time.Millisecond)
	stop()
	all := seen()
	of := slices.DeleteFunc(slices.Clone(all), func(s string) bool { return !strings.HasPrefix(s, "acme/") })
	// The request that stop cut off may have been taken, and is sent again.
	if !slices.Equal(slices.Compact(slices.Clone(of)), want) {
		t.Errorf("acme's: %q", of)
	}
	for name, n := range map[string]int{"beta/box": 1, "/hosts": 1, "beta/more": 1, "evil/never": 0} {
		times := 0
		for _, s := range all {
			if s == name {
				times++
			}
		}
		if times != n {
			t.Errorf("%s was taken %d times, want %d", name, times, n)
		}
	}
}
