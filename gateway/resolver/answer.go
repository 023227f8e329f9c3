package resolver

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"strings"

	"github.com/miekg/dns"

	"sallyport/internal/hostname"
	"sallyport/policy"
)

const (
	// A look-up is cached briefly, since a policy may change under it.
	syntheticTTL = 60 // seconds
	refusalTTL   = 5  // seconds

	headerSize   = 12   // RFC 1035, 4.1.1
	questionSize = 4    // behind the name, RFC 1035, 4.1.2
	ednsSize     = 1232 // bytes we can take, https://www.dnsflagday.net/2020/
)

// answer returns the answer to a packet, or nil when it deserves none.
func (s *Server) answer(ctx context.Context, who policy.Sandbox, from netip.Addr, packet []byte) []byte {
	q, failure, ok := s.read(packet)
	if !ok {
		return failure
	}
	m, o := s.resolve(ctx, who, from, q)
	s.metrics.count(o)
	return pack(m)
}

// limited answers a sandbox that asks too often.
func (s *Server) limited(packet []byte) []byte {
	q, failure, ok := s.read(packet)
	if !ok {
		return failure
	}
	s.metrics.count(outcomeLimited)
	return pack(reply(q, dns.RcodeRefused))
}

// read returns the one question in a packet, or what to answer instead, which is
// nothing to what is no question: two servers would talk forever.
func (s *Server) read(packet []byte) (q *dns.Msg, failure []byte, ok bool) {
	if len(packet) < headerSize || packet[2]&0x80 != 0 { // QR
		s.metrics.count(outcomeMalformed)
		return nil, nil, false
	}
	fail := func(rcode int) ([]byte, bool) {
		s.metrics.count(outcomeMalformed)
		return bare(packet, rcode), false
	}
	if opcode := int(packet[2]>>3) & 0xf; opcode != dns.OpcodeQuery {
		failure, ok = fail(dns.RcodeNotImplemented)
		return nil, failure, ok
	}
	q = new(dns.Msg)
	// Only one question, and nothing in the sections of an answer.
	if binary.BigEndian.Uint16(packet[4:]) != 1 || binary.BigEndian.Uint32(packet[6:]) != 0 || q.Unpack(packet) != nil || len(q.Question) != 1 {
		failure, ok = fail(dns.RcodeFormatError)
		return nil, failure, ok
	}
	// The library takes a packet that ends early for one with less in it.
	if _, end, err := dns.UnpackDomainName(packet, headerSize); err != nil || end+questionSize > len(packet) || len(q.Extra) != int(binary.BigEndian.Uint16(packet[10:])) {
		failure, ok = fail(dns.RcodeFormatError)
		return nil, failure, ok
	}
	options := 0
	for _, rr := range q.Extra {
		if _, ok := rr.(*dns.OPT); ok {
			options++
		}
	}
	if options > 1 { // RFC 6891, 6.1.1
		failure, ok = fail(dns.RcodeFormatError)
		return nil, failure, ok
	}
	return q, nil, true
}

// bare is an answer of a header only, to what could not be read further.
func bare(packet []byte, rcode int) []byte {
	h := make([]byte, headerSize)
	copy(h, packet[:4])
	h[2] = packet[2]&0x79 | 0x80   // keep opcode and RD, set QR
	h[3] = 0x80 | byte(rcode&0x0f) // RA
	return h
}

// reply is an answer without records. It repeats the question byte for byte,
// since some clients vary its case to be sure who answers.
func reply(q *dns.Msg, rcode int) *dns.Msg {
	m := new(dns.Msg).SetRcode(q, rcode)
	m.RecursionAvailable = true
	m.Compress = true
	if o := q.IsEdns0(); o != nil {
		m.SetEdns0(ednsSize, o.Do())
	}
	return m
}

func pack(m *dns.Msg) []byte {
	b, err := m.Pack()
	if err != nil {
		return nil
	}
	return b
}

// resolve answers a question that could be read.
func (s *Server) resolve(ctx context.Context, who policy.Sandbox, from netip.Addr, q *dns.Msg) (*dns.Msg, outcome) {
	ask := q.Question[0]
	name := strings.ToLower(strings.TrimSuffix(ask.Name, "."))
	if o := q.IsEdns0(); o != nil && o.Version() != 0 {
		return reply(q, dns.RcodeBadVers), outcomeMalformed
	}
	if ask.Qclass != dns.ClassINET {
		return reply(q, dns.RcodeRefused), outcomeUnsupported
	}
	switch ask.Qtype {
	case dns.TypeAXFR, dns.TypeIXFR, dns.TypeMAILA, dns.TypeMAILB, dns.TypeTKEY, dns.TypeTSIG, dns.TypeOPT:
		return reply(q, dns.RcodeRefused), outcomeUnsupported
	}
	if name == "" { // the root
		return reply(q, dns.RcodeSuccess), outcomeEmpty
	}
	if !hostname.Valid(name) {
		return reply(q, dns.RcodeFormatError), outcomeMalformed
	}
	switch {
	case ask.Qtype == dns.TypeANY: // RFC 8482, 4.2
		m := reply(q, dns.RcodeSuccess)
		m.Answer = []dns.RR{&dns.HINFO{Hdr: header(ask, syntheticTTL), Cpu: "RFC8482"}}
		return m, outcomeEmpty
	case ask.Qtype == dns.TypePTR:
		return s.reverse(ctx, who, q, name)
	case loopback(name):
		if ask.Qtype == dns.TypeA {
			return addressed(q, netip.AddrFrom4([4]byte{127, 0, 0, 1}), syntheticTTL), outcomeLocal
		}
		return reply(q, dns.RcodeSuccess), outcomeLocal
	case ask.Qtype != dns.TypeA && exists(name):
		return reply(q, dns.RcodeSuccess), outcomeEmpty
	}
	d := s.o.Decide(ctx, policy.Input{Phase: policy.PhaseDNS, Sandbox: who, Destination: policy.Destination{Host: name}})
	if ctx.Err() != nil { // shutting down: that was no decision
		return reply(q, dns.RcodeServerFailure), outcomeUnsupported
	}
	known := possible(d)
	switch {
	case ask.Qtype != dns.TypeA && known:
		return reply(q, dns.RcodeSuccess), outcomeEmpty
	case ask.Qtype != dns.TypeA:
		return reply(q, dns.RcodeNameError), outcomeRefused
	case known && !s.o.Table.Assigned(who.ID, name) && !s.limits(who.ID).names.Allow():
		return reply(q, dns.RcodeRefused), outcomeLimited
	case known:
		addr, err := s.o.Table.Assign(who.ID, name)
		if err == nil {
			return addressed(q, addr, syntheticTTL), outcomeSynthetic
		}
		d = s.unassigned(who, err, d.Revision)
	}
	s.refusals.add(who, from, name, d)
	if !exists(name) {
		return reply(q, dns.RcodeNameError), outcomeRefused
	}
	return addressed(q, Refusal, refusalTTL), outcomeRefused
}

// possible tells whether some rule could allow a name.
func (s *Server) possible(ctx context.Context, who policy.Sandbox, name string) bool {
	return possible(s.o.Decide(ctx, policy.Input{Phase: policy.PhaseDNS, Sandbox: who, Destination: policy.Destination{Host: name}}))
}

func possible(d policy.Decision) bool {
	return d.Err == nil && (d.Action == policy.Allow || d.Action == policy.Tunnel || d.Action == policy.Approve)
}

// unassigned is the decision about an allowed name that gets no address.
func (s *Server) unassigned(who policy.Sandbox, err error, revision string) policy.Decision {
	d := policy.Decision{Action: policy.Deny, Revision: revision, Rule: "names", RuleType: "floor", Reason: "the table of names cannot be written"}
	if errors.Is(err, ErrTableFull) {
		d.Reason = "the sandbox has looked up too many different names"
	}
	s.complain.Do(func() {
		s.o.Logger.Error("no address for an allowed name", slog.String("sandbox_id", who.ID), slog.Any("error", err))
	})
	return d
}

// reverse tells a sandbox which name an address of its own stands for.
func (s *Server) reverse(ctx context.Context, who policy.Sandbox, q *dns.Msg, name string) (*dns.Msg, outcome) {
	// A name that is allowed no longer has no address either.
	if forward, ok := forward(name); ok {
		if host, ok := s.o.Table.Name(who.ID, forward); ok && s.possible(ctx, who, host) {
			m := reply(q, dns.RcodeSuccess)
			m.Answer = []dns.RR{&dns.PTR{Hdr: header(q.Question[0], syntheticTTL), Ptr: dns.Fqdn(host)}}
			return m, outcomeSynthetic
		}
	}
	return reply(q, dns.RcodeNameError), outcomeEmpty
}

// forward is the address that a name of in-addr.arpa is about (RFC 1035, section 3.5).
func forward(name string) (netip.Addr, bool) {
	text, _ := strings.CutSuffix(name, ".in-addr.arpa")
	a, err := netip.ParseAddr(text)
	if err != nil || !a.Is4() || text == name {
		return netip.Addr{}, false
	}
	b := a.As4()
	return netip.AddrFrom4([4]byte{b[3], b[2], b[1], b[0]}), true
}

func addressed(q *dns.Msg, a netip.Addr, ttl uint32) *dns.Msg {
	m := reply(q, dns.RcodeSuccess)
	m.Answer = []dns.RR{&dns.A{Hdr: header(q.Question[0], ttl), A: net.IP(a.AsSlice())}}
	return m
}

// header is a record's about the question; for ANY the record is HINFO.
func header(ask dns.Question, ttl uint32) dns.RR_Header {
	t := ask.Qtype
	if t == dns.TypeANY {
		t = dns.TypeHINFO
	}
	return dns.RR_Header{Name: ask.Name, Rrtype: t, Class: dns.ClassINET, Ttl: ttl}
}
