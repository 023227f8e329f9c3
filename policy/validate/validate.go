// Package validate turns a document into compiled rules and lists what is wrong with it.
//
// It checks each key, and compares rules with each other: two credentials for one place of
// a request, a rule that another rule shadows or subsumes, two upstreams for one
// destination. It does not read the team's Rego: see package check.
package validate

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"sallyport/policy"
	"sallyport/policy/finding"
	"sallyport/policy/rule"

	"golang.org/x/net/publicsuffix"
)

// Document lists everything that is wrong with the document, errors and
// warnings, in the order of the file. It does not read the team's Rego.
func Document(doc policy.Document) []finding.Finding {
	_, findings := Rules(doc)
	return findings
}

// Rules turns the document into rules with their defaults filled in. The rules
// are of use only when no finding is an error.
func Rules(doc policy.Document) ([]rule.Rule, []finding.Finding) {
	v := validator{doc: doc, names: map[string]string{}, credentials: map[string]bool{}, warned: map[string]bool{}}
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
			v.say(finding.UnusedCredential, fmt.Sprintf("credentials[%d]", i), fmt.Sprintf("no rule uses the credential %q", c.Name),
				"name it as the authRef of an egressAuth rule or the proxyAuthRef of an upstream, or remove it")
		}
	}
	if n := doc.Policy.Cache; n != nil && (*n < 0 || *n > maxCacheSize) {
		v.fail("policy.cache", fmt.Sprintf("%d answers cannot be kept", *n), fmt.Sprintf("give a number from 0, for none, to %d", maxCacheSize))
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
	v.findings = append(v.findings, compareRules(doc, v.rules)...)
	slices.SortStableFunc(v.findings, func(a, b finding.Finding) int {
		if a.Position.Line != b.Position.Line {
			return a.Position.Line - b.Position.Line
		}
		return a.Position.Column - b.Position.Column
	})
	return v.rules, v.findings
}

type validator struct {
	doc         policy.Document
	rules       []rule.Rule
	findings    []finding.Finding
	names       map[string]string // rule name to the path of its rule
	credentials map[string]bool   // name to whether a rule uses it
	warned      map[string]bool   // what one warning is enough for
}

// fail says what is wrong about a value of no Kind of its own.
func (v *validator) fail(path, message, fix string) { v.say(finding.BadValue, path, message, fix) }

func (v *validator) say(k finding.Kind, path, message, fix string) {
	v.findings = append(v.findings, k.Finding(v.doc.Position(path), path, message, fix))
}

// oneOf checks that a value is empty or one of a few.
func (v *validator) oneOf(k finding.Kind, path, value, isNot, fix string, known ...string) {
	if value == "" || slices.Contains(known, value) {
		return
	}
	if near := finding.Nearest(value, known); near != "" {
		fix = "did you mean " + near + "?"
	}
	v.say(k, path, fmt.Sprintf("%q %s", value, isNot), fix)
}

// label checks a name that appears in denials and in the audit.
func (v *validator) label(k finding.Kind, path, name string) bool {
	if policy.IsLabel(name) {
		return true
	}
	v.say(k, path+".name", fmt.Sprintf("%q is not a name", name), "write 1 to 200 visible ASCII characters; spaces may stand between them")
	return false
}

// own checks that no other rule has the name, and keeps it.
func (v *validator) own(path, name string) bool {
	if other, taken := v.names[name]; taken {
		v.say(finding.BadName, path, fmt.Sprintf("the name %q is already that of %s", name, other), "give each of the two a name of its own with name:")
		return false
	}
	v.names[name] = path
	return true
}

func (v *validator) egress(path string, e policy.EgressRule) {
	v.oneOf(finding.BadAction, path+".action", string(e.Action), "is not an action", "write allow, deny, tunnel or approve", "allow", "deny", "tunnel", "approve")
	if e.Action == policy.Tunnel && len(e.Methods)+len(e.Paths) > 0 {
		v.say(finding.NeverMatches, path, "a tunnel is not read, so its methods and paths can never match", "remove them, or write action: allow")
	}
	if e.RawPath && (e.Action == policy.Deny || e.Action == policy.Tunnel) {
		v.say(finding.NeverMatches, path+".rawPath", fmt.Sprintf("is of no use with action: %s, which sends no path", e.Action), "remove it")
	}
	if e.Action == policy.Deny && e.Upstream != nil {
		v.say(finding.BadUpstream, path+".upstream", "a denied destination is never reached", "remove upstream")
	}
	v.matches(path, e.Ports, e.Methods, e.Paths, e.Sandboxes)
	v.methods(path, e.Methods)
	v.headers(path, e.Headers, e.Action)
	v.until(path+".observe", e.Observe)
	v.body(path+".body", e.Body, e.Action)
	v.upstream(path+".upstream", e.Upstream)
	d, ok := v.destination(path, e.Destination, e.Ports, e.Action == policy.Deny)
	if !ok {
		return
	}
	v.resolve(path, e.Upstream, d)
	r := rule.FromEgress(e, d)
	r.Path = path
	v.withoutTLS(r, "write plain: true if it is HTTP without TLS")
	v.add(r)
}

func (v *validator) egressAuth(path string, e policy.EgressAuthRule) {
	v.matches(path, e.Ports, e.Methods, e.Paths, e.Sandboxes)
	v.login(path, e)
	v.headers(path, e.Headers, policy.Allow)
	if _, forks := e.Sandboxes.Tags[policy.TagFork]; forks && !e.Inherit {
		v.say(finding.NeverMatches, path+".sandboxes.tags", "is for forks, which have no credential of a rule that does not say so", "write inherit: true")
	}
	v.until(path+".observe", e.Observe)
	v.body(path+".body", e.Body, policy.Allow)
	v.upstream(path+".upstream", e.Upstream)
	v.inject(path+".inject", e.Inject)
	v.exchanged(path, e)
	if e.Cookies != "" && e.Cookies != policy.PassCookies {
		v.fail(path+".cookies", fmt.Sprintf("is %q", e.Cookies), "write pass, or leave it out so that cookies are removed")
	}
	if e.Own != "" && e.Own != policy.DenyOwn {
		v.fail(path+".own", fmt.Sprintf("is %q", e.Own), "write deny, or leave it out so that what the sandbox put there is removed")
	}
	if e.Own != "" && e.Inject != nil && (e.Inject.ClientCertificate != nil || e.Inject.AWS != nil) {
		v.say(finding.NeverMatches, path+".own", "a sandbox has no part in the TLS handshake with the upstream, and signs for AWS so that its requests can be signed anew", "remove it")
	}
	if e.Own != "" && e.Inject != nil && e.Inject.TokenEndpoint {
		v.say(finding.NeverMatches, path+".own", "the gateway answers for the endpoint itself, and puts the credential into no request", "remove it")
	}
	if e.AuthRef == "" {
		v.say(finding.NoCredential, path, "has no authRef", "write authRef: and the name of one of the credentials, or move the rule to egress:, the list of rules without a credential")
	} else {
		v.reference(path+".authRef", e.AuthRef)
		v.replaced(path+".inject.placeholder", e)
	}
	d, ok := v.destination(path, e.Destination, e.Ports, false)
	if !ok {
		return
	}
	v.resolve(path, e.Upstream, d)
	r := rule.FromEgressAuth(e, d)
	r.Path = path
	v.bound(e, r)
	v.withoutTLS(r, "write the port where the destination speaks TLS: credentials are sent over nothing else")
	v.add(r)
}

// withoutTLS warns of a rule that names the port of HTTP without TLS and allows none.
func (v *validator) withoutTLS(r rule.Rule, fix string) {
	if slices.Contains(r.Ports, 80) && !slices.Contains(r.Protocols, policy.ProtocolHTTP) {
		at := r.Path + ".ports"
		if r.Destination.Port != 0 {
			at = r.Path + ".destination"
		}
		v.say(finding.PortWithoutTLS, at, "port 80 is HTTP without TLS nearly everywhere, and the rule does not allow that", fix)
	}
}

// find returns the place of a credential in the document, or -1.
func (v *validator) find(credential string) int {
	return slices.IndexFunc(v.doc.Credentials, func(c policy.Credential) bool { return c.Name == credential })
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
	if near := finding.Nearest(name, names); near != "" {
		fix = fmt.Sprintf("did you mean %q? Otherwise %s", near, fix)
	}
	v.say(finding.NoCredential, path, fmt.Sprintf("there is no credential %q", name), fix)
}

// add keeps a rule whose name is its own.
func (v *validator) add(r rule.Rule) {
	if !v.label(finding.BadName, r.Path, r.Name) || !v.own(r.Path, r.Name) {
		return
	}
	v.tenancy(r)
	r.Position, r.Index = v.doc.Position(r.Path), len(v.rules)
	v.rules = append(v.rules, r)
}

func (v *validator) destination(path, s string, ports []uint16, deny bool) (rule.Destination, bool) {
	d, err := rule.ParseDestination(s)
	if err != nil {
		at := path + ".destination"
		if s == "" {
			at = path
		}
		message, fix, _ := strings.Cut(err.Error(), "; ")
		if s == "" {
			message = "destination " + message
		}
		v.say(finding.BadDestination, at, message, fix)
		return d, false
	}
	if d.Port != 0 && len(ports) > 0 {
		v.say(finding.BadPort, path+".ports", "the destination already has a port", "write it in one of the two places")
	}
	if suffix, icann := publicsuffix.PublicSuffix(d.Host); d.Kind == rule.WildcardHost && icann && suffix == d.Host && !deny {
		v.say(finding.AnyDomain, path+".destination", fmt.Sprintf("%q matches names that anybody can register", s), "name the domain that you mean")
	}
	return d, true
}

// matches checks the parts that both kinds of rule select requests by. A list
// that is written but empty matches nothing.
func (v *validator) matches(path string, ports []uint16, methods, paths []string, sandboxes policy.Selector) {
	empty := func(key string) {
		v.say(finding.NeverMatches, path+"."+key, "is empty, so the rule can never match", "remove it to match all, or list some")
	}
	if ports != nil && len(ports) == 0 {
		empty("ports")
	}
	for i, port := range ports {
		if port == 0 {
			v.say(finding.BadPort, fmt.Sprintf("%s.ports[%d]", path, i), "0 is not a port", "write one from 1 to 65535")
		}
	}
	if methods != nil && len(methods) == 0 {
		empty("methods")
	}
	if paths != nil && len(paths) == 0 {
		empty("paths")
	}
	for i, glob := range paths {
		if err := rule.CheckGlob(glob); err != nil {
			message, fix, _ := strings.Cut(err.Error(), "; ")
			v.say(finding.NeverMatches, fmt.Sprintf("%s.paths[%d]", path, i), message, fix)
		}
	}
	if sandboxes.Names != nil && len(sandboxes.Names) == 0 {
		empty("sandboxes.names")
	}
	for i, name := range sandboxes.Names {
		if name == "" {
			v.say(finding.NeverMatches, fmt.Sprintf("%s.sandboxes.names[%d]", path, i), "is empty", "write the name of a sandbox")
		}
	}
	if sandboxes.Tags != nil && len(sandboxes.Tags) == 0 {
		empty("sandboxes.tags")
	}
}

// methods checks the methods of HTTP.
func (v *validator) methods(path string, methods []string) {
	for i, m := range methods {
		at := fmt.Sprintf("%s.methods[%d]", path, i)
		if !policy.IsToken(m) {
			v.say(finding.NeverMatches, at, fmt.Sprintf("%q is not an HTTP method", m), "write one as GET or POST")
		} else if up := strings.ToUpper(m); up != m {
			v.say(finding.NeverMatches, at, fmt.Sprintf("%q can never match: methods are in upper case", m), "write "+up)
		}
	}
}

const maxCacheSize = 1 << 20

func (v *validator) approvals(path string, a policy.Approvals) {
	v.oneOf(finding.BadValue, path+".answer", a.Answer, "is neither hold nor poll", "write hold or poll", policy.AnswerHold, policy.AnswerPoll)
	if d := time.Duration(a.Timeout); d != 0 && (d < time.Second || d > time.Hour) {
		v.fail(path+".timeout", fmt.Sprintf("%v is not from 1s to 1h", a.Timeout), "write a time as 10m, or leave it out for 5m")
	}
	if a.Body < 0 || a.Body > policy.MaxApprovalBody {
		v.fail(path+".body", fmt.Sprintf("%v is more than 16MiB", a.Body), "write a size as 4MiB, or leave it out for 1MiB")
	}
}

// body checks what a rule has to see of a request's body.
func (v *validator) body(path string, b *policy.BodyView, action policy.Action) {
	if b == nil {
		return
	}
	if action == policy.Deny || action == policy.Tunnel {
		v.say(finding.NeverMatches, path, fmt.Sprintf("the body of what a %s is about is never read", action), "remove it, or write action: allow")
	}
	if (b.JSON == 0) == (b.GraphQL == 0) {
		v.fail(path, "has not exactly one of json and graphql", "write one as {json: 64KiB}")
	}
	if size := b.Max(); size < 0 || size > policy.MaxBody {
		v.fail(path, fmt.Sprintf("%v is more than the %v of a body that a rule can see", policy.Size(size), policy.Size(policy.MaxBody)), "write a size as 64KiB")
	}
}

// headers checks the headers that a rule lets pass.
func (v *validator) headers(path string, names []string, action policy.Action) {
	if names != nil && (action == policy.Deny || action == policy.Tunnel) {
		v.say(finding.NeverMatches, path+".headers", fmt.Sprintf("is of no use with action: %s, which sends none", action), "remove it")
	}
	for i, name := range names {
		at := fmt.Sprintf("%s.headers[%d]", path, i)
		switch m := policy.Meddles(name); {
		case !policy.IsToken(name):
			v.fail(at, fmt.Sprintf("%q is not the name of a header", name), "write one as Impersonate-User")
		case m == "":
			v.fail(at, fmt.Sprintf("%s passes anyway", name), "remove it: the list is of those that are refused otherwise")
		case m == policy.OtherRequest:
			v.fail(at, fmt.Sprintf("%s %s, which no rule lets pass", name, m), "remove it")
		}
	}
}

// maxObserve bounds how far ahead observe mode may end.
const maxObserve = 30 * 24 * time.Hour

// observations checks the document's list.
func (v *validator) observations() {
	for i, o := range v.doc.Observe {
		path := fmt.Sprintf("observe[%d]", i)
		if len(o.Sandboxes.Names) == 0 && len(o.Sandboxes.Tags) == 0 {
			v.fail(path+".sandboxes", "selects every sandbox there will ever be", "name some, as in {names: [demo]} or {tags: {team: support}}")
		}
		v.matches(path, nil, nil, nil, o.Sandboxes)
		if o.Until.IsZero() {
			v.fail(path, "has no end", "write until: and a time, as 2026-12-01T00:00:00Z, at most 30 days ahead")
			continue
		}
		v.until(path+".until", o.Until)
	}
}

// until checks when observe mode ends. One that has ended is no error: a
// configuration that could be used stays one.
func (v *validator) until(path string, end time.Time) {
	now := time.Now()
	switch {
	case end.IsZero():
	case end.After(now.Add(maxObserve)):
		v.fail(path, fmt.Sprintf("%s is more than 30 days ahead", end.Format(time.RFC3339)),
			"write one until "+now.Add(maxObserve).UTC().Truncate(24*time.Hour).Format(time.RFC3339))
	case !end.After(now):
		v.say(finding.ObserveOver, path, "observe mode ended at "+end.Format(time.RFC3339)+": everything is enforced", "remove it")
	}
}
