// Package regotest runs the tests of a team's Rego, with OPA's own runner.
//
// It guarantees that the tests run on what a policy decides with: the Rego is compiled as
// [engine.Compile] compiles it, and requests and decisions are read and completed by the code
// of the engine. The daemon does not import it.
package regotest

import (
	"context"
	_ "embed"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/cover"
	"github.com/open-policy-agent/opa/v1/rego"
	"github.com/open-policy-agent/opa/v1/storage/inmem"
	"github.com/open-policy-agent/opa/v1/tester"
	"github.com/open-policy-agent/opa/v1/types"

	"sallyport/policy"
	"sallyport/policy/engine"
	"sallyport/policy/finding"
	policyrego "sallyport/policy/rego"
)

// testTimeout bounds one test, which may ask for many decisions.
const testTimeout = 10 * time.Second

// maxExplained bounds the tests that are run again to see where they fail.
const maxExplained = 20

// Options say which tests to run.
type Options struct {
	// Dirs are read in place of the document's policy.dir. Default: that.
	Dirs []string
	// Run is a regular expression (RE2) for what to run, over names as
	// data.sallyport.team.x_test.test_y. Default: everything.
	Run string
	// Coverage asks which lines of the team's Rego were evaluated.
	Coverage bool
	// Trace asks for the whole evaluation of tests that fail.
	Trace bool
}

// Report is what came of a team's tests.
type Report struct {
	Passed   int       `json:"passed"`
	Failed   int       `json:"failed"` // errors are among them
	Skipped  int       `json:"skipped"`
	Results  []Result  `json:"results"` // in the order of files and lines
	Coverage *Coverage `json:"coverage,omitempty"`
}

// Result is what came of one test.
type Result struct {
	Name     string           `json:"name"` // sallyport.team.x_test.test_y
	Position finding.Position `json:"position"`
	Outcome  Outcome          `json:"outcome"`
	// Millis is how long it took, in milliseconds.
	Millis float64 `json:"millis"`
	// Cases are those of a test over many that failed.
	Cases []string `json:"cases,omitempty"`
	// Error is why a test that could not be evaluated was not.
	Error string `json:"error,omitempty"`
	// Printed is what print() wrote.
	Printed string `json:"printed,omitempty"`
	// Failure is where a test came to its end; nil where it passed, and of the
	// 21st that fails and those after it.
	Failure *Failure `json:"failure,omitempty"`
}

// Outcome of a test.
type Outcome string

const (
	Passed  Outcome = "pass"
	Failed  Outcome = "fail"
	Errored Outcome = "error"
	Skipped Outcome = "skipped" // its name begins with todo_
)

// Run runs the tests of a team, offline: the files whose names end in _test.rego, over the
// team's Rego and data and the package data.sallyport.testing. The Rego has the built-in
// functions that it has when it decides; tests may print besides. An error means that nothing
// was run; it joins every Finding.
func Run(ctx context.Context, doc policy.Document, o Options) (Report, error) {
	var report Report
	if _, err := regexp.Compile(o.Run); err != nil {
		return report, err
	}
	made, err := engine.NewTestbed(ctx, doc, o.Dirs)
	if err != nil {
		return report, err
	}
	b, err := newBench(made)
	if err != nil {
		return report, err
	}
	runner, err := b.runner(o.Run)
	if err != nil {
		return report, err
	}
	var covered *cover.Cover
	if o.Coverage {
		covered = cover.New()
		runner.SetCoverageQueryTracer(covered).SetCoverageRuns([]cover.Kind{})
	}
	results, err := b.run(ctx, runner)
	if err != nil {
		return report, err
	}
	for _, r := range results {
		result := b.result(r)
		switch result.Outcome {
		case Passed:
			report.Passed++
		case Skipped:
			report.Skipped++
		default:
			report.Failed++
			if report.Failed > maxExplained {
				break // what is wrong with so many is one thing
			}
			if result.Failure, err = b.failure(ctx, r, o.Trace); err != nil {
				return report, err
			}
		}
		report.Results = append(report.Results, result)
	}
	if covered != nil {
		report.Coverage = coverage(covered.Report(b.Rego), b.Rego)
	}
	return report, nil
}

// testingRego is the package data.sallyport.testing.
//
//go:embed testing.rego
var testingRego string

// bench is what the tests run on.
type bench struct{ *engine.Testbed }

// newBench adds the package that tests import.
func newBench(t *engine.Testbed) (bench, error) {
	const name = "testing.rego"
	m, err := ast.ParseModuleWithOpts(name, testingRego, ast.ParserOptions{RegoVersion: ast.RegoV1})
	t.Modules[name] = m
	return bench{t}, err
}

// builtins are the functions that testing.rego calls. They run the policy's Go code.
func (b bench) builtins() []*tester.Builtin {
	inputs := &rego.Function{Name: "sallyport.inputs", Decl: types.NewFunction(types.Args(types.A), types.A)}
	decided := &rego.Function{Name: "sallyport.decided", Decl: types.NewFunction(types.Args(types.A, types.A), types.A)}
	return []*tester.Builtin{
		{Decl: &ast.Builtin{Name: inputs.Name, Decl: inputs.Decl}, Func: rego.Function1(inputs, func(_ rego.BuiltinContext, given *ast.Term) (*ast.Term, error) {
			return b.Inputs(given), nil
		})},
		{Decl: &ast.Builtin{Name: decided.Name, Decl: decided.Decl}, Func: rego.Function2(decided, func(_ rego.BuiltinContext, given, answers *ast.Term) (*ast.Term, error) {
			return b.Decided(given, answers)
		})},
	}
}

func (b bench) compiler() (*ast.Compiler, error) {
	var declared []*ast.Builtin
	for _, f := range b.builtins() {
		declared = append(declared, f.Decl)
	}
	return b.Compiler(declared...)
}

// runner returns a new one: OPA's can be used once.
func (b bench) runner(filter string) (*tester.Runner, error) {
	compiler, err := b.compiler()
	if err != nil {
		return nil, err
	}
	modules := make(map[string]*ast.Module, len(b.Modules))
	for name, m := range b.Modules {
		modules[name] = m.Copy() // the compiler rewrites them
	}
	return tester.NewRunner().
		SetCompiler(compiler).
		SetModules(modules).
		AddCustomBuiltins(b.builtins()).
		SetTimeout(testTimeout).
		RaiseBuiltinErrors(true).
		CapturePrintOutput(true).
		Filter(filter), nil
}

// run gives the results of the team's tests in the order of files and lines.
func (b bench) run(ctx context.Context, r *tester.Runner) ([]*tester.Result, error) {
	store := inmem.NewFromASTObject(b.Data)
	txn, err := store.NewTransaction(ctx)
	if err != nil {
		return nil, err
	}
	defer store.Abort(ctx, txn)
	results, err := r.SetStore(store).RunTests(ctx, txn)
	if err != nil {
		return nil, policyrego.Errors(err)
	}
	var list []*tester.Result
	for r := range results {
		list = append(list, r)
	}
	slices.SortFunc(list, func(a, b *tester.Result) int {
		if n := strings.Compare(a.Location.File, b.Location.File); n != 0 {
			return n
		}
		if n := a.Location.Row - b.Location.Row; n != 0 {
			return n
		}
		return strings.Compare(a.Name, b.Name)
	})
	return list, ctx.Err()
}

func (b bench) result(r *tester.Result) Result {
	result := Result{
		Name:     strings.TrimPrefix(r.Package, "data.") + "." + r.Name,
		Position: policyrego.Position(r.Location),
		Outcome:  Passed,
		Millis:   float64(r.Duration.Microseconds()) / 1000,
		Printed:  strings.TrimRight(string(r.Output), "\n"),
	}
	switch {
	case r.Skip:
		result.Outcome = Skipped
	case r.Error != nil:
		result.Outcome, result.Error = Errored, r.Error.Error()
	case r.Fail:
		result.Outcome = Failed
	}
	for path, sub := range r.SubResults.Iter {
		if sub.Fail && len(sub.SubResults) == 0 {
			result.Cases = append(result.Cases, strings.Join(path, " "))
		}
	}
	return result
}
