package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/textproto"
	"slices"
	"strings"
	"time"

	"sallyport/internal/hostname"
	"sallyport/policy"
	"sallyport/policy/rego"
	"sallyport/policy/rule"
	"sallyport/policy/urlpath"

	"github.com/open-policy-agent/opa/v1/ast"
)

// Testbed is what the tests of a policy run on: see package regotest. It has the policy
// itself, and its Rego once more in a form that OPA's test runner can trace.
type Testbed struct {
	Rego    map[string]*ast.Module // the team's own, by file
	Tests   map[string]*ast.Module // the team's tests, by file
	Modules map[string]*ast.Module // all Rego that takes part, the tests included
	Data    ast.Object

	policy *Policy
}

// NewTestbed loads and checks what is tested as [Compile] does. Where folders are named, they
// are read in place of the document's own.
func NewTestbed(ctx context.Context, doc policy.Document, dirs []string) (*Testbed, error) {
	if dirs == nil && doc.Policy.Dir != "" {
		dirs = []string{doc.Policy.Dir}
	}
	team, err := rego.LoadAll(dirs)
	p, err := compile(ctx, doc, team, err, Options{})
	if err != nil {
		return nil, err
	}
	p.observing = nil // a test asks what is enforced
	b := &Testbed{Rego: team.Modules, Tests: team.Tests, policy: p}
	if b.Modules, err = modules(team); err != nil {
		return nil, err
	}
	maps.Copy(b.Modules, team.Tests)
	if err := rego.AddLibrary(b.Modules); err != nil { // packages that only tests import
		return nil, err
	}
	b.Data, err = data(team)
	return b, err
}

// Compiler returns a new compiler of what is tested. It takes what Sallyport takes when it
// decides, and besides print and some built-in functions of the caller's.
func (b *Testbed) Compiler(more ...*ast.Builtin) (*ast.Compiler, error) {
	for _, name := range []string{"print", "internal.print", "internal.test_case"} {
		if f := ast.BuiltinMap[name]; f != nil {
			more = append(more, f)
		}
	}
	c, err := newCompiler(more...)
	if err != nil {
		return nil, err
	}
	return c.WithEnablePrintStatements(true), nil
}

// testInput is an input as a test writes it: parts of schema/input.json, and in place of a
// request's path and destination perhaps its URL.
type testInput struct {
	Phase       policy.Phase
	Protocol    policy.Protocol
	Sandbox     policy.Sandbox
	Destination policy.Destination
	Request     struct {
		policy.Request
		URL       string
		QueryKeys []string       `json:"query_keys"`
		Headers   any            // an array of names, or an object whose keys are names
		Body      map[string]any // json, graphql
	}
}

// readTestInput fills in what a test leaves out, and reads the rest as the gateway does.
func readTestInput(v ast.Value) (rule.ParsedInput, error) {
	t := testInput{
		Phase:       policy.PhaseRequest,
		Sandbox:     policy.Sandbox{Name: "test", ID: "test", Session: "test", Tags: map[string]string{}},
		Destination: policy.Destination{Host: "api.example.com", Port: 443},
	}
	t.Request.Request = policy.Request{Method: "GET", Path: "/", Size: -1}
	if err := decodeTerm(v, &t, false); err != nil {
		return rule.ParsedInput{}, err
	}
	in := policy.Input{Phase: t.Phase, Protocol: t.Protocol, Sandbox: t.Sandbox, Destination: t.Destination}
	if t.Phase == policy.PhaseConnect {
		in.Protocol = cmp.Or(t.Protocol, policy.ProtocolTLS)
	}
	if t.Phase != policy.PhaseRequest && t.Phase != policy.PhaseInbound {
		return rule.ParseInput(in)
	}
	q := t.Request.Request
	q.QueryKeys, q.Headers = t.Request.QueryKeys, headerNames(t.Request.Headers)
	if q.Scheme == "" {
		q.Scheme = "https"
		if t.Protocol == policy.ProtocolHTTP || t.Protocol.IsLogin() {
			q.Scheme = string(t.Protocol)
		}
	}
	if raw := t.Request.URL; raw != "" {
		if err := readURL(raw, &in.Destination, &q); err != nil {
			return rule.ParsedInput{}, err
		}
	}
	if t.Request.Body != nil {
		q.Body = &policy.Body{Size: max(q.Size, 0)}
		if view, ok := t.Request.Body["json"]; ok {
			q.Body.JSON = &view
		}
		if view, ok := t.Request.Body["graphql"]; ok {
			q.Body.GraphQL = &view
		}
	}
	in.Request = &q
	return rule.ParseInput(in)
}

// readURL is the destination and request of a URL. Clients encode what is not ASCII, and
// send no fragment.
func readURL(raw string, to *policy.Destination, q *policy.Request) error {
	raw, _, _ = strings.Cut(raw, "#")
	var ascii strings.Builder
	for i := range len(raw) {
		if c := raw[i]; c < 0x80 {
			ascii.WriteByte(c)
		} else {
			fmt.Fprintf(&ascii, "%%%02X", c)
		}
	}
	u, err := hostname.ParseURL(ascii.String())
	if err != nil {
		return err
	}
	*to = policy.Destination{Host: u.Hostname(), Port: 443}
	if u.Scheme == "http" {
		to.Port = 80
	}
	if u.Port() != "" {
		_, _ = fmt.Sscanf(u.Port(), "%d", &to.Port) // which ParseURL has checked
	}
	q.Scheme, q.QueryKeys = u.Scheme, policy.QueryKeys(u.RawQuery)
	q.Path, err = urlpath.Normalize(cmp.Or(u.EscapedPath(), "/"))
	return err
}

func headerNames(given any) []string {
	var names []string
	switch given := given.(type) {
	case []any:
		for _, name := range given {
			names = append(names, textproto.CanonicalMIMEHeaderKey(fmt.Sprint(name)))
		}
	case map[string]any:
		for name := range given {
			names = append(names, textproto.CanonicalMIMEHeaderKey(name))
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Inputs are the inputs that a decision asks about, complete and with input.rules: one for
// each reading of the path. It is nil for what the gateway refuses before it asks.
func (b *Testbed) Inputs(given *ast.Term) *ast.Term {
	s, err := readTestInput(given.Value)
	if err != nil {
		return nil
	}
	var list []*ast.Term
	for s := range s.Variants() {
		v := newInputDocument(s.Phase, everyField)
		v.set(b.policy, s)
		list = append(list, ast.NewTerm(v.root))
	}
	return ast.ArrayTerm(list...)
}

// Decided is what is enforced where decision.rego gives an answer for each of Inputs:
// {action, type, rule, reason, inject, limits}, with an error where the answer is none. Each
// answer is an array of the decision and of the array of the team's limits.
func (b *Testbed) Decided(given, answers *ast.Term) (*ast.Term, error) {
	s, err := readTestInput(given.Value)
	if err != nil {
		return nil, err
	}
	if s.Phase == policy.PhaseInbound || s.Phase == policy.PhaseSSH {
		return nil, errors.New("testing.decide is about what leaves a sandbox")
	}
	var inject *ast.Term
	var all []policy.Decision
	list, _ := answers.Value.(*ast.Array)
	for s := range s.Variants() {
		if list == nil || len(all) >= list.Len() {
			return nil, errors.New("there is not one answer for each input")
		}
		pair, _ := list.Elem(len(all)).Value.(*ast.Array)
		if pair == nil || pair.Len() != 2 {
			return nil, errors.New("an answer is a decision and its limits")
		}
		if o, ok := pair.Elem(0).Value.(ast.Object); ok && inject == nil {
			inject = o.Get(keyInject) // each variant has the same, or the decision has none
		}
		all = append(all, b.policy.testDecision(s, pair.Elem(0).Value, pair.Elem(1).Value))
	}
	d := b.policy.join(s, all)
	if len(d.Inject) == 0 || inject == nil {
		inject = ast.SetTerm()
	}
	if d.Unjudged != nil && s.Request.Body == nil {
		d.Reason += "; give the test's request the body that the rule declares"
	}
	slices.SortFunc(d.Limits, func(a, b policy.Applied) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Subject, b.Subject))
	})
	limits := make([]*ast.Term, len(d.Limits))
	for i, l := range d.Limits {
		limits[i] = ast.ObjectTerm(
			[2]*ast.Term{keyName, ast.StringTerm(l.Name)},
			[2]*ast.Term{ast.StringTerm("per"), ast.StringTerm(l.Per)},
			[2]*ast.Term{ast.StringTerm("subject"), ast.StringTerm(l.Subject)},
		)
	}
	o := ast.NewObject(
		[2]*ast.Term{keyAction, ast.StringTerm(string(d.Action))},
		[2]*ast.Term{keyType, ast.StringTerm(d.RuleType)},
		[2]*ast.Term{keyRule, ast.StringTerm(d.Rule)},
		[2]*ast.Term{keyReason, ast.StringTerm(d.Reason)},
		[2]*ast.Term{keyInject, inject},
		[2]*ast.Term{ast.StringTerm("limits"), ast.ArrayTerm(limits...)},
	)
	if d.Err != nil {
		o.Insert(keyError, ast.StringTerm(d.Err.Error()))
	}
	return ast.NewTerm(o), nil
}

// testDecision is what becomes of an answer about one reading.
func (p *Policy) testDecision(s rule.ParsedInput, answer, limits ast.Value) policy.Decision {
	if p.bodies && s.Phase == policy.PhaseRequest {
		if d, denied := p.missingBody(s, time.Time{}); denied {
			return d
		}
	}
	d, err := p.decode(answer, s)
	if err != nil {
		return p.undecided(err)
	}
	d = p.meddled(p.inherited(p.floor(d, s), s), s)
	if !passes(d.Action, s.Phase) {
		return d
	}
	team, err := readTeamLimits(limits)
	if err != nil {
		return p.undecided(err)
	}
	return p.limited(d, s, team)
}
