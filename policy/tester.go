package policy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/cover"
	"github.com/open-policy-agent/opa/v1/storage"
	"github.com/open-policy-agent/opa/v1/storage/inmem"
	"github.com/open-policy-agent/opa/v1/tester"
)

// testTimeout bounds one test, which may ask for many decisions.
const testTimeout = 10 * time.Second

// TestOptions say which tests to run.
type TestOptions struct {
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

// TestReport is what came of a team's tests.
type TestReport struct {
	Passed   int          `json:"passed"`
	Failed   int          `json:"failed"` // errors are among them
	Skipped  int          `json:"skipped"`
	Results  []TestResult `json:"results"` // in the order of files and lines
	Coverage *Coverage    `json:"coverage,omitempty"`
}

// TestResult is what came of one test.
type TestResult struct {
	Name     string   `json:"name"` // sallyport.team.x_test.test_y
	Position Position `json:"position"`
	Outcome  Outcome  `json:"outcome"`
	// Millis is how long it took, in milliseconds.
	Millis float64 `json:"millis"`
	// Cases are those of a test over many that failed.
	Cases []string `json:"cases,omitempty"`
	// Error is why a test that could not be evaluated was not.
	Error string `json:"error,omitempty"`
	// Printed is what print() wrote.
	Printed string `json:"printed,omitempty"`
	// Failure is where a test came to its end; nil where it passed.
	Failure *TestFailure `json:"failure,omitempty"`
}

// Outcome of a test.
type Outcome string

const (
	Passed  Outcome = "pass"
	Failed  Outcome = "fail"
	Errored Outcome = "error"
	Skipped Outcome = "skipped" // its name begins with todo_
)

// Test runs a team's tests, offline: the files whose names end in _test.rego,
// with OPA's own runner, over the team's Rego and data, the builders of requests
// in data.sallyport.testing, and the document, so that data.sallyport.decision is
// what it decides. The Rego has what it has when it decides; tests may print
// besides. An error means that nothing was run; it joins every Finding.
func Test(ctx context.Context, doc Document, o TestOptions) (TestReport, error) {
	var report TestReport
	if _, err := regexp.Compile(o.Run); err != nil {
		return report, err
	}
	b, err := newBench(ctx, doc, o.Dirs)
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
			if result.Failure, err = b.failure(ctx, r, o.Trace); err != nil {
				return report, err
			}
		}
		report.Results = append(report.Results, result)
	}
	if covered != nil {
		report.Coverage = coverage(covered.Report(b.team.modules), b.team.modules)
	}
	return report, nil
}

// bench is what tests run on.
type bench struct {
	team    *team
	modules map[string]*ast.Module
	data    ast.Object
}

// newBench loads and checks what is tested as [Compile] does, and adds what only
// tests have.
func newBench(ctx context.Context, doc Document, dirs []string) (*bench, error) {
	rules, findings := resolve(doc)
	if dirs == nil && doc.Policy.Dir != "" {
		dirs = []string{doc.Policy.Dir}
	}
	t, err := loadTeams(dirs)
	if err := errors.Join(join(findings), err); err != nil {
		return nil, err
	}
	p := &Policy{table: newTable(rules), rules: map[string]*rule{}, selectors: newSelectors(rules)}
	p.table.join(rules)
	p.table.stock(p.selectors)
	own, err := ownModules()
	if err != nil {
		return nil, err
	}
	// Once as it is when it decides, with nothing of the tests in it.
	if err := p.prepare(ctx, maps.Clone(own), t); err != nil {
		return nil, err
	}
	b := &bench{team: t, modules: maps.Clone(own)}
	maps.Copy(b.modules, t.modules)
	maps.Copy(b.modules, t.tests)
	if len(t.sets) > 0 {
		if err := b.add(gatheredFile, []byte(t.gather())); err != nil {
			return nil, err
		}
	}
	for _, name := range builders {
		text, err := sources.ReadFile(name)
		if err != nil {
			return nil, err
		}
		if err := b.add(name, text); err != nil {
			return nil, err
		}
	}
	if err := addLibrary(b.modules); err != nil {
		return nil, err
	}
	if b.data, err = p.data(t); err != nil {
		return nil, err
	}
	root := ast.StringTerm("sallyport")
	sallyport := b.data.Get(root).Value.(ast.Object)
	return b, documents(p).Get(root).Value.(ast.Object).Iter(func(key, value *ast.Term) error {
		sallyport.Insert(key, value)
		return nil
	})
}

// gatheredFile is the module of [team.gather].
const gatheredFile = "contributed.rego"

// builders are the files of data.sallyport.testing.
var builders = []string{"testing.rego", "builders.rego"}

func (b *bench) add(name string, text []byte) error {
	m, err := ast.ParseModuleWithOpts(name, string(text), ast.ParserOptions{RegoVersion: ast.RegoV1, ProcessAnnotation: true})
	if err != nil {
		return regoErrors(err)
	}
	b.modules[name] = m
	return nil
}

// runner returns a new one: OPA's can be used once.
func (b *bench) runner(filter string) (*tester.Runner, error) {
	caps := capabilities()
	for _, name := range []string{"print", "internal.print", "internal.test_case"} {
		if f := ast.BuiltinMap[name]; f != nil && !slices.ContainsFunc(caps.Builtins, func(o *ast.Builtin) bool { return o.Name == name }) {
			caps.Builtins = append(caps.Builtins, f)
		}
	}
	schemas, err := schemaSet()
	if err != nil {
		return nil, err
	}
	compiler := ast.NewCompiler().
		WithStrict(true).
		WithCapabilities(caps).
		WithEnablePrintStatements(true).
		WithSchemas(schemas).
		WithUseTypeCheckAnnotations(true).
		SetErrorLimit(0)
	modules := make(map[string]*ast.Module, len(b.modules))
	for name, m := range b.modules {
		modules[name] = m.Copy() // the compiler rewrites them
	}
	return tester.NewRunner().
		SetCompiler(compiler).
		SetModules(modules).
		SetStore(inmem.NewFromASTObject(b.data)).
		SetTimeout(testTimeout).
		RaiseBuiltinErrors(true).
		CapturePrintOutput(true).
		Filter(filter), nil
}

// run gives the results of the team's tests in the order of files and lines.
func (b *bench) run(ctx context.Context, r *tester.Runner) ([]*tester.Result, error) {
	store := inmem.NewFromASTObject(b.data)
	txn, err := store.NewTransaction(ctx)
	if err != nil {
		return nil, err
	}
	defer store.Abort(ctx, txn)
	results, err := r.SetStore(storage.Store(store)).RunTests(ctx, txn)
	if err != nil {
		return nil, regoErrors(err)
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

func (b *bench) result(r *tester.Result) TestResult {
	result := TestResult{
		Name:     strings.TrimPrefix(r.Package, "data.") + "." + r.Name,
		Position: position(r.Location),
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

// loadTeams reads folders as if they were one.
func loadTeams(dirs []string) (*team, error) {
	all, err := loadTeam("")
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, dir := range dirs {
		t, err := loadTeam(dir)
		errs = append(errs, err)
		if t == nil {
			continue
		}
		maps.Copy(all.modules, t.modules)
		for name, m := range t.tests {
			all.addTest(name, m)
		}
		for _, c := range t.sets {
			all.contribute(c)
		}
		if key := merge(all.data, t.data); key != "" {
			errs = append(errs, Finding{Position: Position{File: dir}, Message: fmt.Sprintf("data.%s is set in another folder too", key), Fix: "set it in one of them"})
		}
	}
	return all, errors.Join(errs...)
}

func (t *team) addTest(file string, m *ast.Module) {
	if t.tests == nil {
		t.tests = map[string]*ast.Module{}
	}
	t.tests[file] = m
}
