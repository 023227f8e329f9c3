// Package oracle reads the egress and egressAuth rules of sallyport.yaml as their
// documentation says, one rule after the other, and says what must come of a
// name, a connection or a request. It is there to be compared with the policy that
// decides, and so has nothing in common with it: no index, no Rego, no matcher.
//
// What a team's Rego says it is told ([Contributed]). It knows no international
// names, and none of what a form check refuses before a rule is read.
package oracle

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
)

// Rule is an egress or an egressAuth rule as it is written.
type Rule struct {
	Name        string   `yaml:"name"`
	Destination string   `yaml:"destination"`
	Ports       []int    `yaml:"ports"`
	Methods     []string `yaml:"methods"`
	Paths       []string `yaml:"paths"`
	Plain       bool     `yaml:"plain"`
	Action      string   `yaml:"action"`
	AuthRef     string   `yaml:"authRef"`
	Inject      struct {
		Query struct {
			Name string `yaml:"name"`
		} `yaml:"query"`
		SSH      map[string]any `yaml:"ssh"`
		Postgres map[string]any `yaml:"postgres"`
		Redis    map[string]any `yaml:"redis"`
	} `yaml:"inject"`
	Sandboxes struct {
		Names []string          `yaml:"names"`
		Tags  map[string]string `yaml:"tags"`
	} `yaml:"sandboxes"`
	Body struct {
		JSON    string `yaml:"json"`
		GraphQL string `yaml:"graphql"`
	} `yaml:"body"`

	authorises bool // egressAuth
}

// Document is what the oracle reads of the file.
type Document struct {
	Egress     []Rule `yaml:"egress"`
	EgressAuth []Rule `yaml:"egressAuth"`
}

// Read reads the file's text.
func Read(text []byte) (Document, error) {
	var d Document
	err := yaml.Unmarshal(text, &d)
	for i := range d.EgressAuth {
		d.EgressAuth[i].authorises = true
	}
	return d, err
}

// Ask is a name, a connection or a request. Protocol is tls, http, other, or one of the
// kinds of other: ssh, postgres, redis.
type Ask struct {
	Phase    string // dns, connect, request
	Sandbox  string
	Tags     map[string]string
	Host     string // lower case, or an address
	Port     int
	Protocol string
	Method   string
	Path     string // decoded, but for encoded slashes, which are %2F
	Body     string // the text of a request's, none where it is empty

	sent string // the path, where Path is a reading of it
}

// Verdict is what must come of it.
type Verdict struct {
	Action string // allow, deny, tunnel, approve
	// Rules are those that may be named: where several are as exact and do the
	// same, any of them. None: no rule speaks, or the floor does.
	Rules []string
	// Credentials go into the request, sorted.
	Credentials []string
	// Blind says that it is denied for a body that a rule has to see and cannot.
	Blind bool
	// Malformed says that it is denied for what a team's Rego is.
	Malformed bool
}

// Judge reads every rule.
func (d Document) Judge(a Ask) Verdict {
	return d.JudgeWith(func(Ask) Contributed { return Contributed{} }, a)
}

// opinion is what the rules alone come to. No rules: none speaks.
type opinion struct {
	action      string
	rules       []Rule
	authorising []Rule
}

func (d Document) opinion(a Ask) opinion {
	rules := those(slices.Concat(d.Egress, d.EgressAuth), func(r Rule) bool { return r.isFor(a) })
	if a.Phase == "dns" {
		return name(rules)
	}
	return judge(rules, a)
}

// name: refused where everything about it is; else worth an address where any
// rule but a deny is about it.
func name(rules []Rule) opinion {
	refusing := those(rules, func(r Rule) bool {
		return r.Action == "deny" && r.ports() == nil && !r.conditional()
	})
	if refusing != nil {
		return opinion{action: "deny", rules: refusing}
	}
	return granting("allow", those(rules, func(r Rule) bool { return r.Action != "deny" }))
}

// judge: deny, then approve, then an egressAuth rule that authorises, then one
// that governs, then allow, then tunnel.
func judge(rules []Rule, a Ask) opinion {
	reading := a.Phase == "connect" && !a.other()
	denying := those(rules, func(r Rule) bool {
		return r.Action == "deny" && r.speaks(a) && !(reading && r.conditional())
	})
	// A deny of some requests lets its connection be opened, but not unread.
	suspicious := reading && nil != those(rules, func(r Rule) bool { return r.Action == "deny" && r.conditional() })
	asking := those(rules, func(r Rule) bool { return r.Action == "approve" && r.carries(a) && r.speaks(a) && !reading })
	governing := those(rules, func(r Rule) bool { return r.authorises })
	authorising := those(governing, func(r Rule) bool { return r.carries(a) && r.speaks(a) })
	unread := those(rules, func(r Rule) bool {
		return !r.authorises && r.carries(a) && r.Action != "deny" &&
			a.Phase == "connect" && (a.other() && r.Action != "approve" || r.Action == "tunnel")
	})
	allowing := those(rules, func(r Rule) bool {
		if r.authorises || r.Action == "deny" || !r.carries(a) || !r.speaks(a) || a.other() {
			return false
		}
		return reading && r.Action == "approve" || r.Action == "" || r.Action == "allow" || r.Action == "tunnel" && a.Phase == "request"
	})
	switch {
	case denying != nil:
		return opinion{action: "deny", rules: denying}
	case asking != nil && governing != nil && authorising == nil:
		return opinion{action: "deny", rules: governing}
	case asking != nil:
		return opinion{"approve", asking, authorising}
	case authorising != nil:
		return opinion{"allow", authorising, authorising}
	case governing != nil:
		return opinion{action: "deny", rules: governing}
	case allowing != nil:
		return granting("allow", allowing)
	case suspicious:
		return granting("allow", unread)
	}
	return granting("tunnel", unread)
}

// granting is the action, where there is a rule for it.
func granting(action string, by []Rule) opinion {
	if by == nil {
		return opinion{action: "deny"}
	}
	return opinion{action: action, rules: by}
}

// those are the elements that are so, nil for none.
func those[T any](all []T, are func(T) bool) []T {
	var kept []T
	for _, it := range all {
		if are(it) {
			kept = append(kept, it)
		}
	}
	return kept
}

// exactest names the rules whose destination is the most exact: a host before
// *.host, more labels before fewer, a longer prefix before a shorter one.
func exactest(rules []Rule) []string {
	best, names := -1, []string(nil)
	for _, r := range rules {
		switch e := r.exactness(); {
		case e > best:
			best, names = e, []string{r.Name}
		case e == best:
			names = append(names, r.Name)
		}
	}
	return names
}

func (r Rule) exactness() int {
	host, _ := r.split()
	if p, err := netip.ParsePrefix(host); err == nil {
		return p.Bits()
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return 1000
	}
	if domain, wild := strings.CutPrefix(host, "*."); wild {
		return len(strings.Split(domain, "."))
	}
	return 1000
}

// split parts the destination into host and port, 0 where it has none.
func (r Rule) split() (string, int) {
	d := strings.ToLower(r.Destination)
	if _, err := netip.ParseAddr(d); err == nil || strings.Contains(d, "/") {
		return d, 0
	}
	port := 0
	if i := strings.LastIndex(d, ":"); i >= 0 {
		n, err := strconv.Atoi(d[i+1:])
		if err != nil {
			panic(fmt.Sprintf("destination %q", d))
		}
		d, port = d[:i], n
	}
	return strings.TrimSuffix(strings.Trim(d, "[]"), "."), port
}

// isFor tells whether the rule is about the sandbox, the host and, after the
// look-up of a name, the port.
func (r Rule) isFor(a Ask) bool {
	if names := r.Sandboxes.Names; names != nil && !slices.Contains(names, a.Sandbox) {
		return false
	}
	for tag, value := range r.Sandboxes.Tags {
		if got, has := a.Tags[tag]; !has || got != value {
			return false
		}
	}
	if a.Phase != "dns" && r.ports() != nil && !slices.Contains(r.ports(), a.Port) {
		return false
	}
	host, _ := r.split()
	addr, bare := netip.ParseAddr(a.Host)
	if bare != nil {
		domain, wild := strings.CutPrefix(host, "*.")
		return wild && strings.HasSuffix(a.Host, "."+domain) || host == a.Host
	}
	if p, err := netip.ParsePrefix(host); err == nil {
		return p.Contains(addr)
	}
	own, err := netip.ParseAddr(host)
	return err == nil && own == addr
}

// ports are the TCP ports that the rule is about, nil for all.
func (r Rule) ports() []int {
	_, port := r.split()
	switch {
	case r.Ports != nil:
		return r.Ports
	case port != 0:
		return []int{port}
	case r.authorises:
		return []int{map[string]int{"tls": 443, "ssh": 22, "postgres": 5432, "redis": 6379}[r.login()]}
	case r.Action == "deny" || r.Action == "approve":
		return nil
	case r.Plain:
		return []int{443, 80}
	}
	return []int{443}
}

// login is the protocol that an egressAuth rule is for.
func (r Rule) login() string {
	switch {
	case r.Inject.SSH != nil:
		return "ssh"
	case r.Inject.Postgres != nil:
		return "postgres"
	case r.Inject.Redis != nil:
		return "redis"
	}
	return "tls"
}

// other tells whether the ask is about what is neither TLS nor HTTP.
func (a Ask) other() bool { return a.Protocol != "tls" && a.Protocol != "http" }

func (r Rule) conditional() bool { return r.Methods != nil || r.Paths != nil }

// carries tells whether the rule is about what the connection carries.
func (r Rule) carries(a Ask) bool {
	switch {
	case r.authorises:
		return a.Protocol == r.login() // which is tls for what goes into a request of HTTP
	case a.Protocol == "tls" || r.Action == "deny":
		return true
	case a.Protocol == "http":
		return r.Plain
	case r.Action == "tunnel":
		return true
	case r.conditional() || r.sees():
		return false
	}
	// Unread, without tunnel: an address or a prefix, or what a person is asked
	// about, on ports that are written down and not the web's.
	host, port := r.split()
	if r.Ports == nil && port == 0 || slices.Contains(r.ports(), 80) || slices.Contains(r.ports(), 443) {
		return false
	}
	_, notPrefix := netip.ParsePrefix(host)
	_, notAddress := netip.ParseAddr(host)
	return r.Action == "approve" || notPrefix == nil || notAddress == nil
}

// speaks tells whether a request is among those that the rule is about. Before
// there is one, every rule speaks.
func (r Rule) speaks(a Ask) bool {
	if a.Phase != "request" {
		return true
	}
	if r.login() == "ssh" && r.Methods == nil && a.Method != "git-upload-pack" {
		return false
	}
	if r.Methods != nil && !slices.Contains(r.Methods, a.Method) {
		return false
	}
	return r.Paths == nil || slices.ContainsFunc(r.Paths, func(glob string) bool {
		return matches(glob, a.Path) || (r.Action == "deny" || r.Action == "approve") && taken(glob, a.Path)
	})
}

// taken tells whether some server takes the path for one that the glob matches: it goes by
// no letter case and no slash at the end, leaves out dots and spaces at the end of a name.
func taken(glob, path string) bool {
	glob, path = strings.ToLower(glob), strings.ToLower(path)
	glob = strings.ReplaceAll(glob, "%2f", "%2F")
	path = strings.ReplaceAll(path, "%2f", "%2F")
	if len(glob) > 1 && strings.HasSuffix(glob, "/") && !strings.HasSuffix(glob, "*/") {
		glob = glob[:len(glob)-1]
	}
	// Every way to leave some of it out.
	for _, p := range []string{path, strings.TrimSuffix(path, "/")} {
		names := strings.Split(p, "/")
		for i := range names {
			parts := strings.Split(names[i], "%2F")
			for j := range parts {
				parts[j] = strings.TrimRight(parts[j], ". ")
			}
			names[i] = strings.Join(parts, "%2F")
		}
		if matches(glob, p) || matches(glob, strings.Join(names, "/")) {
			return true
		}
	}
	return false
}

// matches: * is any run without a slash, ** any run, %2F a slash either way.
func matches(glob, path string) bool {
	switch {
	case glob == "":
		return path == ""
	case strings.HasPrefix(glob, "%2F"):
		return strings.HasPrefix(path, "/") && matches(glob[3:], path[1:]) || strings.HasPrefix(path, "%2F") && matches(glob[3:], path[3:])
	case strings.HasPrefix(glob, "**"):
		rest := strings.TrimLeft(glob, "*")
		for i := range len(path) + 1 {
			if matches(rest, path[i:]) {
				return true
			}
		}
		return false
	case glob[0] == '*':
		for i := range len(path) + 1 {
			if matches(glob[1:], path[i:]) {
				return true
			}
			if i < len(path) && path[i] == '/' {
				return false
			}
		}
		return false
	}
	return path != "" && path[0] == glob[0] && matches(glob[1:], path[1:])
}
