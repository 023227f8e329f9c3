package policy

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/metrics"
	"github.com/open-policy-agent/opa/v1/storage"
	"github.com/open-policy-agent/opa/v1/storage/inmem"
	"github.com/open-policy-agent/opa/v1/topdown"
	"github.com/open-policy-agent/opa/v1/topdown/cache"
)

var errTimeout = errors.New("no answer within the timeout")

// evaluator asks compiled Rego one question. It does what a
// prepared query of package rego does, on OPA's evaluator, for less: nothing is turned
// into JSON, data that never changes is not cached again for each evaluation,
// and what an evaluation needs is used again by the next. Each evaluation is
// made from nothing but its input: no answer is kept.
type evaluator struct {
	compiler *ast.Compiler
	queries  ast.QueryCompiler
	body     ast.Body // answer = data.sallyport.…
	store    storage.Store
	txn      storage.Transaction // held for good: nobody writes
	data     baseDocument
	patterns cache.InterQueryValueCache // compiled regular expressions
	timeout  time.Duration
	idle     sync.Pool // of *evaluation
}

// answer is bound to what is asked for.
var answer = ast.VarTerm("answer")

// newEvaluator compiles the modules over data and asks for the rule that query
// refers to.
func newEvaluator(ctx context.Context, compiler *ast.Compiler, modules map[string]*ast.Module, data ast.Object, query string) (*evaluator, error) {
	e := &evaluator{compiler: compiler, store: inmem.NewFromASTObject(data), data: baseDocument{data}}
	var err error
	if e.txn, err = e.store.NewTransaction(ctx); err != nil {
		return nil, err
	}
	compiler.WithPathConflictsCheck(storage.NonEmpty(ctx, e.store, e.txn))
	if compiler.Compile(modules); compiler.Failed() {
		return nil, regoErrors(compiler.Errors)
	}
	ref, err := ast.ParseRef(query)
	if err != nil {
		return nil, err
	}
	e.queries = compiler.QueryCompiler()
	e.body, err = e.queries.Compile(ast.NewBody(ast.Equality.Expr(answer, ast.NewTerm(ref))))
	return e, err
}

// evaluation is one asking. It stops when its time is over.
type evaluation struct {
	query   *topdown.Query
	input   ast.Term
	memo    memo
	timer   *time.Timer
	late    atomic.Bool
	answers []ast.Value
	take    func(topdown.QueryResult) error
}

// Cancel and Cancelled are [topdown.Cancel].
func (v *evaluation) Cancel()         { v.late.Store(true) }
func (v *evaluation) Cancelled() bool { return v.late.Load() }

func (e *evaluator) evaluation() *evaluation {
	if v, ok := e.idle.Get().(*evaluation); ok {
		v.timer.Reset(e.timeout)
		return v
	}
	v := &evaluation{}
	v.take = func(r topdown.QueryResult) error {
		v.answers = append(v.answers, r[answer.Value.(ast.Var)].Value)
		return nil
	}
	v.query = topdown.NewQuery(e.body).
		WithQueryCompiler(e.queries).
		WithCompiler(e.compiler).
		WithStore(e.store).
		WithTransaction(e.txn).
		WithBaseCache(e.data).
		WithVirtualCache(&v.memo).
		WithInterQueryBuiltinValueCache(e.patterns).
		WithMetrics(metrics.NoOp()).
		WithInput(&v.input).
		WithCancel(v).
		// A built-in function that fails would leave a deny undefined.
		WithStrictBuiltinErrors(true)
	v.timer = time.AfterFunc(e.timeout, v.Cancel)
	return v
}

// eval asks. The answer is the only one, and there within the timeout.
func (e *evaluator) eval(ctx context.Context, input ast.Value) (ast.Value, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	v := e.evaluation()
	v.input.Value = input
	err := v.query.WithTime(time.Now()).Iter(ctx, v.take)
	var value ast.Value
	switch {
	case topdown.IsCancel(err):
		err = fmt.Errorf("%w of %v", errTimeout, e.timeout)
	case err != nil:
	case len(v.answers) == 0:
		err = errors.New("the decision is undefined")
	case len(v.answers) > 1:
		err = errors.New("more than one decision")
	default:
		value = v.answers[0]
	}
	if v.timer.Stop() { // else it has rung, or is about to
		v.input.Value = nil
		v.memo.reset()
		clear(v.answers)
		v.answers = v.answers[:0]
		e.idle.Put(v)
	}
	return value, err
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
