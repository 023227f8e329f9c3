package policy

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"time"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/publicsuffix"
)

// Validate lists everything that is wrong with the document, errors and
// warnings, in the order of the file. It does not read the team's Rego.
func Validate(doc Document) []Finding {
	_, findings := resolve(doc)
	return findings
}

// resolve turns the document into rules with their defaults filled in. The rules
// are of use only when no finding is an error.
func resolve(doc Document) ([]rule, []Finding) {
	v := validator{doc: doc, names: map[string]string{}, credentials: map[string]bool{}, said: map[string]bool{}}
	for i, c := range doc.Credentials {
		v.credential(fmt.Sprintf("credentials[%d]", i), c)
	}
	for i, e := range doc.Egress {
		v.egress(fmt.Sprintf("egress[%d]", i), e)
	}
	for i, e := range doc.EgressAuth {
		v.egressAuth(fmt.Sprintf("egressAuth[%d]", i), e)
	}
	if b := doc.Policy.Bundle; b != nil {
		v.credentials[b.AuthRef] = true
		v.bundle(b)
	}
	for i, c := range doc.Credentials {
		if used := v.credentials[c.Name] || slices.Contains(doc.Elsewhere, c.Name); !used && c.Name != "" {
			v.say(UnusedCredential, fmt.Sprintf("credentials[%d]", i), fmt.Sprintf("no rule uses the credential %q", c.Name),
				"name it as the authRef of an egressAuth rule or the proxyAuthRef of an upstream, or remove it")
		}
	}
	if n := doc.Policy.Cache; n != nil && (*n < 0 || *n > maxRecall) {
		v.fail("policy.cache", fmt.Sprintf("%d answers cannot be kept", *n), fmt.Sprintf("give a number from 0, for none, to %d", maxRecall))
	}
	v.approvals("approvals", doc.Approvals)
	if d := doc.Policy.Timeout; d != nil && (time.Duration(*d) < time.Millisecond || time.Duration(*d) > time.Second) {
		v.fail("policy.timeout", fmt.Sprintf("%v is not from 1ms to 1s", d), "write a time as 100ms, or leave it out for 50ms")
	}
	v.upstreams()
	v.exposes()
	v.observations()
	v.limits()
	v.prices()
	v.findings = append(v.findings, overlaps(doc, v.rules)...)
	slices.SortStableFunc(v.findings, func(a, b Finding) int {
		if a.Position.Line != b.Position.Line {
			return a.Position.Line - b.Position.Line
		}
		return a.Position.Column - b.Position.Column
	})
	return v.rules, v.findings
}

type validator struct {
	doc         Document
	rules       []rule
	findings    []Finding
	names       map[string]string // rule name to the path of its rule
	credentials map[string]bool   // name to whether a rule uses it
	said        map[string]bool   // what one warning is enough for
}

// fail says what is wrong about a value of no Kind of its own.
func (v *validator) fail(path, message, fix string) { v.say(BadValue, path, message, fix) }

func (v *validator) say(k Kind, path, message, fix string) {
	v.findings = append(v.findings, k.found(v.doc.position(path), path, message, fix))
}

// position finds the place of path, or of the nearest thing around it that has one.
func (d Document) position(path string) Position {
	for path != "" {
		if p, ok := d.Positions[path]; ok {
			return p
		}
		path = path[:max(strings.LastIndexByte(path, '.'), strings.LastIndexByte(path, '['), 0)]
	}
	return d.Positions[""]
}

func (v *validator) egress(path string, e EgressRule) {
	actions := []string{string(Allow), string(Deny), string(Tunnel), string(Approve)}
	if e.Action != "" && !slices.Contains(actions, string(e.Action)) {
		fix := "write allow, deny, tunnel or approve"
		if near := Nearest(string(e.Action), actions); near != "" {
			fix = "did you mean " + near + "?"
		}
		v.say(BadAction, path+".action", fmt.Sprintf("%q is not an action", e.Action), fix)
	}
	if e.Action == Tunnel && len(e.Methods)+len(e.Paths) > 0 {
		v.say(NeverMatches, path, "a tunnel is not read, so its methods and paths can never match", "remove them, or write action: allow")
	}
	if e.RawPath && (e.Action == Deny || e.Action == Tunnel) {
		v.say(NeverMatches, path+".rawPath", fmt.Sprintf("is of no use with action: %s, which sends no path", e.Action), "remove it")
	}
	if e.Action == Deny && e.Upstream != nil {
		v.say(BadUpstream, path+".upstream", "a denied destination is never reached", "remove upstream")
	}
	v.matches(path, e.Ports, e.Methods, e.Paths, e.Sandboxes)
	v.headers(path, e.Headers, e.Action)
	v.until(path+".observe", e.Observe)
	v.body(path+".body", e.Body, e.Action)
	v.upstream(path+".upstream", e.Upstream)
	d, ok := v.destination(path, e.Destination, e.Ports, e.Action == Deny)
	if !ok {
		return
	}
	v.resolve(path, e.Upstream, d)
	r := e.rule(d)
	r.at = path
	v.withoutTLS(r, "write plain: true if it is HTTP without TLS")
	v.add(r)
}

func (v *validator) egressAuth(path string, e EgressAuthRule) {
	v.matches(path, e.Ports, e.Methods, e.Paths, e.Sandboxes)
	v.headers(path, e.Headers, Allow)
	if _, forks := e.Sandboxes.Tags[TagFork]; forks && !e.Inherit {
		v.say(NeverMatches, path+".sandboxes.tags", "is for forks, which have no credential of a rule that does not say so", "write inherit: true")
	}
	v.until(path+".observe", e.Observe)
	v.body(path+".body", e.Body, Allow)
	v.upstream(path+".upstream", e.Upstream)
	v.inject(path+".inject", e.Inject)
	if e.Cookies != "" && e.Cookies != PassCookies {
		v.fail(path+".cookies", fmt.Sprintf("is %q", e.Cookies), "write pass, or leave it out so that cookies are removed")
	}
	if e.AuthRef == "" {
		v.say(NoCredential, path, "has no authRef", "write authRef: and the name of one of the credentials, or move the rule to egress:, the list of rules without a credential")
	} else {
		v.reference(path+".authRef", e.AuthRef)
	}
	d, ok := v.destination(path, e.Destination, e.Ports, false)
	if !ok {
		return
	}
	v.resolve(path, e.Upstream, d)
	r := e.rule(d)
	r.at = path
	v.withoutTLS(r, "write the port where the destination speaks TLS: credentials are sent over nothing else")
	v.add(r)
}

// withoutTLS warns of a rule that names the port of HTTP without TLS and allows none.
func (v *validator) withoutTLS(r rule, fix string) {
	if slices.Contains(r.ports, 80) && !slices.Contains(r.protocols, ProtocolHTTP) {
		at := r.at + ".ports"
		if r.destination.port != 0 {
			at = r.at + ".destination"
		}
		v.say(PortWithoutTLS, at, "port 80 is HTTP without TLS nearly everywhere, and the rule does not allow that", fix)
	}
}

// reference checks that a credential is there, and takes it for used.
func (v *validator) reference(path, name string) {
	if _, known := v.credentials[name]; known {
		v.credentials[name] = true
		return
	}
	names := make([]string, len(v.doc.Credentials))
	for i, c := range v.doc.Credentials {
		names[i] = c.Name
	}
	fix := fmt.Sprintf("add it under credentials, as in \"- name: %s\"", name)
	if near := Nearest(name, names); near != "" {
		fix = fmt.Sprintf("did you mean %q? Otherwise %s", near, fix)
	}
	v.say(NoCredential, path, fmt.Sprintf("there is no credential %q", name), fix)
}

// add keeps a rule whose name is its own.
func (v *validator) add(r rule) {
	if !label(r.name) {
		v.say(BadName, r.at+".name", fmt.Sprintf("%q is not a name", r.name), "write 1 to 200 visible ASCII characters; spaces may stand between them")
		return
	}
	if other, taken := v.names[r.name]; taken {
		v.say(BadName, r.at, fmt.Sprintf("the name %q is already that of %s", r.name, other), "give each of the two a name of its own with name:")
		return
	}
	v.names[r.name] = r.at
	v.tenancy(r)
	r.position, r.place = v.doc.position(r.at), len(v.rules)
	v.rules = append(v.rules, r)
}

func (v *validator) destination(path, s string, ports []uint16, deny bool) (destination, bool) {
	d, err := parseDestination(s)
	if err != nil {
		at := path + ".destination"
		if s == "" {
			at = path
		}
		message, fix, _ := strings.Cut(err.Error(), "; ")
		if s == "" {
			message = "destination " + message
		}
		v.say(BadDestination, at, message, fix)
		return d, false
	}
	if d.port != 0 && len(ports) > 0 {
		v.say(BadPort, path+".ports", "the destination already has a port", "write it in one of the two places")
	}
	if suffix, icann := publicsuffix.PublicSuffix(d.host); d.kind == wildcardHost && icann && suffix == d.host && !deny {
		v.say(AnyDomain, path+".destination", fmt.Sprintf("%q matches names that anybody can register", s), "name the domain that you mean")
	}
	return d, true
}

// matches checks the parts that both kinds of rule select requests by. A list
// that is written but empty matches nothing.
func (v *validator) matches(path string, ports []uint16, methods, paths []string, sandboxes Selector) {
	empty := func(key string) {
		v.say(NeverMatches, path+"."+key, "is empty, so the rule can never match", "remove it to match all, or list some")
	}
	if ports != nil && len(ports) == 0 {
		empty("ports")
	}
	for i, port := range ports {
		if port == 0 {
			v.say(BadPort, fmt.Sprintf("%s.ports[%d]", path, i), "0 is not a port", "write one from 1 to 65535")
		}
	}
	if methods != nil && len(methods) == 0 {
		empty("methods")
	}
	for i, m := range methods {
		at := fmt.Sprintf("%s.methods[%d]", path, i)
		if !token(m) {
			v.say(NeverMatches, at, fmt.Sprintf("%q is not an HTTP method", m), "write one as GET or POST")
		} else if up := strings.ToUpper(m); up != m {
			v.say(NeverMatches, at, fmt.Sprintf("%q can never match: methods are in upper case", m), "write "+up)
		}
	}
	if paths != nil && len(paths) == 0 {
		empty("paths")
	}
	for i, glob := range paths {
		if err := checkGlob(glob); err != nil {
			message, fix, _ := strings.Cut(err.Error(), "; ")
			v.say(NeverMatches, fmt.Sprintf("%s.paths[%d]", path, i), message, fix)
		}
	}
	if sandboxes.Names != nil && len(sandboxes.Names) == 0 {
		empty("sandboxes.names")
	}
	for i, name := range sandboxes.Names {
		if name == "" {
			v.say(NeverMatches, fmt.Sprintf("%s.sandboxes.names[%d]", path, i), "is empty", "write the name of a sandbox")
		}
	}
	if sandboxes.Tags != nil && len(sandboxes.Tags) == 0 {
		empty("sandboxes.tags")
	}
}

func (v *validator) upstream(path string, u *Upstream) {
	if u == nil {
		return
	}
	v.proxy(path, u)
	for i, a := range u.Addresses {
		if _, err := netip.ParseAddr(a); err == nil {
			continue
		}
		if p, err := netip.ParsePrefix(a); err != nil {
			v.say(BadUpstream, fmt.Sprintf("%s.addresses[%d]", path, i), fmt.Sprintf("%q is neither an IP address nor a CIDR prefix", a), "write one as 10.20.0.7 or 10.20.0.0/16")
		} else if p != p.Masked() {
			v.say(BadUpstream, fmt.Sprintf("%s.addresses[%d]", path, i), fmt.Sprintf("%q has bits set beyond its length", a), "write "+p.Masked().String())
		}
	}
	if u.Resolver == "" {
		return
	}
	host, port, err := net.SplitHostPort(u.Resolver)
	if n, perr := strconv.ParseUint(port, 10, 16); err != nil || perr != nil || n == 0 || host == "" {
		v.say(BadUpstream, path+".resolver", fmt.Sprintf("%q is not host:port", u.Resolver), "write one as 10.20.0.53:53")
	}
}

func (v *validator) credential(path string, c Credential) {
	if c.Name == "" {
		v.say(BadCredential, path, "has no name", "write name: and what authRef will say")
		return
	}
	if !token(c.Name) || len(c.Name) > 128 {
		v.say(BadCredential, path+".name", fmt.Sprintf("%q is not a name", c.Name), "write up to 128 letters, digits, '-', '_' and '.'")
	}
	if _, taken := v.credentials[c.Name]; taken {
		v.say(BadCredential, path+".name", fmt.Sprintf("there is another credential %q", c.Name), "give each of the two a name of its own")
	}
	v.credentials[c.Name] = false
	for i, field := range c.AllowShort {
		if !label(field) {
			v.say(BadCredential, fmt.Sprintf("%s.allowShort[%d]", path, i), fmt.Sprintf("%q is not a field", field), "write the name of a field, as allowShort: [pin]")
		}
	}
	if vault := c.Source.Vault; vault != nil {
		at := path + ".source.vault"
		switch {
		case vault.Path == "":
			v.say(BadCredential, at, "has no path", "write path: secret/data/"+c.Name)
		case !strings.Contains(strings.Trim(vault.Path, "/"), "/data/") || !VaultPath(vault.Path):
			v.say(BadCredential, at+".path", fmt.Sprintf("%q is not the API path of a KV version 2 secret", vault.Path), "put data after the mount, as in secret/data/"+c.Name)
		}
	}
}

// unsettable are the headers that say how a message is framed or routed.
var unsettable = []string{
	"connection", "content-length", "expect", "host", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
}

func (v *validator) inject(path string, in *Inject) {
	if in == nil {
		return
	}
	given := 0
	if h := in.Header; h != nil {
		given++
		if !token(h.Name) {
			v.say(BadInject, path+".header", fmt.Sprintf("%q is not the name of a header", h.Name), "write one as Authorization or X-Api-Key")
		} else if slices.Contains(unsettable, strings.ToLower(h.Name)) {
			v.say(BadInject, path+".header.name", fmt.Sprintf("%s says how the request is carried, and cannot hold a credential", h.Name), "write one as Authorization or X-Api-Key")
		}
		v.template(path+".header.value", h.Value, true)
	}
	if b := in.Basic; b != nil {
		given++
		v.template(path+".basic.username", b.Username, false)
		v.template(path+".basic.password", b.Password, false)
		if !strings.Contains(b.Username+b.Password, "{{") {
			v.say(SecretWritten, path+".basic", "has nothing of the secret in it", `write password: "{{ .password }}"`)
		}
	}
	if q := in.Query; q != nil {
		given++
		if q.Name == "" {
			v.say(BadInject, path+".query", "has no name", "write name: and the query parameter")
		}
		v.template(path+".query.value", q.Value, true)
	}
	if given != 1 {
		v.say(BadInject, path, fmt.Sprintf("has %d of header, basic and query", given), "write exactly one")
	}
}

// template checks the template of an injection. One that uses no field is most
// likely the secret itself, written where it must not be; it is not repeated.
func (v *validator) template(path, text string, secret bool) {
	t, err := template.New("value").Option("missingkey=error").Parse(text)
	if err != nil {
		_, why, _ := strings.Cut(err.Error(), "value:")
		v.say(BadInject, path, "is not a template: line "+why, `write one as "Bearer {{ .token }}"`)
		return
	}
	if len(t.Templates()) > 1 || strings.Contains(text, "{{ template") {
		v.say(BadInject, path, "defines templates of its own", `write one as "Bearer {{ .token }}"`)
	}
	if secret && !strings.Contains(text, "{{") {
		v.say(SecretWritten, path, "has nothing of the secret in it", `write one as "Bearer {{ .token }}", and the secret with "sallyport secret set"`)
	}
	if strings.ContainsAny(text, "\r\n\x00") {
		v.say(BadInject, path, "has a line break in it", "write it on one line")
	}
}

// token reports whether s is an RFC 9110 token.
func token(s string) bool { return httpguts.ValidHeaderFieldName(s) }

// label reports whether s can stand in a header, a log line and on a terminal.
func label(s string) bool {
	if s == "" || len(s) > 200 || s[0] == ' ' || s[len(s)-1] == ' ' {
		return false
	}
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}
