package resolver

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"

	"sallyport/audit"
	"sallyport/policy"
)

// journal keeps what is recorded.
type journal struct {
	mu     sync.Mutex
	events []*audit.Event
	err    error
}

func (j *journal) Enqueue(e *audit.Event) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.events = append(j.events, e)
	return j.err
}

func (j *journal) all() []*audit.Event {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.events)
}

// sandboxes of the tests: every address of 127.0.1.0/24 is one.
func identify(a netip.Addr) (policy.Sandbox, bool) {
	if !netip.MustParsePrefix("127.0.1.0/24").Contains(a) {
		return policy.Sandbox{}, false
	}
	n := a.As4()[3]
	return policy.Sandbox{Name: fmt.Sprintf("box%d", n), ID: fmt.Sprintf("id-%d", n), Session: "s1", Tags: map[string]string{"team": "x"}}, true
}

// decide allows what its name says.
func decide(_ context.Context, in policy.Input) policy.Decision {
	d := policy.Decision{Reason: "no rule allows " + in.Destination.Host, Revision: "r1", Rule: "default", RuleType: "egress"}
	if in.Phase != policy.PhaseDNS || in.Sandbox.ID == "" || in.Destination.Port != 0 || in.Destination.Host != strings.ToLower(in.Destination.Host) {
		return d
	}
	switch first, _, _ := strings.Cut(in.Destination.Host, "."); first {
	case "allow", "intranet":
		d.Action = policy.Allow
	case "tunnel":
		d.Action = policy.Tunnel
	case "approve":
		d.Action = policy.Approve
	case "odd":
		d.Action = "surprise"
	case "broken":
		d.Action, d.Err = policy.Allow, errors.New("evaluation failed")
	}
	return d
}

type lab struct {
	*Server
	addr    string
	table   *Table
	journal *journal
	metrics *prometheus.Registry
	stop    func()
}

func newLab(t testing.TB) *lab {
	t.Helper()
	l := &lab{table: openTable(t, t.TempDir(), TableOptions{PerSandbox: 50}), journal: &journal{}, metrics: prometheus.NewRegistry()}
	l.Server = NewServer(Options{Table: l.table, Identify: identify, Decide: decide, Recorder: l.journal, Metrics: l.metrics})
	return l
}

// serve runs the server on loopback, UDP and TCP on one port.
func serve(t testing.TB) *lab {
	t.Helper()
	l := newLab(t)
	var pc net.PacketConn
	var ln net.Listener
	for range 20 { // until a UDP port is free for TCP too
		var err error
		if pc, err = net.ListenPacket("udp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		l.addr = pc.LocalAddr().String()
		if ln, err = net.Listen("tcp", l.addr); err == nil {
			break
		}
		pc.Close()
	}
	if ln == nil {
		t.Fatal("no port is free for both UDP and TCP")
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Serve(ctx, pc, ln) }()
	l.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("serving: %v", err)
		}
	})
	t.Cleanup(l.stop)
	return l
}

// ask sends a message from a sandbox's address.
func (l *lab) ask(t testing.TB, network, from string, m *dns.Msg) (*dns.Msg, error) {
	t.Helper()
	var local net.Addr = &net.UDPAddr{IP: net.ParseIP(from)}
	if network == "tcp" {
		local = &net.TCPAddr{IP: net.ParseIP(from)}
	}
	c := dns.Client{Net: network, Dialer: &net.Dialer{LocalAddr: local}, Timeout: 2 * time.Second}
	r, _, err := c.ExchangeContext(t.Context(), m, l.addr)
	return r, err
}

func question(name string, qtype uint16) *dns.Msg {
	m := new(dns.Msg).SetQuestion(name, qtype)
	return m
}

func TestAnswers(t *testing.T) {
	const none = ""
	first := address(0).String()
	for _, tt := range []struct {
		name  string
		host  string
		qtype uint16
		rcode int
		want  string // the answer's data
	}{
		{"allowed", "allow.example.test.", dns.TypeA, dns.RcodeSuccess, first},
		{"tunnelled", "tunnel.example.test.", dns.TypeA, dns.RcodeSuccess, first},
		{"to be approved", "approve.example.test.", dns.TypeA, dns.RcodeSuccess, first},
		{"denied", "deny.example.test.", dns.TypeA, dns.RcodeSuccess, Refusal.String()},
		{"action that is not known", "odd.example.test.", dns.TypeA, dns.RcodeSuccess, Refusal.String()},
		{"policy failed", "broken.example.test.", dns.TypeA, dns.RcodeSuccess, Refusal.String()},
		{"upper case", "ALLOW.Example.TEST.", dns.TypeA, dns.RcodeSuccess, first},
		{"AAAA", "allow.example.test.", dns.TypeAAAA, dns.RcodeSuccess, none},
		{"AAAA denied", "deny.example.test.", dns.TypeAAAA, dns.RcodeSuccess, none},
		{"HTTPS", "allow.example.test.", dns.TypeHTTPS, dns.RcodeSuccess, none},
		{"SVCB", "allow.example.test.", dns.TypeSVCB, dns.RcodeSuccess, none},
		{"TXT", "allow.example.test.", dns.TypeTXT, dns.RcodeSuccess, none},
		{"ANY", "allow.example.test.", dns.TypeANY, dns.RcodeSuccess, `"RFC8482" ""`},
		{"AXFR", "example.test.", dns.TypeAXFR, dns.RcodeRefused, none},
		{"root", ".", dns.TypeNS, dns.RcodeSuccess, none},
		{"localhost", "localhost.", dns.TypeA, dns.RcodeSuccess, "127.0.0.1"},
		{"below localhost", "x.localhost.", dns.TypeA, dns.RcodeSuccess, "127.0.0.1"},
		{"not localhost", "xlocalhost.", dns.TypeA, dns.RcodeNameError, none},
		{"localhost AAAA", "localhost.", dns.TypeAAAA, dns.RcodeSuccess, none},
		{"bare", "printer.", dns.TypeA, dns.RcodeNameError, none},
		{"bare AAAA", "printer.", dns.TypeAAAA, dns.RcodeNameError, none},
		{"bare, allowed", "intranet.", dns.TypeA, dns.RcodeSuccess, first},
		{"bare, allowed, AAAA", "intranet.", dns.TypeAAAA, dns.RcodeSuccess, none},
		{"search domain", "deny.example.test.localdomain.", dns.TypeA, dns.RcodeNameError, none},
		{"onion", "x.onion.", dns.TypeA, dns.RcodeNameError, none},
		{"reverse of a stranger", "1.100.51.198.in-addr.arpa.", dns.TypePTR, dns.RcodeNameError, none},
		{"space", `a\ b.example.test.`, dns.TypeA, dns.RcodeFormatError, none},
		{"NUL", `allow.example.test\000.`, dns.TypeA, dns.RcodeFormatError, none},
		{"dot in a label", `allow\.example.test.`, dns.TypeA, dns.RcodeFormatError, none},
		{"wildcard", "*.example.test.", dns.TypeA, dns.RcodeFormatError, none},
		{"253 bytes", strings.Repeat("a.", 124) + "deny5.", dns.TypeA, dns.RcodeSuccess, Refusal.String()},
	} {
		for _, network := range []string{"udp", "tcp"} {
			t.Run(tt.name+" "+network, func(t *testing.T) {
				l := serve(t)
				q := question(tt.host, tt.qtype)
				r, err := l.ask(t, network, "127.0.1.1", q)
				if err != nil {
					t.Fatal(err)
				}
				if r.Rcode != tt.rcode {
					t.Errorf("rcode %s, want %s", dns.RcodeToString[r.Rcode], dns.RcodeToString[tt.rcode])
				}
				if len(r.Question) != 1 || r.Question[0].Name != tt.host {
					t.Errorf("question %v does not repeat %q", r.Question, tt.host)
				}
				got := none
				if len(r.Answer) > 0 {
					got = strings.TrimPrefix(r.Answer[0].String(), r.Answer[0].Header().String())
				}
				if got != tt.want {
					t.Errorf("answer %q, want %q", got, tt.want)
				}
				for _, rr := range r.Answer {
					if rr.Header().Name != tt.host || rr.Header().Ttl > 60 {
						t.Errorf("record %v", rr)
					}
				}
			})
		}
	}
}

func TestReverse(t *testing.T) {
	l := serve(t)
	if _, err := l.ask(t, "udp", "127.0.1.1", question("allow.example.test.", dns.TypeA)); err != nil {
		t.Fatal(err)
	}
	ptr, err := dns.ReverseAddr(address(0).String())
	if err != nil {
		t.Fatal(err)
	}
	r, err := l.ask(t, "udp", "127.0.1.1", question(ptr, dns.TypePTR))
	if err != nil || len(r.Answer) != 1 || r.Answer[0].(*dns.PTR).Ptr != "allow.example.test." {
		t.Errorf("got %v, %v", r, err)
	}
	if r, err = l.ask(t, "udp", "127.0.1.2", question(ptr, dns.TypePTR)); err != nil || len(r.Answer) != 0 {
		t.Errorf("another sandbox learned the name: %v, %v", r, err)
	}
}

func TestExtensions(t *testing.T) {
	for _, tt := range []struct {
		name  string
		edit  func(*dns.Msg)
		rcode int
		opt   bool
	}{
		{"none", func(*dns.Msg) {}, dns.RcodeSuccess, false},
		{"version 0", func(m *dns.Msg) { m.SetEdns0(4096, true) }, dns.RcodeSuccess, true},
		{"version 1", func(m *dns.Msg) { m.SetEdns0(4096, false); m.IsEdns0().SetVersion(1) }, dns.RcodeBadVers, true},
		{"twice", func(m *dns.Msg) { m.SetEdns0(4096, false); m.Extra = append(m.Extra, m.Extra[0]) }, dns.RcodeFormatError, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := serve(t)
			q := question("allow.example.test.", dns.TypeA)
			tt.edit(q)
			r, err := l.ask(t, "udp", "127.0.1.1", q)
			if err != nil {
				t.Fatal(err)
			}
			o := r.IsEdns0()
			if r.Rcode != tt.rcode || (o != nil) != tt.opt {
				t.Fatalf("got %v", r)
			}
			if o != nil && (o.Version() != 0 || o.UDPSize() != ednsSize || o.Do() != q.IsEdns0().Do()) {
				t.Errorf("got %v", o)
			}
		})
	}
}

func TestMalformedPackets(t *testing.T) {
	good, err := question("allow.example.test.", dns.TypeA).Pack()
	if err != nil {
		t.Fatal(err)
	}
	edit := func(f func([]byte)) []byte { b := bytes.Clone(good); f(b); return b }
	for _, tt := range []struct {
		name   string
		packet []byte
		rcode  int // -1: no answer
	}{
		{"empty", nil, -1},
		{"half a header", good[:11], -1},
		{"an answer", edit(func(b []byte) { b[2] |= 0x80 }), -1},
		{"header only", good[:12], dns.RcodeFormatError},
		{"cut question", good[:len(good)-3], dns.RcodeFormatError},
		{"no question", edit(func(b []byte) { b[5] = 0 }), dns.RcodeFormatError},
		{"two questions", append(edit(func(b []byte) { b[5] = 2 }), good[12:]...), dns.RcodeFormatError},
		{"65535 questions", edit(func(b []byte) { b[4], b[5] = 0xff, 0xff }), dns.RcodeFormatError},
		{"answers", edit(func(b []byte) { b[7] = 1 }), dns.RcodeFormatError},
		{"authorities", edit(func(b []byte) { b[9] = 1 }), dns.RcodeFormatError},
		{"name that points at itself", append(bytes.Clone(good[:12]), 0xc0, 12, 0, 1, 0, 1), dns.RcodeFormatError},
		{"name of 300 bytes", append(append(bytes.Clone(good[:12]), bytes.Repeat([]byte("\x3b"+strings.Repeat("a", 59)), 5)...), 0, 0, 1, 0, 1), dns.RcodeFormatError},
		{"UPDATE", edit(func(b []byte) { b[2] = dns.OpcodeUpdate << 3 }), dns.RcodeNotImplemented},
		{"NOTIFY", edit(func(b []byte) { b[2] = dns.OpcodeNotify << 3 }), dns.RcodeNotImplemented},
		{"CHAOS", edit(func(b []byte) { b[len(b)-1] = dns.ClassCHAOS }), dns.RcodeRefused},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t)
			who, _ := identify(netip.MustParseAddr("127.0.1.1"))
			got := l.answer(t.Context(), who, netip.Addr{}, tt.packet)
			if tt.rcode < 0 {
				if got != nil {
					t.Errorf("answered %x", got)
				}
				return
			}
			var m dns.Msg
			if err := m.Unpack(got); err != nil {
				t.Fatalf("%x: %v", got, err)
			}
			if m.Rcode != tt.rcode || !m.Response || m.Id != binary.BigEndian.Uint16(tt.packet) || len(m.Answer) != 0 {
				t.Errorf("got %v", &m)
			}
		})
	}
}

func TestStrangersGetNoAnswer(t *testing.T) {
	l := serve(t)
	for _, network := range []string{"udp", "tcp"} {
		c := dns.Client{Net: network, Timeout: 300 * time.Millisecond}
		if r, _, err := c.ExchangeContext(t.Context(), question("allow.example.test.", dns.TypeA), l.addr); err == nil {
			t.Errorf("%s: a stranger got %v", network, r)
		}
	}
	if _, err := l.ask(t, "udp", "127.0.1.1", question("allow.example.test.", dns.TypeA)); err != nil {
		t.Errorf("a sandbox after a stranger: %v", err)
	}
}

func TestRateIsLimitedBySandbox(t *testing.T) {
	for _, local := range []net.Addr{&net.UDPAddr{IP: net.ParseIP("127.0.1.1")}, &net.TCPAddr{IP: net.ParseIP("127.0.1.1")}} {
		t.Run(local.Network(), func(t *testing.T) {
			l := serve(t)
			c, err := (&net.Dialer{LocalAddr: local}).Dial(local.Network(), l.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			conn := &dns.Conn{Conn: c}
			refused := 0
			for range queryBurst + 200 {
				if err := conn.WriteMsg(question("allow.example.test.", dns.TypeA)); err != nil {
					t.Fatal(err)
				}
				r, err := conn.ReadMsg()
				if err != nil {
					t.Fatal(err)
				}
				if r.Rcode == dns.RcodeRefused {
					refused++
				}
			}
			if refused == 0 {
				t.Error("no question was refused")
			}
			r, err := l.ask(t, local.Network(), "127.0.1.2", question("allow.example.test.", dns.TypeA))
			if err != nil || r.Rcode != dns.RcodeSuccess {
				t.Errorf("another sandbox paid for it: %v, %v", r, err)
			}
		})
	}
}

func TestConnectionsAreBoundedBySandbox(t *testing.T) {
	l := serve(t)
	open := func(from string) (net.Conn, bool) {
		c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).Dial("tcp", l.addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		conn := &dns.Conn{Conn: c}
		c.SetDeadline(time.Now().Add(2 * time.Second))
		if err := conn.WriteMsg(question("allow.example.test.", dns.TypeA)); err != nil {
			return c, false
		}
		_, err = conn.ReadMsg()
		return c, err == nil
	}
	var first net.Conn
	for i := range maxConnsOfSandbox {
		c, ok := open("127.0.1.1")
		if !ok {
			t.Fatalf("connection %d was refused", i+1)
		}
		first = c
	}
	if _, ok := open("127.0.1.1"); ok {
		t.Errorf("connection %d was served", maxConnsOfSandbox+1)
	}
	if _, ok := open("127.0.1.2"); !ok {
		t.Error("another sandbox was refused")
	}
	first.Close()
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if _, ok := open("127.0.1.1"); ok {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("a closed connection still counts")
		}
	}
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
	l := newLab(t)
	who, _ := identify(netip.MustParseAddr("127.0.1.1"))
	for i := range 1000 {
		packet, err := question(fmt.Sprintf("n%d.evil.test.", i), dns.TypeA).Pack()
		if err != nil {
			t.Fatal(err)
		}
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

func TestServeEndsWithOpenConnections(t *testing.T) {
	l := serve(t)
	c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP("127.0.1.1")}}).Dial("tcp", l.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.Write([]byte{0, 99, 1}) // a message that never comes
	time.Sleep(50 * time.Millisecond)
	begin := time.Now()
	l.stop()
	if d := time.Since(begin); d > 2*time.Second {
		t.Errorf("took %v", d)
	}
	c.SetReadDeadline(time.Now().Add(2 * time.Second))
	if _, err := io.ReadAll(c); errors.Is(err, context.DeadlineExceeded) {
		t.Error("the connection stayed open")
	}
}

func TestMetrics(t *testing.T) {
	l := serve(t)
	for _, name := range []string{"allow.example.test.", "evil.example.test.", "evil.example.test."} {
		if _, err := l.ask(t, "udp", "127.0.1.1", question(name, dns.TypeA)); err != nil {
			t.Fatal(err)
		}
	}
	families, err := l.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			got[f.GetName()+" "+m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
		}
	}
	if got["sallyport_dns_queries_total synthetic"] != 1 || got["sallyport_dns_queries_total refused"] != 2 {
		t.Errorf("got %v", got)
	}
}

// FuzzAnswer holds that no packet makes the server panic, answer at length, or
// give an address to a name that is denied.
func FuzzAnswer(f *testing.F) {
	for _, m := range []*dns.Msg{
		question("allow.example.test.", dns.TypeA), question("deny.example.test.", dns.TypeA),
		question("16.0.18.198.in-addr.arpa.", dns.TypePTR), question("x.", dns.TypeANY),
		question("allow.example.test.", dns.TypeAAAA).SetEdns0(512, true),
	} {
		b, err := m.Pack()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	l := newLab(f)
	who, _ := identify(netip.MustParseAddr("127.0.1.1"))
	f.Fuzz(func(t *testing.T, packet []byte) {
		got := l.answer(t.Context(), who, netip.Addr{}, packet)
		if got == nil {
			return
		}
		if len(got) > dns.MinMsgSize {
			t.Errorf("answer of %d bytes", len(got))
		}
		var m dns.Msg
		if err := m.Unpack(got); err != nil {
			t.Fatalf("answer %x: %v", got, err)
		}
		if !bytes.Equal(got[:2], packet[:2]) || !m.Response {
			t.Errorf("%x is no answer to %x", got, packet)
		}
		for _, rr := range m.Answer {
			a, ok := rr.(*dns.A)
			if !ok {
				continue
			}
			addr, _ := netip.AddrFromSlice(a.A)
			if addr.IsLoopback() || addr == Refusal {
				continue
			}
			name, ok := l.table.Name(who.ID, addr)
			if !ok || !strings.EqualFold(name+".", a.Hdr.Name) {
				t.Errorf("%s got %v, which stands for %q", a.Hdr.Name, addr, name)
			}
		}
	})
}

func BenchmarkAnswer(b *testing.B) {
	l := newLab(b)
	who, _ := identify(netip.MustParseAddr("127.0.1.1"))
	packet, err := question("allow.example.test.", dns.TypeA).Pack()
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		l.answer(b.Context(), who, netip.Addr{}, packet)
	}
}
