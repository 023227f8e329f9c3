package resolver

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"sallyport/audit"
	"sallyport/internal/test/must"
	"sallyport/internal/test/ocsf"
)

type journal struct {
	mu     sync.Mutex
	events []*audit.Event
	err    error
}

func (j *journal) Enqueue(e *audit.Event) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	ocsf.Must(e)
	j.events = append(j.events, e)
	return j.err
}

func (j *journal) all() []*audit.Event {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.events)
}

func TestFullTableIsARefusal(t *testing.T) {
	l := serve(t)
	for i := range 50 {
		if r, err := l.ask(t, "udp", "127.0.1.1", question(fmt.Sprintf("allow.n%d.test.", i), dns.TypeA)); err != nil || r.Answer[0].(*dns.A).A.Equal(net.IP(Refusal.AsSlice())) {
			t.Fatalf("%d: %v, %v", i, r, err)
		}
	}
	r, err := l.ask(t, "udp", "127.0.1.1", question("allow.more.test.", dns.TypeA))
	if err != nil || !r.Answer[0].(*dns.A).A.Equal(net.IP(Refusal.AsSlice())) {
		t.Fatalf("got %v, %v", r, err)
	}
	l.stop()
	events := l.journal.all()
	if len(events) != 1 || !strings.Contains(events[0].Unmapped.Sallyport.Reason, "too many") || events[0].Rule.Type != "floor" {
		t.Errorf("recorded %+v", events)
	}
}

func TestRefusalsAreRecordedOnce(t *testing.T) {
	l := serve(t)
	for range 3 {
		for _, name := range []string{"evil.example.test.", "EVIL.example.test.", "told.example.test.", "allow.example.test."} {
			if _, err := l.ask(t, "udp", "127.0.1.1", question(name, dns.TypeA)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := l.ask(t, "udp", "127.0.1.1", question("evil.example.test.", dns.TypeAAAA)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.ask(t, "tcp", "127.0.1.2", question("evil.example.test.", dns.TypeA)); err != nil {
		t.Fatal(err)
	}
	l.Denied("id-1", "told.example.test")
	l.Denied("id-9", "evil.example.test")
	if got := len(l.journal.all()); got != 0 {
		t.Errorf("%d events before they could be folded", got)
	}
	deadline := time.Now().Add(10 * time.Second)
	for len(l.journal.all()) < 2 && time.Now().Before(deadline) {
		time.Sleep(20 * time.Millisecond)
	}
	l.stop()
	counts := map[string]int{}
	for _, e := range l.journal.all() {
		x := e.Unmapped.Sallyport
		counts[x.Sandbox+" "+e.Query.Hostname] = max(e.Count, 1)
		if e.ClassUID != audit.ClassDNS || e.Action != audit.ActionDenied || e.Disposition != audit.DispositionBlocked || x.Kind != audit.KindDecision ||
			x.Phase != "dns" || x.Decision != "deny" || x.Reason != "no rule allows evil.example.test" || x.Session != "s1" || x.Tags["team"] != "x" ||
			e.Policy.Version != "r1" || e.Rule.Name != "default" || !strings.HasPrefix(e.Source.IP, "127.0.1.") || e.StartTime == 0 || e.Query.Type != "A" {
			t.Errorf("recorded %+v", e)
		}
	}
	if len(counts) != 2 || counts["box1 evil.example.test"] != 6 || counts["box2 evil.example.test"] != 1 {
		t.Errorf("recorded %v", counts)
	}
}

func TestFloodOfRefusalsIsFolded(t *testing.T) {
	l := newServerEnv(t)
	who, _ := identify(netip.MustParseAddr("127.0.1.1"))
	for i := range 1000 {
		packet, err := question(fmt.Sprintf("n%d.evil.test.", i), dns.TypeA).Pack()
		must.OK(t, err)
		l.answer(t.Context(), who, netip.Addr{}, packet)
	}
	l.refusals.flush(time.Now().Add(holdFor))
	events, sum := l.journal.all(), 0
	for _, e := range events {
		sum += max(e.Count, 1)
	}
	if len(events) != maxHeld+1 || sum != 1000 {
		t.Errorf("%d events that count %d look-ups, want %d and 1000", len(events), sum, maxHeld+1)
	}
	if len(l.refusals.sandboxes) != 0 {
		t.Error("a recorded sandbox is still held")
	}
}
