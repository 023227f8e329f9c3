package check

import (
	"fmt"
	"slices"
	"strings"

	"sallyport/internal/hostname"
	"sallyport/policy"
	"sallyport/policy/engine"
	"sallyport/policy/finding"
	"sallyport/policy/rego"
	"sallyport/policy/rule"
	"sallyport/policy/urlpath"

	"github.com/open-policy-agent/opa/v1/ast"
)

// lintTeam finds what a team's Rego says that the compiler takes and that cannot
// be meant. The rules are those of the document beside it.
func lintTeam(t *rego.Team, rules []rule.Rule) []finding.Finding {
	l := &linter{used: map[string]bool{}}
	names := make([]string, 0, len(t.Modules))
	for name, m := range t.Modules {
		names = append(names, name)
		l.uses(m)
	}
	slices.Sort(names)
	for _, name := range names {
		for _, r := range t.Modules[name].Rules {
			l.rule(t.Modules[name], r)
		}
	}
	l.unreachable(rules)
	l.unseen(t, rules)
	return l.findings
}

type linter struct {
	findings []finding.Finding
	used     map[string]bool // names that some rule refers to
	offers   []*ast.Rule     // allow rules that ask for a request
	opening  bool            // some allow rule does not
	clock    bool
}

func (l *linter) say(k finding.Kind, at *ast.Location, message, fix string) {
	l.findings = append(l.findings, k.Finding(rego.Position(at), "", message, fix))
}

// uses collects the names that rules are referred to by: as a variable of their
// own package, or at the end of a path below data.
func (l *linter) uses(m *ast.Module) {
	collect := func(x any) {
		ast.WalkVars(x, func(v ast.Var) bool { l.used[string(v)] = true; return false })
		ast.WalkRefs(x, func(r ast.Ref) bool {
			for _, t := range r[1:] {
				if s, ok := t.Value.(ast.String); ok {
					l.used[string(s)] = true
				}
			}
			return false
		})
	}
	for _, r := range m.Rules {
		for at := r; at != nil; at = at.Else {
			collect(at.Head.Args)
			collect(at.Body)
			for _, t := range []*ast.Term{at.Head.Key, at.Head.Value} {
				if t != nil {
					collect(t)
				}
			}
		}
	}
}

func (l *linter) rule(m *ast.Module, r *ast.Rule) {
	name := r.Head.Ref()[0].Value.String()
	member := slices.Contains(rego.SetNames, name)
	if near := finding.Nearest(name, rego.SetNames); !member && near != "" && !l.used[name] && len(r.Head.Args) == 0 {
		fix := "did you mean " + near + " contains …?"
		if r.Head.RuleKind() == ast.MultiValue {
			fix = fmt.Sprintf("did you mean %s contains %s?", near, r.Head.Key)
		}
		l.say(finding.Misspelt, r.Location, fmt.Sprintf("%s takes part in no decision, and nothing refers to it", name), fix)
	}
	for at := r; at != nil; at = at.Else {
		l.body(at.Body)
	}
	if name == "allow" && r.Head.RuleKind() == ast.MultiValue {
		l.offer(r)
	}
	if !l.clock {
		ast.WalkTerms(r, func(t *ast.Term) bool {
			call, ok := t.Value.(ast.Call)
			l.tick(ok && call[0].Value.String() == nowName, t.Location)
			return false
		})
		ast.WalkExprs(r, func(e *ast.Expr) bool {
			l.tick(e.IsCall() && e.Operator().String() == nowName, e.Location)
			return false
		})
	}
}

const nowName = "time.now_ns"

func (l *linter) tick(reads bool, at *ast.Location) {
	if reads && !l.clock {
		l.clock = true
		l.say(finding.NothingKept, at, "the policy reads the clock, so every request is evaluated anew",
			"leave it if that is meant, else decide without "+nowName)
	}
}

// asksFor reports whether something below x refers to this part of input.
func asksFor(x any, part string) bool {
	found := false
	ast.WalkRefs(x, func(r ast.Ref) bool {
		if r[0].Equal(ast.InputRootDocument) && (len(r) == 1 || r[1].Equal(ast.StringTerm(part))) {
			found = true
		}
		return found
	})
	return found
}

// offer judges an allow by what it asks of the input in its own body: a rule that
// it refers to may ask for anything.
func (l *linter) offer(r *ast.Rule) {
	asks, others := false, false
	ast.WalkRefs(r.Body, func(ref ast.Ref) bool {
		switch {
		case ref[0].Equal(ast.InputRootDocument) && (len(ref) == 1 || !ref[1].Equal(ast.InternedTerm("phase")) && !ref[1].Equal(ast.InternedTerm("protocol"))):
			asks = true
		case ref[0].Equal(ast.DefaultRootDocument):
			others = true
		}
		return false
	})
	ast.WalkVars(r.Body, func(v ast.Var) bool {
		// A variable that is neither generated nor a built-in function may be a rule or a
		// function of the team's.
		if !v.IsGenerated() && !v.IsWildcard() && ast.BuiltinMap[string(v)] == nil && v != ast.InputRootDocument.Value {
			others = true
		}
		return false
	})
	if !asks && !others {
		l.say(finding.Unconditional, r.Location, "allows every destination to every sandbox that no deny stops",
			"add a condition, as in if input.destination.host == \"api.example.com\"")
	}
	if asksFor(r.Body, "request") {
		l.offers = append(l.offers, r)
	} else {
		l.opening = true
	}
}

// unreachable warns of allows of requests where nothing can have allowed the
// connection before: neither Rego nor a rule of the document.
func (l *linter) unreachable(rules []rule.Rule) {
	if l.opening || slices.ContainsFunc(rules, func(r rule.Rule) bool { return r.Action != policy.Deny }) {
		return
	}
	for _, r := range l.offers {
		l.say(finding.RequestOnly, r.Location, "no request reaches it: nothing allows the name and the connection before, where there is no input.request",
			"add an allow for the phases dns and connect, as in if { input.destination.host == …; not input.request }")
	}
}

// body finds conditions that cannot hold.
func (l *linter) body(body ast.Body) {
	known := map[string]*ast.Term{} // what a part of input must be
	for _, e := range body {
		if e.Negated || len(e.With) > 0 {
			continue
		}
		if t, ok := e.Terms.(*ast.Term); ok {
			if b, ok := t.Value.(ast.Boolean); ok && !bool(b) {
				l.say(finding.NeverHolds, e.Location, "false never holds, so the rule does nothing", "remove the rule")
			}
		}
		if !e.IsEquality() && !isEqual(e) || len(e.Operands()) != 2 {
			continue
		}
		ref, want, ok := compared(e)
		if !ok {
			continue
		}
		path := ref.String()
		l.value(e, path, want)
		if other := known[path]; other != nil && !other.Equal(want) {
			l.say(finding.NeverHolds, e.Location, fmt.Sprintf("%s cannot be both %v and %v", path, other, want),
				fmt.Sprintf("write %s in {%v, %v} to mean either", path, other, want))
		}
		known[path] = want
	}
	phase := known["input.phase"]
	if phase == nil || phase.Equal(ast.StringTerm(string(policy.PhaseRequest))) {
		return
	}
	for _, e := range body {
		if !e.Negated && len(e.With) == 0 && asksFor(e, "request") {
			l.say(finding.NeverHolds, e.Location, fmt.Sprintf("there is no input.request in phase %s", bare(phase)), "write input.phase == \"request\", or look at input.destination")
			return
		}
	}
}

func bare(t *ast.Term) string { return strings.Trim(t.Value.String(), `"`) }

func isEqual(e *ast.Expr) bool {
	return e.IsCall() && e.Operator().Equal(ast.Equal.Ref()) || e.IsAssignment()
}

// compared takes "input.x == constant" apart, either way round.
func compared(e *ast.Expr) (ast.Ref, *ast.Term, bool) {
	a, b := e.Operand(0), e.Operand(1)
	if _, ok := a.Value.(ast.Ref); !ok {
		a, b = b, a
	}
	ref, ok := a.Value.(ast.Ref)
	if !ok || !ref[0].Equal(ast.InputRootDocument) || !ref.IsGround() {
		return nil, nil, false
	}
	switch b.Value.(type) {
	case ast.String, ast.Number, ast.Boolean, ast.Null:
		return ref, b, true
	}
	return nil, nil, false
}

// enums lists what parts of input can be: see schema/input.json.
var enums = map[string][]string{
	"input.phase":          {string(policy.PhaseDNS), string(policy.PhaseConnect), string(policy.PhaseRequest), string(policy.PhaseInbound), string(policy.PhaseSSH)},
	"input.protocol":       {string(policy.ProtocolTLS), string(policy.ProtocolHTTP), string(policy.ProtocolOther), string(policy.ProtocolSSH), string(policy.ProtocolPostgres), string(policy.ProtocolRedis), string(policy.ProtocolShell), string(policy.ProtocolSFTP), string(policy.ProtocolForward)},
	"input.request.scheme": {"https", "http"},
}

// value judges a comparison by the form that a part of input is always in.
func (l *linter) value(e *ast.Expr, path string, want *ast.Term) {
	s, ok := want.Value.(ast.String)
	if !ok {
		return // of another type: the compiler's to say
	}
	text := string(s)
	never := func(message, fix string) { l.say(finding.NeverHolds, e.Location, message, fix) }
	if enum := enums[path]; enum != nil {
		if slices.Contains(enum, text) {
			return
		}
		fix := "write one of " + strings.Join(enum, ", ")
		if near := finding.Nearest(text, enum); near != "" {
			fix = fmt.Sprintf("did you mean %q?", near)
		}
		never(fmt.Sprintf("%s is never %q", path, text), fix)
		return
	}
	switch path {
	case "input.request.method":
		if up := strings.ToUpper(text); up != text {
			never(fmt.Sprintf("%s is never %q: methods are in upper case", path, text), fmt.Sprintf("write %q", up))
		}
	case "input.destination.host":
		host, _, err := hostname.Parse(text)
		switch {
		case err != nil && strings.Contains(text, "*"):
			never(fmt.Sprintf("%s is never %q: it is one name", path, text), fmt.Sprintf("write endswith(%s, %q)", path, strings.TrimPrefix(text, "*")))
		case err != nil:
			never(fmt.Sprintf("%s is never %q: it is a name without port or path", path, text), "write the name alone")
		case host != text:
			never(fmt.Sprintf("%s is never %q: it is in lower case, without trailing dot", path, text), fmt.Sprintf("write %q", host))
		}
	case "input.request.path", "input.request.raw_path":
		if clean, err := urlpath.Normalize(text); err != nil || clean != text {
			never(fmt.Sprintf("%s is never %q: it is decoded and normalised, and without the query", path, text),
				"write the path as a server resolves it, and an encoded slash as %2F")
		}
	}
}

// unseen warns of rules that ask for bodies that no Rego looks at.
func (l *linter) unseen(t *rego.Team, rules []rule.Rule) {
	library := ast.MustParseRef("data.sallyport.library") // which may look
	for _, m := range t.Modules {
		seen := false
		ast.WalkRefs(m, func(ref ast.Ref) bool {
			seen = seen || ref[0].Equal(ast.InputRootDocument) && engine.FieldsOf(ref)&engine.FieldBody != 0 || ref.HasPrefix(library)
			return seen
		})
		if seen {
			return
		}
	}
	for _, r := range rules {
		if r.Body != nil {
			l.findings = append(l.findings, finding.BodyUnseen.Finding(r.Position, r.Path+".body",
				"no Rego looks at input.request.body: whatever is JSON passes",
				"deny what must not pass, as in deny contains \"…\" if not input.request.body.json.model in {…}, or remove it"))
		}
	}
}
