package bypass

import (
	"strings"
	"testing"
)

// unspoken is bytes of no protocol that the gateway reads.
var unspoken = []byte("\x00\x01 exfiltrated\n")

// raws sends such bytes.
func raws(to string) visit {
	return visit{to: to, plain: true, steps: []Step{{Send: [][]byte{unspoken}, Ends: 1}}}
}

const (
	other8080    = other + ":8080"
	rawHost      = "raw.example.test"
	legalTunnel  = "GET pinned.example.test /v1/x none"
	legalRawSaw  = `RAW raw.example.test "\x00\x01 exfiltrated\n"`
	legalOddPort = "GET other.example.test:8080 /v1/x none"
)

// Traffic that the gateway does not read, and where: a tunnel by its name and to its port
// alone, other protocols by a name that a rule tunnels, plain HTTP on any port, HTTP/2 without
// TLS by prior knowledge.
var others = []attempt{
	tunnelled("a tunnel, SNI of a denied host", ask(get(denied, "/v1/x")).at(pinned+":443").with(Handshake{Name: denied}), "403", "deny name"),
	tunnelled("a tunnel, SNI of an allowed host", ask(get(api, "/v1/x")).at(pinned+":443").with(Handshake{Name: api}), "403", "deny name"),
	tunnelled("a tunnel to another port", ask(get(pinned+":8443", "/v1/x")).at(pinned+":8443"), "403", "deny -"),
	tunnelled("a tunnel's name in SNI, to its bare address", ask(get(pinned, "/v1/x")).at(upstreamAddress+":443").with(Handshake{Name: pinned}), "403", "deny -"),
	tunnelled("a tunnel's name in SNI, at the address of a denied name", ask(get(pinned, "/v1/x")).at(denied+":443").with(Handshake{Name: pinned}), "403", "deny stale-name"),
	tunnelled("a tunnel, ECH with a denied host outside", visit{to: pinned + ":443", tls: &Handshake{Name: pinned, ECH: echConfig(denied)}, speak: HTTP1}, "no handshake", "deny name"),

	spoken("another protocol by a bare address", raws(upstreamAddress+":2222"), "closed", "deny -"),
	spoken("another protocol by an address that stands for nothing", raws("198.19.200.1:2222"), "closed", "deny -"),
	spoken("another protocol by a denied name", raws(denied+":2222"), "closed", "deny name"),
	spoken("another protocol by an unlisted name", raws(unlisted+":2222"), "closed", "deny name"),
	spoken("another protocol by a name that may speak HTTP", raws(other+":2222"), "closed", "deny -"),
	spoken("another protocol to another port", raws(rawHost+":2223"), "closed", "deny -"),
	spoken("TLS of another name where another protocol may go", ask(get(denied, "/v1/x")).at(rawHost+":2222").with(Handshake{Name: denied}), "403", "deny name"),

	{name: "plain HTTP on another port, Host of a denied host", sent: ask(get(denied, "/v1/x")).at(other8080).bare(), want: "421", log: "deny host",
		legal: ask(get(other8080, "/v1/x")).at(other8080).bare(), legalSaw: legalOddPort},
	{name: "plain HTTP on another port, to a denied host", sent: ask(get(denied+":8080", "/v1/x")).at(denied + ":8080").bare(), want: "403", log: "deny denied",
		legal: ask(get(other8080, "/v1/x")).at(other8080).bare(), legalSaw: legalOddPort},
	{name: "HTTP/2 without TLS on another port, to a denied host", sent: stream(field{":scheme", "http"}, field{":authority", denied}).at(other8080).bare(), want: "421", log: "deny host",
		legal: stream(field{":scheme", "http"}, field{":authority", other8080}).at(other8080).bare(), legalSaw: legalOddPort},
	{name: "HTTP/2 without TLS, where a credential is", sent: stream(field{":scheme", "http"}).at(api + ":80").bare(), want: "403", log: "deny -",
		legal: stream(field{":scheme", "http"}, field{":authority", other}).at(other + ":80").bare(), legalSaw: "GET other.example.test /v1/x none"},
}

func tunnelled(name string, v visit, want, log string) attempt {
	return attempt{name: name, sent: v, want: want, log: log, legal: ask(get(pinned, "/v1/x")).at(pinned + ":443"), legalSaw: legalTunnel}
}

func spoken(name string, v visit, want, log string) attempt {
	return attempt{name: name, sent: v, want: want, log: log, legal: raws(rawHost + ":2222"), legalWant: `"heard\n"`, legalSaw: legalRawSaw}
}

// testQUIC sends what begins QUIC (RFC 9000, section 17.2.2), and other
// datagrams: the sender is told that nobody is there, so that a client turns to TCP,
// which works, and waits for nothing.
func testQUIC(t *testing.T, r *rig) {
	initial := append([]byte{0xc3, 0, 0, 0, 1, 8}, make([]byte, 1194)...)
	for _, c := range []struct{ name, to string }{
		{"QUIC to an allowed name", api + ":443"},
		{"QUIC to a denied name", denied + ":443"},
		{"QUIC to a bare address", upstreamAddress + ":443"},
		{"QUIC to a name that is tunnelled", pinned + ":443"},
		{"a datagram to an allowed name", other + ":8080"},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := r.upstream.contacts(t)
			res := r.a.do(t, Job{Network: "udp", Address: c.to, Steps: []Step{{Send: [][]byte{initial}, Ends: 1}}})
			if !strings.Contains(res.Error, "refused") || len(res.Data) > 0 {
				t.Errorf("%q after %v, and %q", res.Error, res.Took, res.Data)
			}
			if n := r.upstream.contacts(t); n != before {
				t.Errorf("this reached the upstream: %v", r.upstream.opened.Seen()[before:])
			}
		})
	}
	t.Run("legal", func(t *testing.T) {
		r.a.events(t)
		r.a.try(t, attempt{sent: legal, want: "200", log: "allow api", saw: []string{legalSaw}})
	})
}
