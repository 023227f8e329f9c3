package worker

import (
	"net/netip"
	"testing"

	"sallyport/gateway/access"
	"sallyport/gateway/workerapi"
	"sallyport/internal/jail"
	"sallyport/policy"
)

// A table that is not among the changes stays, and only what may end something is
// reported.
func TestTables(t *testing.T) {
	w := newWorker(nil, jail.State{})
	a, b := netip.MustParseAddr("10.231.0.2"), netip.MustParseAddr("10.231.0.3")
	box := func(id, team string) *policy.Sandbox {
		return &policy.Sandbox{ID: id, Tags: map[string]string{"team": team}}
	}
	type sandboxes = map[netip.Addr]*policy.Sandbox
	for _, tt := range []struct {
		name      string
		change    workerapi.Tables
		ends      bool
		sandboxes string
		clients   int
	}{
		{"everything", workerapi.Tables{Sandboxes: sandboxes{a: box("a", "x")}, Clients: []access.Client{{Name: "ci", ID: "c"}}, Published: []access.Port{}}, true, "a", 1},
		{"another sandbox", workerapi.Tables{Sandboxes: sandboxes{b: box("b", "x")}}, false, "ab", 1},
		{"the same again", workerapi.Tables{Sandboxes: sandboxes{a: box("a", "x")}}, false, "ab", 1},
		{"other tags", workerapi.Tables{Sandboxes: sandboxes{a: box("a", "y")}}, true, "ab", 1},
		{"a sandbox has gone", workerapi.Tables{Sandboxes: sandboxes{a: nil}}, false, "b", 1},
		{"no clients", workerapi.Tables{Clients: []access.Client{}}, true, "b", 0},
	} {
		if ends := w.apply(tt.change); ends != tt.ends {
			t.Errorf("%s: ends %v, want %v", tt.name, ends, tt.ends)
		}
		got := ""
		for _, at := range []netip.Addr{a, b} {
			if s, ok := w.identify(at); ok {
				got += s.ID
			}
		}
		if n := len(w.clients.List()); got != tt.sandboxes || n != tt.clients {
			t.Errorf("%s: sandboxes %q and %d clients, want %q and %d", tt.name, got, n, tt.sandboxes, tt.clients)
		}
	}
}
