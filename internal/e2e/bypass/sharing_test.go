package bypass

import (
	"crypto/tls"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// The things that two sandboxes, two names or two requests have in common are no way from one
// to the other.
func testSharing(t *testing.T, r *rig) {
	for _, c := range []struct {
		name string
		test func(*testing.T, *rig)
	}{
		{"TLS 1.2 sessions", func(t *testing.T, r *rig) { testSessions(t, r, tls.VersionTLS12) }},
		{"TLS 1.3 sessions", func(t *testing.T, r *rig) { testSessions(t, r, tls.VersionTLS13) }},
		{"upstream connections", testPool},
		{"another sandbox's address for a name", testAddressOfAnother},
		{"a redirect", testRedirect},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, r) })
	}
}

// testSessions resumes a TLS session where it was not made.
func testSessions(t *testing.T, r *rig, version uint16) {
	plain := Handshake{Name: api, Min: version, Max: version}
	get := func(host string) attempt {
		return attempt{sent: ask(get(host, "/v1/x")), want: "200", log: "allow api", saw: []string{sawX}}
	}
	first := get(api)
	first.sent = first.sent.with(plain)
	session := r.a.try(t, first).Session
	if session == nil {
		t.Fatal("no session was given")
	}
	again := plain
	again.Session = session
	t.Run("legal", func(t *testing.T) {
		a := get(api)
		a.sent = a.sent.with(again)
		if res := r.a.try(t, a); !res.Resumed {
			t.Error("the same sandbox cannot resume its session")
		}
	})
	t.Run("in another sandbox", func(t *testing.T) {
		a := get(api)
		a.sent = a.sent.with(again)
		if res := r.b.try(t, a); res.Resumed {
			t.Error("another sandbox resumed the session")
		}
	})
	t.Run("for another allowed host", func(t *testing.T) {
		again.Name = other
		r.a.try(t, attempt{sent: ask(request("GET", api, "/v1/x", "")).at(other + ":443").with(again), want: "421", log: "deny host"})
	})
	t.Run("for a denied host", func(t *testing.T) {
		again.Name = denied
		r.a.try(t, attempt{sent: ask(request("GET", api, "/v1/x", "")).at(denied + ":443").with(again), want: "403", log: "deny denied"})
	})
	t.Run("with the SNI of a denied host", func(t *testing.T) {
		again.Name = denied
		r.a.try(t, attempt{sent: ask(request("GET", api, "/v1/x", "")).with(again), want: "403", log: "deny name"})
	})
}

// testPool sees on which connections requests reach the upstream.
func testPool(t *testing.T, r *rig) {
	conn := func(s *sandbox) string {
		t.Helper()
		s.try(t, attempt{sent: legal, want: "200", log: "allow api", saw: []string{legalSaw}})
		r.upstream.mu.Lock()
		defer r.upstream.mu.Unlock()
		return r.upstream.conns[len(r.upstream.conns)-1]
	}
	a, b := conn(r.a), conn(r.b)
	if a == b {
		t.Error("two sandboxes share a connection to the upstream")
	}
	if again := conn(r.a); again != a {
		t.Errorf("a sandbox does not share its own: %s, then %s", a, again)
	}
	if again := conn(r.b); again != b {
		t.Errorf("the other does not either: %s, then %s", b, again)
	}
}

// testAddressOfAnother connects to the address that stands for a name in another
// sandbox, where this one has not looked it up.
func testAddressOfAnother(t *testing.T, r *rig) {
	const name = "private.many.example.test"
	r.upstream.zone.Set(name, addrs(upstreamAddress)...)
	saw := []string{"GET " + name + " /v1/x none"}
	res := r.a.try(t, attempt{sent: ask(get(name, "/v1/x")).at(name + ":443"), want: "200", log: "allow many", saw: saw})
	v := ask(get(name, "/v1/x")).at(res.Remote).with(Handshake{Name: name})
	t.Run("legal", func(t *testing.T) {
		r.a.try(t, attempt{sent: v, want: "200", log: "allow many", saw: saw})
	})
	r.b.try(t, attempt{sent: v, want: "403", log: "deny -"})
}

// testRedirect follows where an upstream points. The gateway itself follows
// nothing, and the credential is bound to its host.
func testRedirect(t *testing.T, r *rig) {
	for _, c := range []struct{ to, want, log, saw string }{
		{denied, "403", "deny denied", ""},
		{unlisted, "403", "deny -", ""},
		{other, "200", "allow other", "GET other.example.test /v1/landed none"},
		{api, "200", "allow api", "GET api.example.test /v1/landed ours"},
	} {
		t.Run(c.to, func(t *testing.T) {
			from := "/v1/redirect?to=" + c.to
			res := r.a.try(t, attempt{sent: ask(get(api, from)), want: "307", log: "allow api", saw: []string{"GET api.example.test " + from + " ours"}})
			if !strings.Contains(string(res.Data), "Location: https://"+c.to+"/v1/landed\r\n") {
				t.Errorf("no redirect: %s", res.Data)
			}
			a := attempt{sent: ask(get(c.to, "/v1/landed")).at(c.to + ":443"), want: c.want, log: c.log}
			if c.saw != "" {
				a.saw = []string{c.saw}
			}
			r.a.try(t, a)
		})
	}
}

// most is how many names of a sandbox have addresses.
const most = 4096

// fill looks up more names than a sandbox may have addresses for, and returns
// those that got none.
func (s *sandbox) fill(t *testing.T) (late []string) {
	names := make(chan string)
	var mu sync.Mutex
	var work sync.WaitGroup
	for range 16 {
		work.Go(func() {
			for name := range names {
				if !s.assigned(t, name) {
					mu.Lock()
					late = append(late, name)
					mu.Unlock()
				}
			}
		})
	}
	for i := range most + 16 {
		names <- fmt.Sprintf("n%d.many.example.test", i)
	}
	close(names)
	work.Wait()
	return late
}

// assigned asks until it is answered: a sandbox has a hundred questions a second.
func (s *sandbox) assigned(t *testing.T, name string) bool {
	for range 1000 {
		switch got := s.look(t, lookTime, false, question(name, dns.TypeA)); got {
		case "NOERROR " + synthetic:
			return true
		case "NOERROR " + refusal:
			return false
		case "REFUSED", "silence":
			time.Sleep(50 * time.Millisecond)
		default:
			t.Errorf("looking up %s: %s", name, got)
			return false
		}
	}
	t.Errorf("looking up %s: no answer", name)
	return false
}

// testFull has a sandbox whose names have no more addresses: the old ones keep
// theirs, and no address comes to stand for another name.
func testFull(t *testing.T, r *rig, first string, all []string) {
	if len(all) != 16 {
		t.Fatalf("%d names got no address, want those beyond %d", len(all), most)
	}
	late := all[0]
	const name = "n0.many.example.test"
	r.upstream.zone.Set(name, addrs(upstreamAddress)...)
	r.upstream.zone.Set(late, addrs(upstreamAddress)...)
	r.full.events(t)
	t.Run("legal", func(t *testing.T) {
		res := r.full.try(t, attempt{sent: ask(get(name, "/v1/x")).at(name + ":443"), want: "200", log: "allow many", saw: []string{"GET " + name + " /v1/x none"}})
		if res.Remote != first {
			t.Errorf("the first name had %s, and has %s", first, res.Remote)
		}
	})
	t.Run("a name too many", func(t *testing.T) {
		r.full.try(t, attempt{sent: ask(get(late, "/v1/x")).at(late + ":443"), want: "403", log: "deny stale-name"})
	})
	t.Run("a name too many, at the address of an old one", func(t *testing.T) {
		r.full.try(t, attempt{sent: ask(get(late, "/v1/x")).at(first).with(Handshake{Name: late}), want: "403", log: "deny name"})
	})
}
