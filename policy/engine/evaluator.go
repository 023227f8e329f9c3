package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"sallyport/policy"
	"sallyport/policy/rego"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/metrics"
	"github.com/open-policy-agent/opa/v1/storage"
	"github.com/open-policy-agent/opa/v1/storage/inmem"
	"github.com/open-policy-agent/opa/v1/topdown"
	"github.com/open-policy-agent/opa/v1/topdown/cache"
)

var (
	errTimeout   = errors.New("no answer within the timeout")
	errUndefined = errors.New("the decision is undefined")
)

// evaluator asks compiled Rego for a decision. It does what a prepared query of
// package rego does, on OPA's evaluator, for less: nothing is turned into JSON,
// data that never changes is not cached again for each evaluation, and what an
// evaluation needs is used again by the next. Each evaluation is made from
// nothing but its input. A decisionCache keeps answers.
type evaluator struct {
	*compiled
	patterns cache.InterQueryValueCache // compiled regular expressions
	timeout  time.Duration
	phases   map[policy.Phase]*preparedQuery
	limits   map[policy.Phase]*preparedQuery // what a team's Rego limits; nil where it has no limit
	denies   *preparedQuery                  // what it denies of what comes in; nil where it denies nothing
}

// compiled is Rego over its data. It never changes, so that several policies may share it.
type compiled struct {
	compiler *ast.Compiler
	queries  ast.QueryCompiler
	store    storage.Store
	txn      storage.Transaction // held for good: nobody writes
	data     baseDocument
	sets     []string   // that some package of the team defines
	fields   inputField // of input: those that some rule reads
}

// preparedQuery is what evaluations of one rule in one phase have in common.
type preparedQuery struct {
	query ast.Body
	idle  sync.Pool // of *evaluation
}

// answer is the variable of a query that has the value of the rule.
const answer = ast.Var("answer")

// valueOf is the query for the value of a rule.
func valueOf(rule string) ast.Body {
	return ast.NewBody(ast.Equality.Expr(ast.NewTerm(answer), ast.NewTerm(ast.MustParseRef(rule))))
}

// Each query has the value of one rule of the Rego.
var (
	decisionQuery = valueOf("data.sallyport.decision")
	limitsQuery   = valueOf("data.sallyport.contributed.limits")
	denyQuery     = valueOf("data.sallyport.contributed.deny")
)

// newCompiled compiles the modules over data.
func newCompiled(ctx context.Context, compiler *ast.Compiler, modules map[string]*ast.Module, data ast.Object, sets []rego.Set) (*compiled, error) {
	c := &compiled{compiler: compiler, store: inmem.NewFromASTObject(data), data: baseDocument{data}}
	var err error
	if c.txn, err = c.store.NewTransaction(ctx); err != nil {
		return nil, err
	}
	compiler.WithPathConflictsCheck(storage.NonEmpty(ctx, c.store, c.txn))
	if compiler.Compile(modules); compiler.Failed() {
		return nil, rego.Errors(compiler.Errors)
	}
	c.queries = compiler.QueryCompiler()
	for _, set := range sets {
		if !slices.Contains(c.sets, set.Name) {
			c.sets = append(c.sets, set.Name)
		}
	}
	c.fields = fieldsRead(compiler, decisionQuery)
	if slices.Contains(c.sets, "limit") {
		c.fields |= fieldsRead(compiler, limitsQuery)
	}
	if slices.Contains(c.sets, "deny") {
		c.fields |= fieldsRead(compiler, denyQuery)
	}
	return c, nil
}

// evaluator returns one for a policy alone.
func (c *compiled) evaluator() *evaluator {
	e := &evaluator{compiled: c, phases: map[policy.Phase]*preparedQuery{}}
	for _, phase := range []policy.Phase{policy.PhaseDNS, policy.PhaseConnect, policy.PhaseRequest} {
		e.phases[phase] = &preparedQuery{query: decisionQuery}
	}
	e.phases[policy.PhaseInbound], e.phases[policy.PhaseSSH] = &preparedQuery{}, &preparedQuery{} // for what is listed of the team's Rego
	if slices.Contains(c.sets, "limit") {
		e.limits = map[policy.Phase]*preparedQuery{policy.PhaseConnect: {query: limitsQuery}, policy.PhaseRequest: {query: limitsQuery}}
	}
	if slices.Contains(c.sets, "deny") {
		e.denies = &preparedQuery{query: denyQuery}
	}
	return e
}

// evaluation is one asking. It stops when its time is over.
type evaluation struct {
	prepared *preparedQuery
	document *inputDocument
	input    ast.Term // the document
	query    *topdown.Query
	cache    evalCache
	at       time.Time // what the Rego's clock shows, zero for the real time
	clock
}

// clock is a [topdown.Cancel] for what began a while ago. It is read every few
// steps of an evaluation, which take about as long as reading it.
type clock struct {
	began   time.Time
	timeout time.Duration
	steps   uint
	late    bool
}

func (c *clock) Cancel() { c.late = true }

func (c *clock) Cancelled() bool {
	if c.steps++; c.steps%16 == 0 && time.Since(c.began) > c.timeout {
		c.late = true
	}
	return c.late
}

// evaluation returns one for the caller alone, until it is released.
func (e *evaluator) evaluation(phase policy.Phase) *evaluation {
	return e.evaluationOf(e.phases[phase], phase)
}

func (e *evaluator) evaluationOf(a *preparedQuery, phase policy.Phase) *evaluation {
	if v, ok := a.idle.Get().(*evaluation); ok {
		return v
	}
	v := &evaluation{prepared: a, document: newInputDocument(phase, e.fields), clock: clock{timeout: e.timeout}}
	v.input.Value = v.document.root
	v.query = e.query(v, a.query)
	return v
}

func (e *evaluator) query(v *evaluation, body ast.Body) *topdown.Query {
	return topdown.NewQuery(body).
		WithQueryCompiler(e.queries).
		WithCompiler(e.compiler).
		WithStore(e.store).
		WithTransaction(e.txn).
		WithBaseCache(e.data).
		WithVirtualCache(&v.cache).
		WithInterQueryBuiltinValueCache(e.patterns).
		WithMetrics(metrics.NoOp()).
		WithRequestMetadata(map[string]any{}).
		WithInput(&v.input).
		WithCancel(&v.clock).
		// A built-in function that fails would leave a deny undefined.
		WithStrictBuiltinErrors(true)
}

func (v *evaluation) release() {
	v.cache.reset()
	if !v.document.last {
		v.prepared.idle.Put(v)
	}
}

// evalWithRetry is eval, and once more where the time was over. On a crowded machine the clock
// runs while the evaluation does not, so only an evaluation that is late twice counts as slow.
func (e *evaluator) evalWithRetry(ctx context.Context, v *evaluation) (ast.Value, error) {
	answer, err := e.eval(ctx, v)
	if errors.Is(err, errTimeout) {
		v.cache.reset()
		answer, err = e.eval(ctx, v)
	}
	return answer, err
}

// eval asks about the input document. The answer is valid until the release.
func (e *evaluator) eval(ctx context.Context, v *evaluation) (ast.Value, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	v.began, v.late = time.Now(), false
	at := v.at
	if at.IsZero() {
		at = v.began
	}
	var value ast.Value
	err := v.query.WithTime(at).Iter(ctx, func(r topdown.QueryResult) error {
		value = r[answer].Value
		return nil
	})
	switch {
	case topdown.IsCancel(err):
		return nil, fmt.Errorf("%w of %v", errTimeout, v.timeout)
	case err != nil:
		return nil, err
	case value == nil:
		return nil, errUndefined
	}
	return value, nil
}

// baseDocument answers for the documents of data that are not rules. The data
// never changes, so that there is nothing to read from the store first.
type baseDocument struct{ root ast.Object }

var _ topdown.BaseCache = baseDocument{}

// Get returns nil for what is left to the store.
func (d baseDocument) Get(ref ast.Ref) ast.Value {
	if len(ref) < 2 {
		return nil // all of it, of which the store holds something back
	}
	v, err := d.root.Find(ref[1:])
	if err != nil {
		return nil
	}
	return v
}

// Put does nothing: what the store has is there already.
func (baseDocument) Put(ast.Ref, ast.Value) {}
