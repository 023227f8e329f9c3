package testnet

import (
	"net"
	"net/netip"
	"strings"
	"sync"

	"github.com/miekg/dns"
)

// Zone answers DNS questions with the addresses it was given and keeps the
// questions. Names that it does not have do not exist (NXDOMAIN).
type Zone struct {
	mu      sync.Mutex
	names   map[string][]netip.Addr
	queries []string
}

const maxQueries = 65536

// DNS answers on port 53 of the host, UDP and TCP.
func (h *Host) DNS(names map[string][]netip.Addr) (*Zone, error) {
	z := &Zone{names: map[string][]netip.Addr{}}
	for name, addrs := range names {
		z.Set(name, addrs...)
	}
	packets, err := h.ListenPacket(53)
	if err != nil {
		return nil, err
	}
	streams, err := h.Listen(53)
	if err != nil {
		packets.Close()
		return nil, err
	}
	z.serve(h, packets, streams)
	return z, nil
}

func (z *Zone) serve(h *Host, packets net.PacketConn, streams net.Listener) {
	for _, s := range []*dns.Server{
		{PacketConn: packets, Handler: z},
		{Listener: streams, Handler: z},
	} {
		started, done := make(chan struct{}), make(chan struct{})
		s.NotifyStartedFunc = func() { close(started) }
		go func() {
			defer close(done)
			s.ActivateAndServe()
		}()
		<-started
		h.onClose(func() {
			s.Shutdown()
			<-done
		})
	}
}

// Set gives the name other addresses from now on; without any it exists but
// has none.
func (z *Zone) Set(name string, addrs ...netip.Addr) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.names[key(name)] = addrs
}

// Queries lists "TYPE name" of each question so far, the first 65,536.
func (z *Zone) Queries() []string {
	z.mu.Lock()
	defer z.mu.Unlock()
	return append([]string(nil), z.queries...)
}

func key(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }

// ServeDNS implements dns.Handler.
func (z *Zone) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	m := new(dns.Msg)
	m.SetReply(q)
	m.Authoritative = true
	if len(q.Question) != 1 {
		m.Rcode = dns.RcodeFormatError
		w.WriteMsg(m)
		return
	}
	ask := q.Question[0]
	z.mu.Lock()
	addrs, ok := z.names[key(ask.Name)]
	if len(z.queries) < maxQueries {
		z.queries = append(z.queries, dns.TypeToString[ask.Qtype]+" "+key(ask.Name))
	}
	z.mu.Unlock()
	if !ok {
		m.Rcode = dns.RcodeNameError
	}
	for _, a := range addrs {
		head := dns.RR_Header{Name: ask.Name, Rrtype: ask.Qtype, Class: dns.ClassINET, Ttl: 1}
		switch {
		case a.Is4() && ask.Qtype == dns.TypeA:
			m.Answer = append(m.Answer, &dns.A{Hdr: head, A: a.AsSlice()})
		case a.Is6() && ask.Qtype == dns.TypeAAAA:
			m.Answer = append(m.Answer, &dns.AAAA{Hdr: head, AAAA: a.AsSlice()})
		}
	}
	w.WriteMsg(m)
}
