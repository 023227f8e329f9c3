package validate

import (
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"sallyport/policy"
	"sallyport/policy/finding"
	"sallyport/policy/rule"
)

// proxy checks the keys of an upstream that are about its proxy.
func (v *validator) proxy(path string, u *policy.Upstream) {
	if u.Proxy == "" {
		for _, k := range []struct{ key, value string }{
			{"proxyAuthRef", u.ProxyAuthRef}, {"proxyRoots", u.ProxyRoots}, {"resolve", u.Resolve},
		} {
			if k.value != "" {
				v.say(finding.BadUpstream, path+"."+k.key, "is of no use without a proxy", "write proxy: http://proxy.example.com:3128, or remove it")
			}
		}
		return
	}
	p, err := policy.ParseProxy(u.Proxy)
	if err != nil {
		message, fix, _ := strings.Cut(err.Error(), "; ")
		v.say(finding.BadUpstream, path+".proxy", message, fix)
		return
	}
	a, _ := netip.ParseAddr(p.Host)
	if (a.IsPrivate() || a.IsLoopback() || a.IsLinkLocalUnicast()) && !named(u.Addresses, a) {
		v.say(finding.BadUpstream, path+".proxy", fmt.Sprintf("%s is not a public address, and is not dialled unless it is named", a), fmt.Sprintf("write addresses: [%q]", a))
	}
	if u.ProxyRoots != "" && p.Scheme != policy.ProxyHTTPS {
		v.say(finding.BadUpstream, path+".proxyRoots", "is of no use to a proxy without TLS", "write proxy: https://"+p.Address()+", or remove it")
	}
	if u.Resolve != "" && u.Resolve != policy.ResolveProxy {
		v.say(finding.BadUpstream, path+".resolve", fmt.Sprintf("%q is nobody who could look names up", u.Resolve), "write proxy, or leave it out for the gateway")
	}
	if u.ProxyAuthRef == "" {
		return
	}
	v.reference(path+".proxyAuthRef", u.ProxyAuthRef)
	for i, c := range v.doc.Credentials {
		if c.Name == u.ProxyAuthRef && c.Exchange != nil {
			v.bad(fmt.Sprintf("credentials[%d].exchange", i), "has no username and password for a proxy", "remove it, or name another credential with proxyAuthRef")
		}
		if vault := c.Source.Vault; c.Name == u.ProxyAuthRef && vault != nil && vault.Field != "" {
			v.say(finding.BadCredential, fmt.Sprintf("credentials[%d].source.vault.field", i), "picks one field, and a proxy asks for username and password", "remove it")
		}
	}
	if said := p.String() + " " + u.ProxyAuthRef; p.Scheme != policy.ProxyHTTPS && !a.IsLoopback() && !v.warned[said] {
		v.warned[said] = true
		v.say(finding.LoginInClear, path+".proxyAuthRef", fmt.Sprintf("crosses the network to %s in the clear", p.Address()), "write an https:// proxy if there is one")
	}
}

// resolve checks that only names which a rule spells out are left to a proxy:
// nobody classifies the address that it finds.
func (v *validator) resolve(path string, u *policy.Upstream, d rule.Destination) {
	if u == nil || u.Resolve != policy.ResolveProxy || d.Kind == rule.ExactHost {
		return
	}
	fix := "write the whole name of each host, one to a rule"
	if d.Kind == rule.AddressRange {
		fix = "remove it: an address is not looked up"
	}
	v.say(finding.BadUpstream, path+".upstream.resolve", fmt.Sprintf("%s is not one name, and what a proxy resolves is not checked", d.Key()), fix)
}

// named reports whether an upstream's addresses have a in them.
func named(addresses []string, a netip.Addr) bool {
	return slices.ContainsFunc(addresses, func(s string) bool {
		if one, err := netip.ParseAddr(s); err == nil {
			return one.Unmap() == a
		}
		p, err := netip.ParsePrefix(s)
		return err == nil && p.Contains(a)
	})
}

func (v *validator) upstream(path string, u *policy.Upstream) {
	if u == nil {
		return
	}
	v.proxy(path, u)
	for i, a := range u.Addresses {
		if _, err := netip.ParseAddr(a); err == nil {
			continue
		}
		if p, err := netip.ParsePrefix(a); err != nil {
			v.say(finding.BadUpstream, fmt.Sprintf("%s.addresses[%d]", path, i), fmt.Sprintf("%q is neither an IP address nor a CIDR prefix", a), "write one as 10.20.0.7 or 10.20.0.0/16")
		} else if p != p.Masked() {
			v.say(finding.BadUpstream, fmt.Sprintf("%s.addresses[%d]", path, i), fmt.Sprintf("%q has bits set beyond its length", a), "write "+p.Masked().String())
		}
	}
	if u.Resolver == "" {
		return
	}
	host, port, err := net.SplitHostPort(u.Resolver)
	if n, perr := strconv.ParseUint(port, 10, 16); err != nil || perr != nil || n == 0 || host == "" {
		v.say(finding.BadUpstream, path+".resolver", fmt.Sprintf("%q is not host:port", u.Resolver), "write one as 10.20.0.53:53")
	}
}

// upstreams finds rules that say different things about how one destination is reached.
func (v *validator) upstreams() {
	byDestination := map[string][]*rule.Rule{}
	for i := range v.rules {
		r := &v.rules[i]
		if r.Upstream == nil {
			continue
		}
		key := r.Destination.Key()
		for _, o := range byDestination[key] {
			if meet(o.Ports, r.Ports) && selectorsMeet(o.Sandboxes, r.Sandboxes) && !reflect.DeepEqual(o.Upstream, r.Upstream) {
				v.say(finding.BadUpstream, r.Path+".upstream",
					fmt.Sprintf("differs from that of the rule %s (%s), which is for the same destination", o.Name, o.Path),
					"write it in one of the two: a rule without upstream takes the other's")
				break
			}
		}
		byDestination[key] = append(byDestination[key], r)
	}
}
