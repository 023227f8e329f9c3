package engine_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sallyport/internal/config"
	"sallyport/internal/test/must"
	"sallyport/policy"
	"sallyport/policy/engine"
)

// seed is the four-line form that must work as it stands.
const seed = `
egressAuth:
- destination: "api.openai.com"
  authRef: "openai-api-key"
credentials:
- name: openai-api-key
`

func compile(t testing.TB, text string, o engine.Options) *engine.Policy {
	t.Helper()
	c, err := config.Parse(filepath.Join(t.TempDir(), "sallyport.yaml"), []byte(text))
	must.OK(t, err)
	p, err := engine.Compile(t.Context(), c.Document, o)
	must.OK(t, err)
	return p
}

// withTeam compiles text with a team's directory made of files.
func withTeam(t testing.TB, text string, files map[string]string) (*engine.Policy, error) {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		file := filepath.Join(dir, name)
		must.OK(t, os.MkdirAll(filepath.Dir(file), 0o755))
		must.OK(t, os.WriteFile(file, []byte(content), 0o600))
	}
	c, err := config.Parse("sallyport.yaml", []byte(text+"\npolicy: {dir: "+dir+"}\n"))
	must.OK(t, err)
	return engine.Compile(t.Context(), c.Document, engine.Options{})
}

func dns(host string) policy.Input {
	return policy.Input{Phase: policy.PhaseDNS, Sandbox: demo, Destination: policy.Destination{Host: host}}
}

func connect(host string, port uint16, protocol policy.Protocol) policy.Input {
	return policy.Input{
		Phase: policy.PhaseConnect, Sandbox: demo, Protocol: protocol,
		Destination: policy.Destination{Host: host, Port: port},
	}
}

func request(method, host, path string) policy.Input {
	return policy.Input{
		Phase: policy.PhaseRequest, Sandbox: demo, Protocol: policy.ProtocolTLS,
		Destination: policy.Destination{Host: host, Port: 443},
		Request:     &policy.Request{Method: method, Scheme: "https", Path: path, Size: -1},
	}
}

func plain(method, host string, port uint16, path string) policy.Input {
	in := request(method, host, path)
	in.Protocol, in.Request.Scheme, in.Destination.Port = policy.ProtocolHTTP, "http", port
	return in
}

func from(s policy.Sandbox, in policy.Input) policy.Input {
	in.Sandbox = s
	return in
}

func port(n uint16, in policy.Input) policy.Input {
	in.Destination.Port = n
	return in
}

var (
	demo    = policy.Sandbox{Name: "demo", ID: "1", Session: "s", Tags: map[string]string{"team": "support"}}
	builder = policy.Sandbox{Name: "builder", ID: "2", Session: "s", Tags: map[string]string{"team": "build", "env": "prod"}}
)

func TestDecide(t *testing.T) {
	const tls, http, other = policy.ProtocolTLS, policy.ProtocolHTTP, policy.ProtocolOther
	type ask struct {
		what string
		in   policy.Input
		want policy.Action
		rule string
	}
	for _, tt := range []struct {
		name string
		yaml string
		asks []ask
	}{
		{"an empty document", ``, []ask{
			{"a name", dns("example.com"), policy.Deny, ""},
			{"a connection", connect("example.com", 443, tls), policy.Deny, ""},
			{"a request", request("GET", "example.com", "/"), policy.Deny, ""},
		}},
		{"the seed", seed, []ask{
			{"its name", dns("api.openai.com"), policy.Allow, "openai-api-key@api.openai.com"},
			{"its name in capitals with a dot", dns("API.OpenAI.com."), policy.Allow, "openai-api-key@api.openai.com"},
			{"its connection", connect("api.openai.com", 443, tls), policy.Allow, "openai-api-key@api.openai.com"},
			{"its request", request("POST", "api.openai.com", "/v1/chat"), policy.Allow, "openai-api-key@api.openai.com"},
			{"another port", connect("api.openai.com", 8443, tls), policy.Deny, ""},
			{"plain HTTP on its port", connect("api.openai.com", 443, http), policy.Deny, "openai-api-key@api.openai.com"},
			{"plain HTTP on 80", connect("api.openai.com", 80, http), policy.Deny, ""},
			{"a protocol of its own", connect("api.openai.com", 443, other), policy.Deny, "openai-api-key@api.openai.com"},
			{"the domain above", request("GET", "openai.com", "/"), policy.Deny, ""},
			{"a name below", request("GET", "x.api.openai.com", "/"), policy.Deny, ""},
			{"a name that ends alike", request("GET", "evilapi.openai.com", "/"), policy.Deny, ""},
		}},
		{"methods and paths", `
egress:
- {name: docs, destination: "*.docs.example.com", methods: [GET], paths: ["/repos/*/issues", "/files/**"]}
`, []ask{
			{"connects, to be read", connect("a.docs.example.com", 443, tls), policy.Allow, "docs"},
			{"one segment", request("GET", "a.docs.example.com", "/repos/x/issues"), policy.Allow, "docs"},
			{"two segments where one is meant", request("GET", "a.docs.example.com", "/repos/x/y/issues"), policy.Deny, ""},
			{"any depth", request("GET", "a.b.docs.example.com", "/files/x/y/z"), policy.Allow, "docs"},
			{"more after the end", request("GET", "a.docs.example.com", "/repos/x/issues/1"), policy.Deny, ""},
			{"something before the start", request("GET", "a.docs.example.com", "/x/repos/x/issues"), policy.Deny, ""},
			{"a new line in the path", request("GET", "a.docs.example.com", "/files/x\n/y"), policy.Deny, ""},
			{"another method", request("POST", "a.docs.example.com", "/files/x"), policy.Deny, ""},
			{"a method in lower case", request("get", "a.docs.example.com", "/files/x"), policy.Deny, ""},
			{"the wildcard's own domain", request("GET", "docs.example.com", "/files/x"), policy.Deny, ""},
			{"not unread", connect("a.docs.example.com", 443, other), policy.Deny, ""},
		}},
		{"globs hold nothing but stars", `
egress:
- {destination: "x.example.com", paths: ["/a.c/[x]/(y)/{z}"]}
`, []ask{
			{"the very characters", request("GET", "x.example.com", "/a.c/[x]/(y)/{z}"), policy.Allow, "x.example.com"},
			{"a dot is a dot", request("GET", "x.example.com", "/abc/[x]/(y)/{z}"), policy.Deny, ""},
			{"a bracket is a bracket", request("GET", "x.example.com", "/a.c/x/(y)/{z}"), policy.Deny, ""},
		}},
		{"deny wins", `
egress:
- {name: all, destination: "*.example.com", ports: [443, 8443, 2222]}
- {name: evil, destination: "evil.example.com", action: deny}
- {name: no-admin, destination: "*.example.com", paths: ["/admin/**"], action: deny}
`, []ask{
			{"the name", dns("evil.example.com"), policy.Deny, "evil"},
			{"its port", connect("evil.example.com", 443, tls), policy.Deny, "evil"},
			{"every other port", connect("evil.example.com", 8443, tls), policy.Deny, "evil"},
			{"a request", request("GET", "evil.example.com", "/"), policy.Deny, "evil"},
			{"a neighbour", request("GET", "good.example.com", "/"), policy.Allow, "all"},
			{"a denied path of it", request("GET", "good.example.com", "/admin/x"), policy.Deny, "no-admin"},
			{"its connection is read", connect("good.example.com", 443, tls), policy.Allow, "all"},
			{"what cannot be read could be a denied path", connect("good.example.com", 2222, other), policy.Deny, "no-admin"},
		}},
		{"other protocols", `
egress:
- {name: database, destination: 10.20.0.0/16, ports: [5432]}
- {name: named, destination: "db.example.com:5432"}
- {name: web, destination: "web.example.com:443"}
- {name: bare, destination: "bare.example.com"}
- {name: conditional, destination: "api.example.com:5432", methods: [GET]}
- {name: tunnel, destination: "t.example.com", action: tunnel}
`, []ask{
			{"a network's port that is named", connect("10.20.1.1", 5432, other), policy.Tunnel, "database"},
			{"TLS there is read", connect("10.20.1.1", 5432, tls), policy.Allow, "database"},
			{"a name's port that is named", connect("db.example.com", 5432, other), policy.Deny, ""},
			{"the web's port", connect("web.example.com", 443, other), policy.Deny, ""},
			{"no port", connect("bare.example.com", 443, other), policy.Deny, ""},
			{"methods", connect("api.example.com", 5432, other), policy.Deny, ""},
			{"a tunnel", connect("t.example.com", 443, other), policy.Tunnel, "tunnel"},
			{"a tunnel of TLS", connect("t.example.com", 443, tls), policy.Tunnel, "tunnel"},
			{"a tunnel of plain HTTP", connect("t.example.com", 443, http), policy.Deny, ""},
		}},
		{"a tunnel where something must be read", `
egress:
- {name: tunnel, destination: "*.example.com", action: tunnel}
- {name: no-post, destination: "a.example.com", methods: [POST], action: deny}
- {name: read, destination: "b.example.com", methods: [GET]}
`, []ask{
			{"elsewhere", connect("x.example.com", 443, tls), policy.Tunnel, "tunnel"},
			{"where requests are denied", connect("a.example.com", 443, tls), policy.Allow, "tunnel"},
			{"the denied request", request("POST", "a.example.com", "/"), policy.Deny, "no-post"},
			{"the others", request("GET", "a.example.com", "/"), policy.Allow, "tunnel"},
			{"where another rule reads", connect("b.example.com", 443, tls), policy.Allow, "read"},
		}},
		{"plain HTTP", `
egress:
- {name: plain, destination: "p.example.com", plain: true}
- {name: tls, destination: "t.example.com", ports: [80]}
`, []ask{
			{"on 80", connect("p.example.com", 80, http), policy.Allow, "plain"},
			{"its request", plain("GET", "p.example.com", 80, "/"), policy.Allow, "plain"},
			{"TLS as well", request("GET", "p.example.com", "/"), policy.Allow, "plain"},
			{"not without plain", connect("t.example.com", 80, http), policy.Deny, ""},
			{"nor its request", plain("GET", "t.example.com", 80, "/"), policy.Deny, ""},
		}},
		{"addresses", `
egress:
- {name: corp, destination: 10.20.0.0/16, ports: [5432]}
- {name: hole, destination: 10.20.30.0/24, action: deny}
- {name: one, destination: "198.51.100.7"}
- {name: six, destination: "[2001:db8::1]:8443"}
`, []ask{
			{"inside", connect("10.20.1.2", 5432, other), policy.Tunnel, "corp"},
			{"the hole in it", connect("10.20.30.1", 5432, other), policy.Deny, "hole"},
			{"outside", connect("10.21.1.2", 5432, other), policy.Deny, ""},
			{"one address", connect("198.51.100.7", 443, tls), policy.Allow, "one"},
			{"as v4 in v6", connect("::ffff:198.51.100.7", 443, tls), policy.Allow, "one"},
			{"the next one", connect("198.51.100.8", 443, tls), policy.Deny, ""},
			{"an IPv6 address", connect("2001:db8::1", 8443, tls), policy.Allow, "six"},
			{"with a zone", connect("2001:db8::1%eth0", 8443, tls), policy.Deny, ""},
			{"as one number", connect("3325256711", 443, tls), policy.Deny, ""},
			{"in hexadecimal", connect("0xc6336407", 443, tls), policy.Deny, ""},
			{"cut short", connect("198.51.25607", 443, tls), policy.Deny, ""},
			{"as a name to look up", dns("198.51.100.7"), policy.Deny, ""},
		}},
		{"names in other scripts", `
egress:
- {name: idn, destination: "Bücher.Example.com."}
`, []ask{
			{"in A-labels", request("GET", "xn--bcher-kva.example.com", "/"), policy.Allow, "idn"},
			{"not as the sandbox must not send them", request("GET", "bücher.example.com", "/"), policy.Deny, ""},
		}},
		{"sandboxes", `
egress:
- {name: named, destination: "n.example.com", sandboxes: {names: [demo, other]}}
- {name: tagged, destination: "t.example.com", sandboxes: {tags: {team: build, env: prod}}}
- {name: both, destination: "b.example.com", sandboxes: {names: [builder], tags: {team: support}}}
`, []ask{
			{"the named one", request("GET", "n.example.com", "/"), policy.Allow, "named"},
			{"another", from(builder, request("GET", "n.example.com", "/")), policy.Deny, ""},
			{"all tags", from(builder, request("GET", "t.example.com", "/")), policy.Allow, "tagged"},
			{"one tag of two", from(policy.Sandbox{Name: "x", Tags: map[string]string{"env": "prod"}}, request("GET", "t.example.com", "/")), policy.Deny, ""},
			{"no tags", from(policy.Sandbox{Name: "x"}, dns("t.example.com")), policy.Deny, ""},
			{"name without tag", from(builder, request("GET", "b.example.com", "/")), policy.Deny, ""},
		}},
		{"an egressAuth rule governs its destination", `
egress:
- {name: wide, destination: "*.example.com", ports: [443, 8443], plain: true}
egressAuth:
- {name: api, destination: api.example.com, authRef: key, methods: [GET, POST], paths: ["/repos/**"], sandboxes: {names: [demo]}}
credentials: [{name: key}]
`, []ask{
			{"what it matches", request("POST", "api.example.com", "/repos/x"), policy.Allow, "api"},
			{"another method is not left to the wider rule", request("DELETE", "api.example.com", "/repos/x"), policy.Deny, "api"},
			{"nor another path", request("GET", "api.example.com", "/users"), policy.Deny, "api"},
			{"the connection is read", connect("api.example.com", 443, tls), policy.Allow, "api"},
			{"plain HTTP on its port is denied", plain("GET", "api.example.com", 443, "/repos/x"), policy.Deny, "api"},
			{"its other ports are the wider rule's", port(8443, request("GET", "api.example.com", "/users")), policy.Allow, "wide"},
			{"other hosts too", request("GET", "www.example.com", "/users"), policy.Allow, "wide"},
			{"and other sandboxes", from(builder, request("GET", "api.example.com", "/users")), policy.Allow, "wide"},
		}},
		{"approve", `
egress:
- {name: all, destination: "*.example.com"}
- {name: ask, destination: "pay.example.com", methods: [POST], action: approve}
- {name: raw, destination: "raw.example.com", ports: [22], action: approve}
`, []ask{
			{"the name", dns("pay.example.com"), policy.Allow, "ask"},
			{"the connection", connect("pay.example.com", 443, tls), policy.Allow, "ask"},
			{"the request", request("POST", "pay.example.com", "/"), policy.Approve, "ask"},
			{"another request", request("GET", "pay.example.com", "/"), policy.Allow, "all"},
			{"what cannot be read", connect("raw.example.com", 22, other), policy.Approve, "raw"},
		}},
		{"approve with a credential", `
egress:
- {name: ask, destination: "api.example.com", methods: [DELETE], action: approve}
egressAuth:
- {name: api, destination: "api.example.com", authRef: key, methods: [GET, DELETE]}
credentials: [{name: key}]
`, []ask{
			{"both match", request("DELETE", "api.example.com", "/"), policy.Approve, "ask"},
			{"the credential's alone", request("GET", "api.example.com", "/"), policy.Allow, "api"},
			{"neither", request("PUT", "api.example.com", "/"), policy.Deny, "api"},
		}},
		{"the most exact rule is named", `
egress:
- {name: a, destination: "*.com", sandboxes: {names: [demo]}}
- {name: b, destination: "*.example.com"}
- {name: c, destination: "www.example.com"}
`, []ask{
			{"the host", request("GET", "www.example.com", "/"), policy.Allow, "c"},
			{"the nearer wildcard", request("GET", "x.example.com", "/"), policy.Allow, "b"},
			{"the wider one", request("GET", "x.com", "/"), policy.Allow, "a"},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := compile(t, tt.yaml, engine.Options{})
			for _, a := range tt.asks {
				d := p.Decide(t.Context(), a.in)
				if d.Action != a.want || d.Rule != a.rule {
					t.Errorf("%s: got %s by %q (%s, %v), want %s by %q", a.what, d.Action, d.Rule, d.Reason, d.Err, a.want, a.rule)
				}
				if d.Err != nil || d.Reason == "" || d.Revision != p.Revision() {
					t.Errorf("%s: got %+v, want a reason, the revision and no error", a.what, d)
				}
				// The explanation is made in Go, the decision in Rego: they must agree.
				e := p.Explain(t.Context(), a.in)
				if diff := cmp.Diff(e.Decision, d); diff != "" {
					t.Errorf("%s: explained another decision: %s", a.what, diff)
				}
				if d.Action != policy.Deny && !holds(e.Near, d.Rule) {
					t.Errorf("%s: allowed by %s, and the explanation lists no such rule that failed on nothing: %+v", a.what, d.Rule, e.Near)
				}
			}
		})
	}
}

func holds(near []policy.Near, rule string) bool {
	for _, n := range near {
		if n.Rule == rule && len(n.Failed) == 0 {
			return true
		}
	}
	return false
}

func TestInject(t *testing.T) {
	p := compile(t, `
egressAuth:
- {name: one, destination: "*.example.com", authRef: a, sandboxes: {tags: {env: prod}}}
- {name: two, destination: "api.example.com", authRef: b, inject: {query: {name: key, value: "{{ .token }}"}}}
- {name: clash, destination: "api.example.com", authRef: b, sandboxes: {tags: {team: build}}, paths: ["/x"], inject: {header: {name: authorization, value: "{{ .token }}"}}}
- {name: roots, destination: "in.example.org", authRef: a, upstream: {addresses: [10.0.0.0/8], resolver: "10.0.0.53:53"}}
credentials: [{name: a}, {name: b}]
`, engine.Options{})

	d := p.Decide(t.Context(), from(builder, request("GET", "api.example.com", "/y")))
	var got []string
	for _, i := range d.Inject {
		got = append(got, i.Credential)
	}
	if diff := cmp.Diff(got, []string{"a", "b"}); diff != "" || d.Action != policy.Allow {
		t.Errorf("two places: %+v %s", d, diff)
	}
	if d := p.Decide(t.Context(), connect("api.example.com", 443, policy.ProtocolTLS)); d.Action != policy.Allow || d.Inject != nil {
		t.Errorf("a connection carries no credential: %+v", d)
	}
	// The tags of two rules may meet in one sandbox: only the decision can tell.
	if d := p.Decide(t.Context(), from(builder, request("GET", "api.example.com", "/x"))); d.Action != policy.Deny || d.RuleType != "floor" || d.Inject != nil {
		t.Errorf("two credentials in one place: %+v", d)
	}
	if d := p.Decide(t.Context(), request("GET", "in.example.org", "/")); d.Upstream == nil || d.Upstream.Resolver != "10.0.0.53:53" {
		t.Errorf("upstream: %+v", d)
	}
	for _, b := range []struct {
		credential, host string
		port             uint16
		want             bool
	}{
		{"a", "x.example.com", 443, true},
		{"a", "X.Example.com.", 443, true},
		{"a", "example.com", 443, false},
		{"b", "x.example.com", 443, false},
		{"a", "x.example.com", 8443, false},
		{"c", "x.example.com", 443, false},
		{"a", "", 443, false},
	} {
		if got := p.Bound(b.credential, b.host, b.port); got != b.want {
			t.Errorf("Bound(%q, %q, %d): got %v", b.credential, b.host, b.port, got)
		}
	}
}

func TestDecideRefusesBrokenInput(t *testing.T) {
	p := compile(t, `egress: [{destination: "*.example.com", plain: true, ports: [443, 80]}]`, engine.Options{})
	good := request("GET", "a.example.com", "/")
	for name, change := range map[string]func(*policy.Input){
		"no phase":          func(in *policy.Input) { in.Phase = "" },
		"no request":        func(in *policy.Input) { in.Request = nil },
		"no host":           func(in *policy.Input) { in.Destination.Host = "" },
		"no port":           func(in *policy.Input) { in.Destination.Port = 0 },
		"a host with space": func(in *policy.Input) { in.Destination.Host = "a b.example.com" },
		"a host with NUL":   func(in *policy.Input) { in.Destination.Host = "a\x00.example.com" },
		"an empty label":    func(in *policy.Input) { in.Destination.Host = "a..example.com" },
		"a long host":       func(in *policy.Input) { in.Destination.Host = strings.Repeat("a.", 130) + "example.com" },
		"another scheme":    func(in *policy.Input) { in.Request.Scheme = "ftp" },
		"scheme and connection differ": func(in *policy.Input) {
			in.Request.Scheme = "http"
		},
		"a relative path": func(in *policy.Input) { in.Request.Path = "x" },
		"a dot segment":   func(in *policy.Input) { in.Request.Path = "/a/../b" },
		"no method":       func(in *policy.Input) { in.Request.Method = "" },
		"a method that servers may take for another": func(in *policy.Input) { in.Request.Method = "delete" },
		"two methods": func(in *policy.Input) { in.Request.Method = "GET /x" },
	} {
		in, r := good, *good.Request
		in.Request = &r
		change(&in)
		if d := p.Decide(t.Context(), in); d.Action != policy.Deny || d.Reason == "" {
			t.Errorf("%s: got %+v", name, d)
		}
	}
	if d := p.Decide(t.Context(), good); d.Action != policy.Allow {
		t.Errorf("the unbroken one: %+v", d)
	}
}

func TestDecideTimeout(t *testing.T) {
	p, err := withTeam(t, `egress: [{destination: "a.example.com"}]`, map[string]string{"slow.rego": `package sallyport.team.slow
deny contains "never" if {
	some i in numbers.range(1, 100000)
	some j in numbers.range(1, 100000)
	i * j == 0
}`})
	must.OK(t, err)
	start := time.Now()
	d := p.Decide(t.Context(), request("GET", "a.example.com", "/"))
	if d.Action != policy.Deny || !errors.Is(d.Err, engine.ErrUndecided) {
		t.Errorf("got %+v, want deny with ErrUndecided", d)
	}
	if took := time.Since(start); took > time.Minute {
		t.Errorf("took %v", took)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if d := p.Decide(ctx, request("GET", "a.example.com", "/")); d.Action != policy.Deny || d.Err == nil {
		t.Errorf("a caller that has left: %+v", d)
	}
}

func TestExplain(t *testing.T) {
	p := compile(t, `
egressAuth:
- {name: api, destination: api.example.com, authRef: key, methods: [GET], paths: ["/a/**"]}
- {name: theirs, destination: api.example.com, authRef: key, methods: [GET], sandboxes: {names: [x]}, ports: [8443]}
egress:
- {name: www, destination: www.example.com}
credentials: [{name: key}]
`, engine.Options{})
	e := p.Explain(t.Context(), request("GET", "api.example.com", "/a/b"))
	if diff := cmp.Diff(e.Credentials, []string{"key"}); diff != "" {
		t.Error(diff)
	}
	e = p.Explain(t.Context(), request("POST", "api.example.com", "/b"))
	got := map[string][]string{}
	for _, n := range e.Near {
		got[n.Rule] = n.Failed
		if n.Position.Line == 0 {
			t.Errorf("%s has no position", n.Rule)
		}
	}
	want := map[string][]string{"api": {"method", "path"}, "theirs": {"sandbox", "port", "method"}}
	if diff := cmp.Diff(got, want); diff != "" {
		t.Error(diff)
	}
	e = p.Explain(t.Context(), request("GET", "wwww.example.com", "/b"))
	if len(e.Near) == 0 || e.Near[0].Failed[0] != "host" {
		t.Errorf("a slip of the keyboard: %+v", e.Near)
	}
}
