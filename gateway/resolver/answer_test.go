package resolver

import (
	"bytes"
	"context"
	"encoding/binary"
	"net/netip"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"sallyport/internal/test/must"
	"sallyport/policy"
)

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
				must.OK(t, err)
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
	must.OK(t, err)
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
			must.OK(t, err)
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
	must.OK(t, err)
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
		{"question without a class", good[:len(good)-2], dns.RcodeFormatError},
		{"question without a type", good[:len(good)-4], dns.RcodeFormatError},
		{"a record that is not there", edit(func(b []byte) { b[11] = 1 }), dns.RcodeFormatError},
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
			l := newServerEnv(t)
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

func BenchmarkAnswer(b *testing.B) {
	l := newServerEnv(b)
	who, _ := identify(netip.MustParseAddr("127.0.1.1"))
	packet, err := question("allow.example.test.", dns.TypeA).Pack()
	must.OK(b, err)
	b.ReportAllocs()
	for b.Loop() {
		l.answer(b.Context(), who, netip.Addr{}, packet)
	}
}

// A name that is not allowed any more has neither address.
func TestNameThatIsNotAllowedAnyMore(t *testing.T) {
	table, err := OpenNameTable(t.TempDir()+"/names", NameTableOptions{})
	must.OK(t, err)
	action := policy.Allow
	s := NewServer(Options{Table: table, Recorder: &journal{}, Decide: func(context.Context, policy.Input) policy.Decision {
		return policy.Decision{Action: action}
	}})
	who, from := policy.Sandbox{ID: "id-1"}, netip.MustParseAddr("127.0.1.1")
	ask := func(name string, kind uint16) string {
		m, _ := s.resolve(t.Context(), who, from, new(dns.Msg).SetQuestion(name, kind))
		if len(m.Answer) == 0 {
			return dns.RcodeToString[m.Rcode]
		}
		return strings.TrimPrefix(m.Answer[0].String(), m.Answer[0].Header().String())
	}
	address := ask("api.example.test.", dns.TypeA)
	reverse, err := dns.ReverseAddr(address)
	must.OK(t, err)
	if name := ask(reverse, dns.TypePTR); name != "api.example.test." {
		t.Errorf("%s is %s", address, name)
	}
	action = policy.Deny
	if a := ask("api.example.test.", dns.TypeA); a != Refusal.String() {
		t.Errorf("the name has the address %s", a)
	}
	if name := ask(reverse, dns.TypePTR); name != "NXDOMAIN" {
		t.Errorf("%s is %s", address, name)
	}
}
