package regotest

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/tester"
	"github.com/open-policy-agent/opa/v1/topdown"

	"sallyport/policy/finding"
	"sallyport/policy/rego"
)

// maxTrace bounds a whole trace, in events: the last ones are kept.
const maxTrace = 5000

// Failure is where a test came to its end.
type Failure struct {
	// Position is the expression that failed: in the test, or in an every
	// that it leads to.
	Position finding.Position `json:"position"`
	// Expression is the text of it, with the values of its variables below.
	Expression string `json:"expression"`
	// Input is what the failing expression was evaluated with, or nil where the
	// test gave no input. The part that Sallyport derives of it (rules) is left out.
	Input any `json:"input,omitempty"`
	// Locals are the variables of the test by then, by their names.
	Locals map[string]any `json:"locals,omitempty"`
	// Trace is the evaluation, one event a line, where it was asked for.
	Trace []string `json:"trace,omitempty"`
}

// failure runs a test again to see where it fails. It returns nil for one that
// does not fail again, or leaves no trace.
func (b bench) failure(ctx context.Context, r *tester.Result, whole bool) (*Failure, error) {
	runner, err := b.runner("")
	if err != nil {
		return nil, err
	}
	path, err := ast.ParseRef(r.Package)
	if err != nil {
		return nil, err
	}
	name, _, _ := strings.Cut(r.Name, "#") // a number that OPA gives to one that is there twice
	name, _, _ = strings.Cut(name, ".")
	runner.EnableTracing(true).SetPrefixMatchers(path.Append(ast.StringTerm(name)))
	again, err := b.run(ctx, runner)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(again, func(o *tester.Result) bool { return o.Name == r.Name })
	if i < 0 {
		return nil, nil
	}
	trace := again[i].Trace
	at := failed(trace, func(file string) bool { return b.Tests[file] != nil })
	if at == nil {
		return nil, nil
	}
	f := &Failure{Position: rego.Position(at.Location), Locals: locals(at), Input: givenAt(trace, at)}
	var buf bytes.Buffer
	if err := topdown.PrettyEvent(&buf, at, topdown.PrettyEventOpts{PrettyVars: true}); err != nil {
		return nil, err
	}
	f.Expression = strings.Trim(buf.String(), "\n")
	if whole {
		buf.Reset()
		topdown.PrettyTraceWithOpts(&buf, trace[max(0, len(trace)-maxTrace):], topdown.PrettyTraceOptions{Locations: true, ExprVariables: true})
		f.Trace = strings.Split(strings.TrimRight(buf.String(), "\n"), "\n")
	}
	return f, nil
}

// failed is the last expression of a test's file that failed. An expression that fails
// inside of an every says more than the every.
func failed(trace []*topdown.Event, test func(file string) bool) *topdown.Event {
	for _, e := range slices.Backward(trace) {
		if e.Op != topdown.FailOp || e.Location == nil || e.QueryID == 0 || !test(e.Location.File) {
			continue
		}
		expr, ok := e.Node.(*ast.Expr)
		if !ok {
			continue
		}
		if _, every := expr.Terms.(*ast.Every); !every {
			return e
		}
	}
	return nil
}

// givenAt is the input that an expression was evaluated with: its own, or that
// of the last `with` below it.
func givenAt(trace []*topdown.Event, at *topdown.Event) any {
	var last *ast.Term
	for _, e := range trace {
		if e == at {
			break
		}
		if input := e.Input(); input != nil {
			last = input
		}
	}
	if input := at.Input(); input != nil {
		last = input
	}
	if last == nil {
		return nil
	}
	v, err := ast.JSON(last.Value)
	if err != nil {
		return nil
	}
	if o, ok := v.(map[string]any); ok {
		delete(o, "rules")
	}
	return v
}

// locals are the variables that the author of the test gave a name.
func locals(e *topdown.Event) map[string]any {
	found := map[string]any{}
	for v, meta := range e.LocalMetadata {
		if value := e.Locals.Get(v); value != nil && !strings.HasPrefix(string(meta.Name), "__") {
			if plain, err := ast.JSON(value); err == nil {
				found[string(meta.Name)] = plain
			} else {
				found[string(meta.Name)] = fmt.Sprint(value)
			}
		}
	}
	if len(found) == 0 {
		return nil
	}
	return found
}
