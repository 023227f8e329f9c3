package bypass

import (
	"encoding/base32"
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"sallyport/internal/test/must"
)

// lookup is a packet for the sandboxes' resolver. Whatever it is, nothing of it
// goes further.
type lookup struct {
	name string
	tcp  bool
	sent []byte
	want string // the code and the records, or "silence"
}

// Addresses, in the answers of the resolver.
const (
	synthetic = "synthetic" // stands for the name
	refusal   = "198.18.0.1"
)

// question packs one question as it is, and lets a case do more to it.
func question(name string, kind uint16, edit ...func(*dns.Msg)) []byte {
	m := new(dns.Msg).SetQuestion(dns.Fqdn(name), kind)
	m.Id = 7
	for _, f := range edit {
		f(m)
	}
	b, err := m.Pack()
	if err != nil {
		panic(fmt.Sprint(name, ": ", err))
	}
	return b
}

// bent is a good question with its bytes changed.
func bent(change func([]byte) []byte) []byte { return change(question(api, dns.TypeA)) }

var (
	payload = base32.HexEncoding.WithPadding(base32.NoPadding).EncodeToString([]byte("thirty bytes of somebody's data"))
	cookie  = func(m *dns.Msg) {
		m.SetEdns0(4096, true)
		m.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "7365637265742121"}, &dns.EDNS0_LOCAL{Code: 65001, Data: []byte("exfiltrated")}}
	}
)

var lookups = []lookup{
	{name: "data below an unlisted name", sent: question(payload+".unlisted.example.test", dns.TypeA), want: "NOERROR " + refusal},
	{name: "data below a denied name", sent: question(payload+".denied.example.test", dns.TypeA), want: "NOERROR " + refusal},
	{name: "data below an allowed wildcard", sent: question(payload+".many.example.test", dns.TypeA), want: "NOERROR " + synthetic},
	{name: "data in TXT", sent: question(payload+".unlisted.example.test", dns.TypeTXT), want: "NOERROR"},
	{name: "data in NULL", sent: question(payload+".unlisted.example.test", dns.TypeNULL), want: "NOERROR"},
	{name: "data in MX", sent: question(payload+".unlisted.example.test", dns.TypeMX), want: "NOERROR"},
	{name: "data in SRV", sent: question("_x._tcp."+payload+".unlisted.example.test", dns.TypeSRV), want: "NOERROR"},
	{name: "data below an allowed name", sent: question(payload+".api.example.test", dns.TypeA), want: "NOERROR " + refusal},
	{name: "0x20 on a denied name", sent: question("DeNiEd.eXaMpLe.TeSt", dns.TypeA), want: "NOERROR " + refusal},
	{name: "0x20 on an allowed name", sent: question("aPi.ExAmPlE.tEsT", dns.TypeA), want: "NOERROR " + synthetic},
	{name: "AAAA", sent: question(api, dns.TypeAAAA), want: "NOERROR"},
	{name: "HTTPS, with its ECH keys and addresses", sent: question(api, dns.TypeHTTPS), want: "NOERROR"},
	{name: "SVCB", sent: question(api, dns.TypeSVCB), want: "NOERROR"},
	{name: "CNAME", sent: question(api, dns.TypeCNAME), want: "NOERROR"},
	{name: "ANY", sent: question(api, dns.TypeANY), want: "NOERROR HINFO"},
	{name: "ANY of a denied name", sent: question(denied, dns.TypeANY), want: "NOERROR HINFO"},
	{name: "AXFR", tcp: true, sent: question("example.test", dns.TypeAXFR), want: "REFUSED"},
	{name: "a type that nobody knows", sent: question(payload+".unlisted.example.test", 65280), want: "NOERROR"},
	{name: "EDNS with data in its options", sent: question(api, dns.TypeA, cookie), want: "NOERROR " + synthetic},
	{name: "EDNS with a client's subnet", sent: question(api, dns.TypeA, func(m *dns.Msg) {
		m.SetEdns0(4096, false)
		m.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET, Family: 1, SourceNetmask: 32, Address: []byte{203, 0, 113, 9}}}
	}), want: "NOERROR " + synthetic},
	{name: "EDNS of another version", sent: question(api, dns.TypeA, func(m *dns.Msg) { m.SetEdns0(4096, false); m.IsEdns0().SetVersion(1) }), want: "BADVERS"},
	{name: "by TCP", tcp: true, sent: question(api, dns.TypeA), want: "NOERROR " + synthetic},
	{name: "data by TCP", tcp: true, sent: question(payload+".unlisted.example.test", dns.TypeTXT), want: "NOERROR"},
	{name: "two questions", sent: bent(func(b []byte) []byte { b[5] = 2; return append(b, b[12:]...) }), want: "FORMERR"},
	{name: "an answer in the question", sent: bent(func(b []byte) []byte { b[7] = 1; return b }), want: "FORMERR"},
	{name: "a response", sent: bent(func(b []byte) []byte { b[2] |= 0x80; return b }), want: "silence"},
	{name: "UPDATE", sent: bent(func(b []byte) []byte { b[2] = dns.OpcodeUpdate << 3; return b }), want: "NOTIMP"},
	{name: "NOTIFY", sent: bent(func(b []byte) []byte { b[2] = dns.OpcodeNotify << 3; return b }), want: "NOTIMP"},
	{name: "CHAOS", sent: bent(func(b []byte) []byte { b[len(b)-1] = dns.ClassCHAOS; return b }), want: "REFUSED"},
	{name: "a name that points at itself", sent: bent(func(b []byte) []byte { return append(b[:12], 0xc0, 12, 0, 1, 0, 1) }), want: "FORMERR"},
	{name: "a name of 300 bytes", sent: bent(func(b []byte) []byte {
		return append(append(b[:12], strings.Repeat("\x3b"+strings.Repeat("a", 59), 5)...), 0, 0, 1, 0, 1)
	}), want: "FORMERR"},
	{name: "a label of 64 bytes", sent: bent(func(b []byte) []byte {
		return append(append(append(b[:12], 0x40), strings.Repeat("a", 64)...), 0, 0, 1, 0, 1)
	}), want: "FORMERR"},
	{name: "a name of 253 bytes", sent: question(strings.Repeat(strings.Repeat("a", 59)+".", 3)+strings.Repeat("b", 51)+".unlisted.example.test", dns.TypeA), want: "NOERROR " + refusal},
	{name: "a NUL in a name", sent: question(`api.example.test\000.unlisted.example.test`, dns.TypeA), want: "FORMERR"},
	{name: "a dot in a label", sent: question(`api\.example.test`, dns.TypeA), want: "FORMERR"},
	{name: "bytes above ASCII in a name", sent: question(`b\195\188cher.example.test`, dns.TypeA), want: "FORMERR"},
	{name: "a decimal address", sent: question("3325256714", dns.TypeA), want: "NXDOMAIN"},
	{name: "an address as a name", sent: question(upstreamAddress, dns.TypeA), want: "NOERROR " + refusal},
	{name: "rebinding by name", sent: question("169.254.169.254.nip.io", dns.TypeA), want: "NOERROR " + refusal},
	{name: "the name of the metadata service", sent: question("metadata.google.internal", dns.TypeA), want: "NOERROR " + refusal},
	{name: "PTR of a stranger", sent: question("10.100.51.198.in-addr.arpa", dns.TypePTR), want: "NXDOMAIN"},
	{name: "half a packet", sent: question(api, dns.TypeA)[:20], want: "FORMERR"},
}

func testLookups(t *testing.T, r *rig) {
	for _, l := range lookups {
		t.Run(l.name, func(t *testing.T) {
			before := r.upstream.contacts(t)
			limit := defaultLimit
			if l.want == "silence" {
				limit = lookTime
			}
			if got := r.a.look(t, limit, l.tcp, l.sent); got != l.want {
				t.Errorf("got %q, want %q", got, l.want)
			}
			if got, want := r.a.look(t, defaultLimit, l.tcp, question(api, dns.TypeA)), "NOERROR "+synthetic; got != want {
				t.Errorf("the legal one: got %q, want %q", got, want)
			}
			if n := r.upstream.contacts(t); n != before {
				t.Errorf("this reached a server: %v", r.upstream.opened.Seen()[before:])
			}
		})
	}
	for _, tcp := range []bool{false, true} {
		t.Run(fmt.Sprintf("another resolver, TCP %t", tcp), func(t *testing.T) {
			before := r.upstream.contacts(t)
			j := Job{Network: "udp", Address: upstreamAddress + ":53", Limit: time.Second, Steps: []Step{{Send: [][]byte{question(api, dns.TypeA)}, Ends: 1}}}
			if tcp {
				j.Network, j.Limit = "tcp", 4*time.Second
				j.Steps[0].Send = [][]byte{prefixed(question(api, dns.TypeA))}
			}
			if res := r.a.do(t, j); len(res.Data) > 0 {
				t.Errorf("it answers: %q", res.Data)
			}
			if n := r.upstream.contacts(t); n != before {
				t.Errorf("this reached it: %v", r.upstream.opened.Seen()[before:])
			}
			if tcp {
				must.Soon(t, "an event of it", func() bool { return len(r.a.events(t)) > 0 })
			}
		})
	}
}

func prefixed(packet []byte) []byte {
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(packet))), packet...)
}

// How long an answer of the resolver is waited for.
const (
	lookTime     = 3 * time.Second  // where there may be none
	defaultLimit = 20 * time.Second // where there is one
)

// look asks the sandboxes' resolver, and says what it answers.
func (s *sandbox) look(t *testing.T, limit time.Duration, tcp bool, packet []byte) string {
	t.Helper()
	j := Job{Network: "udp", Address: gatewayAddress + ":53", Limit: limit, Steps: []Step{{Send: [][]byte{packet}, Ends: 1}}}
	if tcp {
		j.Network, j.Steps[0].Send = "tcp", [][]byte{prefixed(packet)}
	}
	data := s.do(t, j).Data
	if tcp && len(data) > 2 {
		data = data[2:]
	}
	if len(data) == 0 {
		return "silence"
	}
	var m dns.Msg
	if err := m.Unpack(data); err != nil {
		return err.Error()
	}
	got := []string{dns.RcodeToString[m.Rcode]}
	if m.Rcode == dns.RcodeBadVers {
		got[0] = "BADVERS"
	}
	var q dns.Msg
	if q.Unpack(packet) == nil && len(m.Question) == 1 && m.Question[0] != q.Question[0] {
		got = append(got, "to another question")
	}
	for _, rr := range m.Answer {
		a, ok := rr.(*dns.A)
		switch {
		case !ok:
			got = append(got, dns.TypeToString[rr.Header().Rrtype])
		case a.A.String() != refusal && netip.MustParsePrefix("198.18.0.0/15").Contains(netip.MustParseAddr(a.A.String())):
			got = append(got, synthetic)
		default:
			got = append(got, a.A.String())
		}
	}
	return strings.Join(got, " ")
}
