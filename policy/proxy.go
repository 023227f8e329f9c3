package policy

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"sallyport/internal/hostname"
)

// Schemes of a Proxy.
const (
	ProxyHTTP   = "http"   // CONNECT (RFC 9110, section 9.3.6)
	ProxyHTTPS  = "https"  // the same over verified TLS
	ProxySOCKS5 = "socks5" // RFC 1928
)

// ResolveProxy is the Upstream.Resolve that leaves names to the proxy.
const ResolveProxy = "proxy"

// Proxy is what Upstream.Proxy says.
type Proxy struct {
	Scheme string
	Host   string // a name in A-labels and lower case, or the text of an IP address
	Port   uint16
}

// Address is host:port.
func (p Proxy) Address() string { return net.JoinHostPort(p.Host, strconv.Itoa(int(p.Port))) }

func (p Proxy) String() string { return p.Scheme + "://" + p.Address() }

// ParseProxy reads an Upstream.Proxy. Its errors say what to write instead, and
// do not repeat a text that may have a password in it.
func ParseProxy(s string) (Proxy, error) {
	if strings.Contains(s, "@") {
		return Proxy{}, errors.New("has a user or password in it; write the URL without, and proxyAuthRef: with the name of a credential")
	}
	scheme, rest, ok := strings.Cut(s, "://")
	if !ok {
		return Proxy{}, fmt.Errorf("%q is not a URL; write one as http://proxy.example.com:3128", s)
	}
	p := Proxy{Scheme: strings.ToLower(scheme)}
	switch p.Scheme {
	case ProxyHTTP, ProxyHTTPS, ProxySOCKS5:
	case "socks5h":
		return Proxy{}, fmt.Errorf("%q is no scheme here; write socks5://, and resolve: proxy if only the proxy can look the name up", scheme)
	default:
		return Proxy{}, fmt.Errorf("%q is no scheme of a proxy; write http, https or socks5", scheme)
	}
	rest = strings.TrimSuffix(rest, "/")
	if strings.ContainsAny(rest, "/?#") {
		return Proxy{}, fmt.Errorf("%q has more than a host and a port; write it as %s://proxy.example.com:3128", s, p.Scheme)
	}
	host, port, err := net.SplitHostPort(rest)
	n, perr := strconv.ParseUint(port, 10, 16)
	if err != nil || perr != nil || n == 0 {
		return Proxy{}, fmt.Errorf("%q has no port from 1 to 65535; write one as %s://proxy.example.com:3128", s, p.Scheme)
	}
	p.Port = uint16(n)
	if a, err := netip.ParseAddr(host); err == nil {
		if a.Zone() != "" {
			return Proxy{}, fmt.Errorf("%q has a zone; write the address without it", s)
		}
		p.Host = a.Unmap().String()
		return p, nil
	}
	p.Host, err = hostname.ASCII(host)
	return p, err
}

// ProxyLogins lists, by the name of a credential, the proxies that a rule logs
// in to with it, as Proxy.String gives them.
func (d Document) ProxyLogins() map[string][]string {
	logins := map[string][]string{}
	for _, u := range d.Upstreams() {
		if u.ProxyAuthRef == "" {
			continue
		}
		p, err := ParseProxy(u.Proxy)
		if err != nil {
			continue // a finding of Validate
		}
		if known := logins[u.ProxyAuthRef]; !slices.Contains(known, p.String()) {
			logins[u.ProxyAuthRef] = append(known, p.String())
		}
	}
	return logins
}

// Upstreams are those that rules name, in the order of the rules.
func (d Document) Upstreams() (list []*Upstream) {
	for _, e := range d.Egress {
		list = append(list, e.Upstream)
	}
	for _, e := range d.EgressAuth {
		list = append(list, e.Upstream)
	}
	return slices.DeleteFunc(list, func(u *Upstream) bool { return u == nil })
}
