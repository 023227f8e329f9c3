package bypass

import (
	"fmt"
	"testing"
)

// leads are what an allowed name can lead to, in the answers of a DNS server that
// is not ours, while the rule names 198.51.100.10 alone.
var leads = []struct {
	name  string
	addrs []string
}{
	{"loopback", []string{"127.0.0.1"}},
	{"loopback, another", []string{"127.8.8.8"}},
	{"this host", []string{"0.0.0.0"}},
	{"the rest of that network", []string{"0.1.2.3"}},
	{"private, 10", []string{"10.1.2.3"}},
	{"private, 172.16", []string{"172.31.0.1"}},
	{"private, 192.168", []string{"192.168.1.1"}},
	{"link-local", []string{"169.254.7.7"}},
	{"CGNAT", []string{"100.64.0.1"}},
	{"metadata of AWS, Azure, GCP", []string{"169.254.169.254"}},
	{"credentials of ECS", []string{"169.254.170.2"}},
	{"pod identity of EKS", []string{"169.254.170.23"}},
	{"metadata of Alibaba", []string{"100.100.100.200"}},
	{"wire server of Azure", []string{"168.63.129.16"}},
	{"metadata of Oracle", []string{"192.0.0.192"}},
	{"a synthetic address", []string{"198.18.0.16"}},
	{"the address of refusals", []string{"198.18.0.1"}},
	{"the gateway's own listener", []string{gatewayAddress}},
	{"another sandbox", []string{"10.232.0.3"}},
	{"the host's own public address", []string{hostAddress}},
	{"a neighbour of what the rule names", []string{"198.51.100.11"}},
	{"another network of documentation", []string{"203.0.113.9"}},
	{"multicast", []string{"224.0.0.251"}},
	{"broadcast", []string{"255.255.255.255"}},
	{"reserved", []string{"240.0.0.1"}},
	{"IPv6 loopback", []string{"::1"}},
	{"IPv6, any", []string{"::"}},
	{"IPv4 loopback in IPv6", []string{"::ffff:127.0.0.1"}},
	{"IPv4 metadata in IPv6", []string{"::ffff:169.254.169.254"}},
	{"IPv4-compatible loopback", []string{"::127.0.0.1"}},
	{"IPv6 link-local", []string{"fe80::1"}},
	{"IPv6 unique local", []string{"fd12:3456::1"}},
	{"IPv6 site-local", []string{"fec0::1"}},
	{"metadata of AWS by IPv6", []string{"fd00:ec2::254"}},
	{"metadata of GCP by IPv6", []string{"fd20:ce::254"}},
	{"NAT64 of loopback", []string{"64:ff9b::127.0.0.1"}},
	{"NAT64 of metadata", []string{"64:ff9b::169.254.169.254"}},
	{"NAT64 of what the rule names", []string{"64:ff9b::198.51.100.10"}},
	{"NAT64, a network's own", []string{"64:ff9b:1::7f00:1"}},
	{"6to4 of loopback", []string{"2002:7f00:1::1"}},
	{"6to4 of what the rule names", []string{"2002:c633:640a::1"}},
	{"Teredo", []string{"2001:0:4136:e378:8000:63bf:3fff:fdd2"}},
	{"the upstream's other address", []string{upstreamAddress6}},
	{"several, all forbidden", []string{"127.0.0.1", "169.254.169.254", "::1"}},
}

// testLeads has names that policy allows lead elsewhere. Each name has its turn
// at the right address too.
func testLeads(t *testing.T, r *rig) {
	for i, l := range leads {
		name := fmt.Sprintf("n%d.rebound.example.test", i)
		r.upstream.zone.Set(name, addrs(l.addrs...)...)
		t.Run(l.name, func(t *testing.T) {
			v := ask(get(name, "/v1/x")).at(name + ":443")
			r.a.try(t, attempt{sent: v, want: "403", log: "allow rebound, block", looked: true})
			r.upstream.zone.Set(name, addrs(upstreamAddress)...)
			t.Run("legal", func(t *testing.T) {
				r.a.try(t, attempt{sent: v, want: "200", log: "allow rebound", saw: []string{"GET " + name + " /v1/x none"}})
			})
		})
	}
	t.Run("a right address beside wrong ones", func(t *testing.T) {
		const name = "mixed.rebound.example.test"
		r.upstream.zone.Set(name, addrs("127.0.0.1", upstreamAddress, "169.254.169.254")...)
		r.a.try(t, attempt{sent: ask(get(name, "/v1/x")).at(name + ":443"), want: "200", log: "allow rebound", saw: []string{"GET " + name + " /v1/x none"}})
	})
	t.Run("rebinding between two requests", func(t *testing.T) {
		const name = "again.rebound.example.test"
		r.upstream.zone.Set(name, addrs(upstreamAddress)...)
		v := ask(get(name, "/v1/once")).at(name + ":443")
		r.a.try(t, attempt{sent: v, want: "200", log: "allow rebound", saw: []string{"GET " + name + " /v1/once none"}})
		for _, to := range []string{"127.0.0.1", "169.254.169.254", hostAddress} {
			r.upstream.zone.Set(name, addrs(to)...)
			r.a.try(t, attempt{sent: v, want: "403", log: "allow rebound, block", looked: true})
		}
		r.upstream.zone.Set(name, addrs(upstreamAddress)...)
		r.a.try(t, attempt{sent: v, want: "200", log: "allow rebound", saw: []string{"GET " + name + " /v1/once none"}})
	})
}

// plainly is a GET without TLS.
func plainly(to, host string) visit { return ask(get(host, "/v1/x")).at(to).bare() }

// direct is a connection to a bare address, which no rule of this policy allows.
func direct(name string, v visit) attempt {
	return attempt{name: name, sent: v, want: "403", log: "deny -"}
}

// nowhere is an address that the sandbox's network does not have.
func nowhere(name, to string) attempt {
	return attempt{name: name, sent: ask(get(api, "/v1/x")).at(to).with(Handshake{Name: api}), want: "no connection"}
}

// The sandbox connects to addresses instead of names.
var addresses = []attempt{
	direct("an allowed host's address, with its name in SNI", ask(get(api, "/v1/x")).at(upstreamAddress+":443").with(Handshake{Name: api})),
	direct("an allowed host's address, without SNI", ask(get(api, "/v1/x")).at(upstreamAddress+":443").with(Handshake{})),
	direct("an allowed host's address, without TLS", plainly(upstreamAddress+":80", other)),
	direct("an allowed host's address as IPv4 in IPv6", ask(get(api, "/v1/x")).at("[::ffff:198.51.100.10]:443").with(Handshake{Name: api})),
	direct("the host's own public address", plainly(hostAddress+":80", other)),
	direct("the host's metrics, at its public address", plainly(hostAddress+":9464", other)),
	direct("the gateway's own address", plainly(gatewayAddress+":80", other)),
	direct("the host's metrics, at the gateway's address", plainly(gatewayAddress+":9464", gatewayAddress+":9464")),
	direct("the explicit proxy, at the gateway's address", ask("CONNECT api.example.test:443 HTTP/1.1\r\nHost: api.example.test:443\r\n\r\n").at(gatewayAddress+":3128").bare()),
	direct("the explicit proxy, with an absolute target", ask(get(other, "http://other.example.test/v1/x")).at(gatewayAddress+":3128").bare()),
	direct("the metadata address", plainly("169.254.169.254:80", "169.254.169.254")),
	direct("the metadata address of Alibaba", plainly("100.100.100.200:80", "100.100.100.200")),
	direct("an address of the internet", plainly("203.0.113.80:80", other)),
	direct("a synthetic address that stands for nothing", plainly("198.19.200.1:80", other)),
	direct("DNS over TCP at another resolver", plainly(upstreamAddress+":53", other)),
	direct("the address of refusals, with an allowed name", plainly("198.18.0.1:81", unlisted)),
	nowhere("an IPv6 address", "["+upstreamAddress6+"]:443"),
	nowhere("an IPv6 address of NAT64", "[64:ff9b::198.51.100.10]:443"),
	nowhere("an IPv6 address of 6to4", "[2002:c633:640a::1]:443"),
	nowhere("a link-local IPv6 address", "[fe80::1%eth0]:443"),
	nowhere("the metadata address of AWS by IPv6", "[fd00:ec2::254]:80"),
	nowhere("the host's metrics, at loopback", "127.0.0.1:9464"),
	nowhere("the explicit proxy, at loopback", "127.0.0.1:3128"),
	nowhere("an address in decimal", "3325256714:443"),
	nowhere("an address in hexadecimal", "0xc633640a:443"),
	nowhere("a name that does not exist", "nothing.invalid:443"),
}
