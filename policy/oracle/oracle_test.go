package oracle_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"sallyport/internal/config"
	"sallyport/policy"
	"sallyport/policy/oracle"
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

// document writes a random file: few hosts and few of everything, so that rules
// meet. It uses what YAML's users do: flow style, quotes, defaults left out.
func document(random *rand.Rand) string {
	var b strings.Builder
	rule := func(name, action string) {
		at := pick(random,
			"a.example.com", "a.example.com", "a.example.com", "b.example.com", "A.Example.COM.", "*.example.com", "*.example.com", "*.a.example.com", "*.com",
			"a.example.com:8443", "*.example.com:22", "10.0.0.0/8", "10.1.0.0/16", "10.1.2.3", "10.1.2.3:22", "2001:db8::/32", "[2001:db8::1]:443", "0.0.0.0/0")
		fmt.Fprintf(&b, "- {name: %s, destination: %q%s", name, at, action)
		if !strings.Contains(action, "tunnel") {
			b.WriteString(seldom(random, ", methods: [GET]", ", methods: [POST, PUT]", ", methods: [GET, HEAD, DELETE]"))
			b.WriteString(seldom(random, `, paths: ["/x/**"]`, `, paths: ["/x/*/z"]`, `, paths: ["/", "/y*"]`, `, paths: ["**.git/*"]`, `, paths: ["/(x|y)+"]`))
		}
		b.WriteString(seldom(random, ", sandboxes: {names: [one]}", ", sandboxes: {names: [one, two]}", ", sandboxes: {tags: {team: red}}",
			", sandboxes: {tags: {team: red, env: prod}}", ", sandboxes: {names: [two], tags: {env: prod}}"))
		if host := strings.TrimSuffix(at, "]:443"); host == at && (strings.Count(at, ":") != 1) {
			b.WriteString(seldom(random, ", ports: [443]", ", ports: [22]", ", ports: [80, 443]", ", ports: [22, 8443]"))
		}
	}
	b.WriteString("egress:\n")
	for i := range 1 + random.IntN(7) {
		rule(fmt.Sprint("e", i), pick(random, "", "", "", ", action: allow", ", action: deny", ", action: approve", ", action: tunnel"))
		b.WriteString(seldom(random, ", plain: true"))
		b.WriteString("}\n")
	}
	b.WriteString("egressAuth:\n")
	for i := range random.IntN(4) {
		rule(fmt.Sprint("a", i), "")
		fmt.Fprintf(&b, ", authRef: %s", pick(random, "c1", "c2"))
		if random.IntN(3) > 0 {
			fmt.Fprintf(&b, `, inject: {query: {name: q%d, value: "{{ .token }}"}}`, random.IntN(3))
		}
		b.WriteString("}\n")
	}
	b.WriteString("credentials: [{name: c1}, {name: c2}]\n")
	return b.String()
}

func ask(random *rand.Rand) oracle.Ask {
	a := oracle.Ask{
		Phase:   pick(random, "dns", "connect", "request", "request"),
		Sandbox: pick(random, "one", "two", "three"),
		Host: pick(random, "a.example.com", "a.example.com", "a.example.com", "a.example.com", "b.example.com", "x.a.example.com", "example.com", "example.org", "xa.example.com",
			"10.1.2.3", "10.1.9.9", "10.9.9.9", "203.0.113.1", "2001:db8::1", "2001:db8::2"),
	}
	a.Tags = pick(random, nil, map[string]string{"team": "red"}, map[string]string{"team": "red", "env": "prod"}, map[string]string{"team": "blue", "env": "prod"})
	if a.Phase != "dns" {
		a.Port = pick(random, 443, 443, 443, 443, 443, 80, 22, 22, 8443, 9)
		a.Protocol = pick(random, "tls", "tls", "http", "other")
	}
	if a.Phase == "request" {
		a.Protocol = pick(random, "tls", "tls", "tls", "http")
		a.Method = pick(random, "GET", "GET", "POST", "HEAD", "PATCH")
		a.Path = pick(random, "/", "/x/", "/x/y/z", "/x/y/y/z", "/x/a é&b/z", "/y", "/yy", "/y/y", "/r.git/info", "/r.git/a/b", "/(x|y)+", "/xy", "/X/y/z")
	}
	return a
}

func input(a oracle.Ask) policy.Input {
	in := policy.Input{
		Phase:       policy.Phase(a.Phase),
		Sandbox:     policy.Sandbox{Name: a.Sandbox, ID: "id-" + a.Sandbox, Tags: a.Tags},
		Destination: policy.Destination{Host: a.Host, Port: uint16(a.Port)},
		Protocol:    policy.Protocol(a.Protocol),
	}
	if a.Phase == "request" {
		scheme := "https"
		if a.Protocol == "http" {
			scheme = "http"
		}
		in.Request = &policy.Request{Method: a.Method, Scheme: scheme, Path: a.Path, Size: -1}
	}
	return in
}

// differs says in what a decision is not the verdict.
func differs(want oracle.Verdict, got policy.Decision) string {
	var credentials []string
	for _, i := range got.Inject {
		place := "Authorization"
		if q := i.Inject.Query; q != nil {
			place = "?" + q.Name
		}
		credentials = append(credentials, i.Credential+" "+place)
	}
	slices.Sort(credentials)
	switch {
	case got.Err != nil:
		return got.Err.Error()
	case string(got.Action) != want.Action:
		return fmt.Sprintf("%s by %q (%s), want %s by %q", got.Action, got.Rule, got.Reason, want.Action, want.Rules)
	case len(want.Rules) == 0 && got.Rule != "", len(want.Rules) > 0 && !slices.Contains(want.Rules, got.Rule):
		return fmt.Sprintf("%s by %q, want one of %q", got.Action, got.Rule, want.Rules)
	case !slices.Equal(credentials, want.Credentials):
		return fmt.Sprintf("credentials %q, want %q", credentials, want.Credentials)
	}
	return ""
}

// TestProperty compares the compiled policy with the oracle: 100,000 asks of
// random files. It says how often each outcome was met, so that none is missing.
func TestProperty(t *testing.T) {
	const asks, each = 100_000, 80
	random := rand.New(rand.NewPCG(2026, 11))
	met := map[string]int{}
	compiled, refused := 0, 0
	for n := 0; n < asks; {
		text := document(random)
		c, err := config.Parse("sallyport.yaml", []byte(text))
		if err != nil {
			refused++ // a rule contradicts itself or another
			continue
		}
		p, err := policy.Compile(t.Context(), c.Document, policy.Options{})
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		compiled++
		d, err := oracle.Read([]byte(text))
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		for range each {
			a := ask(random)
			if a.Phase == "dns" && strings.ContainsAny(a.Host[len(a.Host)-1:], "0123456789") {
				continue // an address is no name
			}
			n++
			want, got := d.Judge(a), p.Decide(t.Context(), input(a))
			if why := differs(want, got); why != "" {
				t.Fatalf("%s\nof %+v\nunder\n%s", why, a, text)
			}
			outcome := want.Action + " in " + a.Phase
			if want.Rules == nil {
				outcome += " by no rule"
			}
			if len(want.Credentials) > 0 {
				outcome += fmt.Sprint(" with credentials: ", len(want.Credentials))
			}
			met[outcome]++
		}
	}
	t.Logf("%d files, %d more refused", compiled, refused)
	for outcome, n := range met {
		t.Logf("%6d  %s", n, outcome)
	}
	for _, outcome := range []string{
		"deny in dns", "deny in dns by no rule", "allow in dns", "deny in connect", "deny in connect by no rule", "allow in connect", "tunnel in connect",
		"approve in connect", "deny in request", "deny in request by no rule", "allow in request", "approve in request",
		"allow in request with credentials: 1", "allow in request with credentials: 2", "approve in request with credentials: 1",
	} {
		if met[outcome] < 10 {
			t.Errorf("%s was met %d times", outcome, met[outcome])
		}
	}
}
