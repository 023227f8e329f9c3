package api

import (
	"errors"
	"testing"
)

// A tenant that holds all the connections that it gets, by all of its keys, leaves others
// theirs, and a user on the control socket does.
func TestCallersAreShared(t *testing.T) {
	l := newConnLimit(nil)
	admit := func(p Principal) error {
		g := &limitedConn{limit: l, known: func() {}}
		return g.admit(p)
	}
	fill := func(p func(i int) Principal) (n int) {
		for ; n <= 2*callersAll; n++ {
			if err := admit(p(n)); err != nil {
				if !errors.Is(err, errBusy) {
					t.Fatal(err)
				}
				break
			}
		}
		return n
	}
	tenant := func(name string) func(int) Principal {
		return func(i int) Principal {
			return Principal{ID: "key:" + name + string(rune('a'+i%20)), Tenant: name}
		}
	}
	if n := fill(tenant("acme")); n != callersEach {
		t.Errorf("one tenant has %d connections", n)
	}
	if n := fill(tenant("beta")); n < callersAll/4 {
		t.Errorf("another has %d", n)
	}
	if err := admit(Principal{ID: "key:host"}); err != nil {
		t.Errorf("the host's own: %v", err)
	}
	users := newSocketListener(nil).users
	n := 0
	for ; users.Enter("1000", "1000"); n++ {
	}
	if n != callersEach || !users.Enter("1001", "1001") {
		t.Errorf("a user has %d connections, and another none", n)
	}
}

// Tenants that hold all the streams of events that they get leave others theirs.
func TestStreamsAreShared(t *testing.T) {
	h := newHandler(Options{})
	n := 0
	for i := range 20 * streamsEach {
		if _, err := h.enterStream(Principal{ID: "key:" + string(rune('a'+i/streamsEach)), Tenant: "acme"}); err == nil {
			n++
		}
	}
	if n != streamsAll/2 {
		t.Errorf("one tenant has %d streams, by twenty keys", n)
	}
	for i := range streamsEach {
		if _, err := h.enterStream(Principal{ID: "key:beta", Tenant: "beta"}); err != nil {
			t.Errorf("stream %d of another: %v", i, err)
		}
	}
}
