package config

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"sallyport/internal/hostname"
	"sallyport/internal/image"
	"sallyport/internal/roots"
	"sallyport/policy"
	"sallyport/policy/finding"
	"sallyport/policy/validate"
)

// Validate joins everything that is wrong with c, its policy document included,
// each a [finding.Finding] with the file and line where there is one.
func (c *Config) Validate() error { return joined(c.findings()) }

func (c *Config) findings() []finding.Finding {
	v := &validator{document: c.Document}
	v.network(c.Network)
	v.engine(c.Engine)
	v.pods(c)
	v.images(c.Sandbox)
	v.oneOf("sandbox.runtime", c.Sandbox.Runtime, "runsc", "runc")
	if c.Sandbox.PerTenant < 1 {
		v.fail("sandbox.perTenant", fmt.Sprintf("%d is no bound", c.Sandbox.PerTenant), "write a number from 1, or leave it out for 100")
	}
	if c.Sandbox.Pids < 1 {
		v.fail("sandbox.pids", fmt.Sprintf("%d processes let no sandbox start", c.Sandbox.Pids), "write a number from 1, or leave it out for 4096")
	}
	between(v, "sandbox.pool.size", c.Sandbox.Pool.Size, 0, 64, "from 0 to 64", "write such a number")
	// `sallyport down` waits for it, and for the sandboxes to stop.
	between(v, "gateway.drain", time.Duration(c.Gateway.Drain), time.Second, time.Minute, "from 1s to 1m", "write a time as 30s, or leave it out for 5s")
	between(v, "gateway.found", c.Gateway.Found, 1, 1000, "from 1 to 1000", "write such a number, or leave it out for 5")
	v.proxy(c.Proxy)
	v.inbound(c.Inbound, c.Engine.Kind)
	v.ssh(c.SSH, c.Engine.Kind, c.Expose)
	if c.Metrics.Listen != "off" {
		v.listen("metrics.listen", c.Metrics.Listen)
	}
	v.vault(c.Vault, c.Credentials)
	between(v, "audit.segmentSize", c.Audit.SegmentSize, 1<<20, 4<<30, "from 1 MiB to 4 GiB", "write a number of bytes, as in 67108864")
	v.api(c.API)
	v.remote(c.Remote)
	v.webhooks(c.Webhooks)
	v.sinks(c)
	v.retention(c.Audit)
	v.memory(c)
	if b := c.Policy.Bundle; b != nil {
		v.roots("policy.bundle.roots", b.Roots)
	}
	for i, e := range c.Egress {
		v.upstream(fmt.Sprintf("egress[%d].upstream", i), e.Upstream)
	}
	for i, e := range c.EgressAuth {
		v.upstream(fmt.Sprintf("egressAuth[%d].upstream", i), e.Upstream)
	}
	v.registries(c.Registries, c.Credentials)
	return append(v.findings, validate.Document(c.Document)...)
}

// registries checks that a login goes to one registry by TLS that is verified: the
// engine verifies none of this host's own addresses.
func (v *validator) registries(all []Registry, credentials []policy.Credential) {
	for i, r := range all {
		path := fmt.Sprintf("registries[%d]", i)
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			host = strings.Trim(r.Host, "[]")
		}
		addr, _ := netip.ParseAddr(host)
		switch err := image.CheckRegistry(r.Host); {
		case err != nil:
			v.fail(path+".host", fmt.Sprintf("%q is not a registry", r.Host), "write host or host:port as names of its images begin, and docker.io for Docker Hub")
		case host == "localhost" || addr.IsLoopback():
			v.fail(path+".host", fmt.Sprintf("%q is this host, whose certificate the engine does not verify", r.Host), "give the registry another address")
		case slices.ContainsFunc(all[:i], func(o Registry) bool { return o.Host == r.Host }):
			v.fail(path+".host", fmt.Sprintf("%q is there twice", r.Host), "remove one")
		}
		if !slices.ContainsFunc(credentials, func(c policy.Credential) bool { return c.Name == r.AuthRef }) {
			v.fail(path+".authRef", fmt.Sprintf("no credential is named %q", r.AuthRef), "add it to credentials")
		}
	}
}

func (v *validator) images(s Sandbox) {
	if _, err := image.Parse(s.Image); err != nil {
		v.fail("sandbox.image", fmt.Sprintf("%q is not the name of an image", s.Image), "write one as sallyport/base:bookworm-1")
	}
	for i, p := range s.TenantImages {
		if err := image.CheckPattern(p); err != nil {
			v.fail(fmt.Sprintf("sandbox.tenantImages[%d]", i), err.Error(), "or remove it")
		}
	}
}

type validator struct {
	document policy.Document
	findings []finding.Finding
}

func (v *validator) fail(path, message, fix string) {
	v.findings = append(v.findings, finding.Finding{Kind: finding.BadValue, Position: v.document.Position(path), Path: path, Message: message, Fix: fix})
}

// warn is fail for what may be meant.
func (v *validator) warn(path, message, fix string) {
	v.fail(path, message, fix)
	v.findings[len(v.findings)-1].Severity = finding.Warning
}

func between[N cmp.Ordered](v *validator, path string, n, least, most N, bounds, fix string) {
	if n < least || n > most {
		v.fail(path, fmt.Sprintf("%v is not %s", n, bounds), fix)
	}
}

func (v *validator) oneOf(path, value string, allowed ...string) {
	if slices.Contains(allowed, value) {
		return
	}
	fix := "write " + strings.Join(allowed, " or ")
	if near := finding.Nearest(value, allowed); near != "" {
		fix = "did you mean " + near + "?"
	}
	v.fail(path, fmt.Sprintf("%q is not one of %s", value, strings.Join(allowed, ", ")), fix)
}

func (v *validator) network(n Network) {
	// IFNAMSIZ of linux/if.h is 16, with the terminating zero.
	if len(n.Bridge) > 15 || strings.ContainsAny(n.Bridge, "/: \t") || n.Bridge == "." || n.Bridge == ".." {
		v.fail("network.bridge", fmt.Sprintf("%q is not the name of a device", n.Bridge), "write up to 15 letters and digits")
	}
	switch s := n.Subnet; {
	case !s.Addr().Is4():
		v.fail("network.subnet", fmt.Sprintf("%s is not an IPv4 prefix", s), "write one as 10.231.0.0/16")
	case s != s.Masked():
		v.fail("network.subnet", fmt.Sprintf("%s has bits set beyond its length", s), "write "+s.Masked().String())
	case s.Bits() < 8 || s.Bits() > 28:
		v.fail("network.subnet", fmt.Sprintf("%s is not from /8 to /28", s), "write one as 10.231.0.0/16")
	case s.Overlaps(netip.MustParsePrefix("198.18.0.0/15")):
		v.fail("network.subnet", fmt.Sprintf("%s overlaps 198.18.0.0/15, where names get their addresses", s), "write one as 10.231.0.0/16")
	case s.Addr().IsLoopback() || s.Addr().IsMulticast() || s.Addr().IsLinkLocalUnicast():
		v.fail("network.subnet", fmt.Sprintf("%s cannot hold sandboxes", s), "write a private prefix as 10.231.0.0/16")
	}
}

func (v *validator) engine(e Engine) {
	v.oneOf("engine.kind", e.Kind, "private", "existing", "pods", "none")
	switch {
	case e.Kind == "existing" && e.Host == "":
		v.fail("engine.host", "is missing, and says where the existing engine is", "write unix:///var/run/docker.sock")
	case e.Kind != "existing" && e.Kind != "pods" && e.Host != "":
		v.fail("engine.host", fmt.Sprintf("is of no use to an engine of kind %s", e.Kind), "remove it, or write kind: existing")
	case e.Host != "" && !strings.HasPrefix(e.Host, "unix:///"):
		v.fail("engine.host", fmt.Sprintf("%q is not a unix socket; the engine runs on this machine", e.Host), "write unix:///var/run/docker.sock")
	}
}

func (v *validator) listen(path, s string) (host string, ok bool) {
	host, port, err := net.SplitHostPort(s)
	if n, perr := strconv.ParseUint(port, 10, 16); err != nil || perr != nil || n == 0 {
		v.fail(path, fmt.Sprintf("%q is not host:port", s), "write one as 127.0.0.1:9464")
		return "", false
	}
	return host, true
}

func (v *validator) proxy(p Proxy) {
	if p.Listen == "" {
		if p.Certificate != "" || p.Key != "" {
			v.fail("proxy.listen", "is missing, so the certificate is of no use", "write listen: 0.0.0.0:3128")
		}
		return
	}
	host, ok := v.listen("proxy.listen", p.Listen)
	if !ok {
		return
	}
	if (p.Certificate == "") != (p.Key == "") {
		v.fail("proxy", "has one of certificate and key", "write both")
		return
	}
	addr, err := netip.ParseAddr(host)
	if local := host == "localhost" || err == nil && addr.IsLoopback(); !local && p.Certificate == "" {
		v.fail("proxy.listen", fmt.Sprintf("%s can be reached from other machines, where tokens would pass in the clear", p.Listen), "write certificate and key, or listen on 127.0.0.1")
	}
}

func fromVault(credentials []policy.Credential) bool {
	return slices.ContainsFunc(credentials, func(c policy.Credential) bool { return c.Source.Vault != nil })
}

func (v *validator) vault(c Vault, credentials []policy.Credential) {
	if c.Address == "" {
		if fromVault(credentials) {
			v.fail("vault.address", "is missing, and a credential comes from Vault", "write address: https://vault.example.com:8200")
		}
		return
	}
	u, err := hostname.ParseURL(c.Address)
	if err != nil && strings.Contains(c.Address, "@") {
		v.fail("vault.address", "has a user or password in it", "write it without, and the login under vault.auth")
	} else if err != nil || u.RawQuery != "" {
		v.fail("vault.address", fmt.Sprintf("%q is %v, or has a query", c.Address, hostname.ErrURL), "write one as https://vault.example.com:8200")
	} else if addr, _ := netip.ParseAddr(u.Hostname()); u.Scheme == "http" && !addr.IsLoopback() && u.Hostname() != "localhost" {
		v.fail("vault.address", "sends tokens and secrets in the clear", "write https://"+u.Host)
	}
	if n := strings.Trim(c.Namespace, "/"); n != "" && !policy.VaultPath(n) {
		v.fail("vault.namespace", fmt.Sprintf("%q is not the path of a namespace", c.Namespace), "write one as team/agents")
	}
	v.roots("vault.roots", c.Roots)
	v.vaultAuth(c.Auth)
}

func (v *validator) vaultAuth(a VaultAuth) {
	switch ways := a.Ways(); len(ways) {
	case 0:
		v.fail("vault.auth", "says no way to log in", "write tokenFile, appRole, kubernetes, jwt or certificate")
	case 1:
	default:
		v.fail("vault.auth", "says two ways to log in", "write one of "+strings.Join(ways, " and "))
	}
	mount := func(key, path string) {
		if m := strings.Trim(path, "/"); m != "" && !policy.VaultPath(m) {
			v.fail(key+".mount", fmt.Sprintf("%q is not the path of a mount", path), "write one as approle")
		}
	}
	if r := a.AppRole; r != nil {
		mount("vault.auth.appRole", r.Mount)
		if r.RoleID == "" || r.SecretIDFile == "" {
			v.fail("vault.auth.appRole", "needs roleID and secretIDFile", "write both")
		}
	}
	for key, r := range map[string]*VaultRole{"vault.auth.kubernetes": a.Kubernetes, "vault.auth.jwt": a.JWT} {
		if r != nil {
			mount(key, r.Mount)
			if r.Role == "" || r.TokenFile == "" {
				v.fail(key, "needs role and tokenFile", "write both")
			}
		}
	}
	if c := a.Certificate; c != nil {
		mount("vault.auth.certificate", c.Mount)
		if c.Certificate == "" || c.Key == "" {
			v.fail("vault.auth.certificate", "needs certificate and key", "write the paths of both")
		}
	}
	if a.Wrapped && (a.Kubernetes != nil || a.Certificate != nil) {
		v.fail("vault.auth.wrapped", "is for a tokenFile, a secretIDFile or a JWT", "remove it")
	}
}

func (v *validator) upstream(path string, u *policy.Upstream) {
	if u != nil {
		v.roots(path+".roots", u.Roots)
		v.roots(path+".proxyRoots", u.ProxyRoots)
	}
}

// roots checks that a file of certificate authorities can be used: without it
// every request would fail later, and less clearly.
func (v *validator) roots(path, file string) {
	if _, err := roots.Read(file); err != nil {
		v.fail(path, fmt.Sprintf("cannot be used: %v", err), "write the path of a PEM file, relative to this one, that has -----BEGIN CERTIFICATE-----")
	}
}
