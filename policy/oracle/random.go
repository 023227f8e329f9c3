package oracle

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// pick returns one of the elements.
func pick[T any](random *rand.Rand, of ...T) T { return of[random.IntN(len(of))] }

// seldom returns one of the elements, or, most of the time, nothing.
func seldom(random *rand.Rand, of ...string) string {
	if random.IntN(3) > 0 {
		return ""
	}
	return pick(random, of...)
}

// Text writes a random file: few hosts and few of everything, so that rules
// meet. It uses what YAML's users do: flow style, quotes, defaults left out.
func Text(random *rand.Rand) string {
	var b strings.Builder
	rule := func(name, action, login string) {
		at := pick(random,
			"a.example.com", "a.example.com", "a.example.com", "b.example.com", "A.Example.COM.", "*.example.com", "*.example.com", "*.a.example.com", "*.com",
			"a.example.com:8443", "*.example.com:22", "10.0.0.0/8", "10.1.0.0/16", "10.1.2.3", "10.1.2.3:22", "2001:db8::/32", "[2001:db8::1]:443", "0.0.0.0/0")
		fmt.Fprintf(&b, "- {name: %s, destination: %q%s", name, at, action)
		if !strings.Contains(action, "tunnel") {
			switch login {
			case "":
				b.WriteString(seldom(random, ", methods: [GET]", ", methods: [POST, PUT]", ", methods: [GET, HEAD, DELETE]"))
			case "ssh":
				b.WriteString(seldom(random, ", methods: [git-receive-pack]", ", methods: [git-upload-pack, exec]"))
			}
			b.WriteString(seldom(random, `, paths: ["/x/**"]`, `, paths: ["/x/*/z"]`, `, paths: ["/", "/y*"]`, `, paths: ["**.git/*"]`, `, paths: ["/(x|y)+"]`,
				`, paths: ["/x/*%2F*"]`, `, paths: ["/x%2F**"]`, `, paths: ["/*/*/z", "/**%2Fz"]`))
		}
		b.WriteString(seldom(random, ", sandboxes: {names: [one]}", ", sandboxes: {names: [one, two]}", ", sandboxes: {tags: {team: red}}",
			", sandboxes: {tags: {team: red, env: prod}}", ", sandboxes: {names: [two], tags: {env: prod}}"))
		if host := strings.TrimSuffix(at, "]:443"); host == at && (strings.Count(at, ":") != 1) {
			b.WriteString(seldom(random, ", ports: [443]", ", ports: [22]", ", ports: [80, 443]", ", ports: [22, 8443]"))
		}
		if !strings.Contains(action, "deny") && !strings.Contains(action, "tunnel") && login == "" && random.IntN(2) == 0 {
			b.WriteString(seldom(random, ", body: {json: 1KiB}", ", body: {json: 4KiB}", ", body: {graphql: 1KiB}", ", body: {graphql: 4KiB}"))
		}
	}
	b.WriteString("egress:\n")
	for i := range 1 + random.IntN(7) {
		rule(fmt.Sprint("e", i), pick(random, "", "", "", ", action: allow", ", action: deny", ", action: approve", ", action: tunnel"), "")
		b.WriteString(seldom(random, ", plain: true"))
		b.WriteString("}\n")
	}
	b.WriteString("egressAuth:\n")
	for i := range random.IntN(4) {
		login := pick(random, "", "", "", "", "", "", "", "", "", "ssh", "ssh", pick(random, "postgres", "redis"))
		rule(fmt.Sprint("a", i), "", login)
		fmt.Fprintf(&b, ", authRef: %s", pick(random, "c1", "c2"))
		switch login {
		case "ssh":
			b.WriteString(", inject: {ssh: {user: git, hostKeys: [" + hostKey + "]}}")
		case "postgres", "redis":
			fmt.Fprintf(&b, `, inject: {%s: {username: agent, password: "{{ .token }}"}}`, login)
		}
		if login == "" && random.IntN(3) > 0 {
			fmt.Fprintf(&b, `, inject: {query: {name: q%d, value: "{{ .token }}"}}`, random.IntN(3))
		}
		b.WriteString("}\n")
	}
	b.WriteString("credentials: [{name: c1}, {name: c2}]\n")
	return b.String()
}

// hostKey is one that rules of a random file pin.
const hostKey = `"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"`

// Random is an ask that the rules of a random file may meet.
func Random(random *rand.Rand) Ask {
	a := Ask{
		Phase:   pick(random, "dns", "connect", "request", "request"),
		Sandbox: pick(random, "one", "two", "three"),
		Host: pick(random, "a.example.com", "a.example.com", "a.example.com", "a.example.com", "b.example.com", "x.a.example.com", "example.com", "example.org", "xa.example.com",
			"10.1.2.3", "10.1.9.9", "10.9.9.9", "203.0.113.1", "2001:db8::1", "2001:db8::2"),
	}
	a.Tags = pick(random, nil, map[string]string{"team": "red"}, map[string]string{"team": "red", "env": "prod"}, map[string]string{"team": "blue", "env": "prod"})
	for a.Phase == "dns" && strings.ContainsAny(a.Host[len(a.Host)-1:], "0123456789") {
		a.Phase = pick(random, "dns", "connect", "request") // an address is no name
	}
	if a.Phase != "dns" {
		a.Port = pick(random, 443, 443, 443, 443, 443, 80, 22, 22, 22, 8443, 9, 5432, 6379)
		a.Protocol = pick(random, "tls", "tls", "tls", "http", "http", "other", "other", "ssh", pick(random, "postgres", "redis"))
		switch a.Protocol {
		case "ssh":
			a.Port = pick(random, 22, 22, 443)
		case "postgres":
			a.Port = pick(random, 5432, 443)
		case "redis":
			a.Port = pick(random, 6379, 443)
		}
	}
	if a.Phase == "request" {
		a.Protocol = pick(random, "tls", "tls", "tls", "tls", "tls", "tls", "http", "http", "ssh", pick(random, "postgres", "redis"))
		a.Body = pick(random, "", "", Call, Call, Query, Query, Large, Torn)
		a.Method = pick(random, "GET", "GET", "POST", "HEAD", "PATCH")
		switch a.Protocol {
		case "ssh":
			a.Port, a.Body, a.Method = pick(random, 22, 22, 22, 443), "", pick(random, "git-upload-pack", "git-upload-pack", "git-receive-pack", "exec")
		case "postgres":
			a.Port, a.Body, a.Method = pick(random, 5432, 443), "", "connect"
		case "redis":
			a.Port, a.Body, a.Method = pick(random, 6379, 443), "", "connect"
		}
		a.Path = pick(random, "/", "/x/", "/x/y/z", "/x/y/y/z", "/x/a é&b/z", "/y", "/yy", "/y/y", "/r.git/info", "/r.git/a/b", "/(x|y)+", "/xy", "/X/y/z", "/x/y/Z/", "/X/y./z ", "/x/Y%2FZ", "/Y", "/y ",
			"/x/y%2Fz", "/x/y%2Fz", "/x%2Fy/z", "/x/y%2Fy%2Fz", "/x/y%2Fy/z%2Fz", "/x/y?/z", "/x/y#y%2Fz", "/y?", "/y%2Fy", "/r.git%2Finfo", "/x%2Fy/y%2Fy/y%2Fz")
	}
	return a
}

// condition is what an element of a team's set depends on.
type condition struct {
	rego  string
	holds func(Ask) bool
}

var conditions = []condition{
	{`input.phase != ""`, func(Ask) bool { return true }},
	{`input.phase == "request"`, func(a Ask) bool { return a.Phase == "request" }},
	{`input.sandbox.name == "one"`, func(a Ask) bool { return a.Sandbox == "one" }},
	{`input.sandbox.tags.env == "prod"`, func(a Ask) bool { return a.Tags["env"] == "prod" }},
	{`input.destination.port == 443`, func(a Ask) bool { return a.Phase != "dns" && a.Port == 443 }},
	{`input.request.method == "GET"`, func(a Ask) bool { return a.Method == "GET" }},
	{`input.request.path == "/"`, func(a Ask) bool { return a.Path == "/" }},
	{`startswith(input.request.path, "/x/y/")`, func(a Ask) bool { return strings.HasPrefix(a.Path, "/x/y/") }},
	{`contains(input.request.raw_path, "y%2Fz")`, func(a Ask) bool { return strings.Contains(a.sent, "y%2Fz") }},
	{`endswith(input.destination.host, ".example.com")`, func(a Ask) bool { return strings.HasSuffix(a.Host, ".example.com") }},
}

// element is one of a team's set.
type element struct {
	rego string
	add  func(*Contributed)
}

var elements = []element{
	{`deny contains "no"`, func(c *Contributed) { c.Deny = true }},
	{`deny contains sprintf("no to %s", [input.destination.host])`, func(c *Contributed) { c.Deny = true }},
	{`approve contains "ask"`, func(c *Contributed) { c.Approve = true }},
	{`allow contains {"rule": "t0", "reason": "why not"}`, func(c *Contributed) { c.Allow = append(c.Allow, Offer{Rule: "t0"}) }},
	{`allow contains {"rule": "t1", "protocols": ["http", "tls"]}`, func(c *Contributed) {
		c.Allow = append(c.Allow, Offer{"t1", []string{"http", "tls"}})
	}},
	{`allow contains {"rule": "t2", "protocols": ["other"]}`, func(c *Contributed) { c.Allow = append(c.Allow, Offer{"t2", []string{"other"}}) }},
	{`allow contains {"rule": "t6", "protocols": ["ssh", "redis"]}`, func(c *Contributed) {
		c.Allow = append(c.Allow, Offer{"t6", []string{"ssh", "redis"}})
	}},
	{`allow contains {"rule": "t3", "protocols": []}`, func(c *Contributed) { c.Allow = append(c.Allow, Offer{"t3", []string{}}) }},
	{`allow contains {"reason": input.phase}`, func(c *Contributed) { c.Malformed = true }},
	{`allow contains {"rule": "t4", "reason": count(input.phase)}`, func(c *Contributed) { c.Malformed = true }},
	{`allow contains {"rule": "t5", "protocols": input.phase}`, func(c *Contributed) { c.Malformed = true }},
	{`allow contains {"rule": count(input.phase)}`, func(c *Contributed) { c.Malformed = true }},
	{`allow contains input.phase`, func(c *Contributed) { c.Malformed = true }},
	{`inject contains {"credential": "c1"}`, func(c *Contributed) { c.Inject = append(c.Inject, Put{Credential: "c1"}) }},
	{`inject contains {"credential": "c2", "inject": {"query": {"name": "t", "value": "{{ .token }}"}}}`, func(c *Contributed) {
		c.Inject = append(c.Inject, Put{Credential: "c2", Query: "t"})
	}},
}

// Team writes a random module of a team, and says what it contributes to an ask.
func Team(random *rand.Rand) (string, func(Ask) Contributed) {
	type line struct {
		condition
		element
	}
	var lines []line
	text := "package sallyport.team.x\n\n"
	for _, i := range random.Perm(len(elements))[:1+random.IntN(3)] {
		l := line{pick(random, conditions...), elements[i]}
		lines = append(lines, l)
		text += l.element.rego + " if " + l.condition.rego + "\n\n"
	}
	return text, func(a Ask) Contributed {
		c := Contributed{Package: "sallyport.team.x"}
		for _, l := range lines {
			if l.holds(a) {
				l.add(&c)
			}
		}
		return c
	}
}
