package engine

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown/cache"

	"sallyport/policy"
	"sallyport/policy/finding"
	"sallyport/policy/rego"
	"sallyport/policy/rule"
	"sallyport/policy/validate"
)

//go:embed decision.rego
var decisionRego string

// DefaultTimeout bounds one evaluation.
const DefaultTimeout = 50 * time.Millisecond

// Options are the parts of a Policy that no document says.
type Options struct {
	// Timeout bounds one evaluation in wall time. An evaluation that takes longer
	// is tried once more, and then the decision is deny. Default: what the
	// document says, else DefaultTimeout.
	Timeout time.Duration
	// Logger gets the warnings. Default: none are written.
	Logger *slog.Logger
	// Clock is the time that decisions are made at. Default: the real one.
	Clock func() time.Time
}

// Policy is a document and a team's Rego, compiled. It never changes and is safe
// for concurrent use.
type Policy struct {
	query     *evaluator
	table     *rule.Table
	rules     map[string]*rule.Rule
	terms     ruleTerms // of the rules in input.rules
	revision  string
	approvals *policy.Approvals
	cache     *decisionCache   // nil where nothing is kept
	clock     func() time.Time // nil for the real one
	observing *observing       // nil where nothing is ever in observe mode
	bodies    bool             // some rule has to see a request's body
	team      bool             // a team's Rego has a say
	detours   bool             // some rule has an upstream
	limits    limitList
	priced    priceList
	exposed   []exposeRule        // what may reach sandboxes
	named     map[string]bool     // sandboxes that a rule names
	short     map[string][]string // by credential: Credential.AllowShort
	owned     map[string]bool     // by credential: VaultSource.Makes
	kinds     map[string][]string // by credential: Credential.Kinds
}

// Compile checks a document and makes it decide. Its error joins every Finding
// that stands in the way, those of the team's Rego included.
func Compile(ctx context.Context, doc policy.Document, o Options) (*Policy, error) {
	team, err := rego.Load(doc.Policy.Dir)
	if team != nil && doc.Policy.Bundle != nil && doc.Policy.Verified == nil {
		err = errors.Join(err, finding.Finding{Position: doc.Position("policy.bundle"), Path: "policy.bundle", Message: "has not been read"})
	}
	return compile(ctx, doc, team, err, o)
}

// compile is Compile with the team's Rego, as far as it could be loaded.
func compile(ctx context.Context, doc policy.Document, team *rego.Team, err error, o Options) (*Policy, error) {
	if o.Timeout <= 0 {
		o.Timeout = DefaultTimeout
		if d := doc.Policy.Timeout; d != nil {
			o.Timeout = time.Duration(*d)
		}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	rules, findings := validate.Rules(doc)
	if b := doc.Policy.Verified; b != nil && team != nil {
		err = errors.Join(err, team.AddBundle(b))
	}
	var f finding.Finding
	if errors.As(err, &f) && f.Path == "policy.dir" {
		f.Position = doc.Position(f.Path)
		err = f
	}
	if err := errors.Join(finding.JoinErrors(findings), err); err != nil {
		return nil, err
	}
	for _, f := range findings {
		o.Logger.WarnContext(ctx, "policy warning", "id", string(f.Kind), "at", f.Position.String(), "path", f.Path, "message", f.Message, "fix", f.Fix)
	}
	p := &Policy{
		table:     rule.NewTable(rules),
		rules:     make(map[string]*rule.Rule, len(rules)),
		terms:     newRuleTerms(rules),
		revision:  revision(doc, team),
		clock:     o.Clock,
		observing: newObserving(doc, rules),
		limits:    newLimitList(doc.Limits),
		priced:    newPriceList(doc.Prices),
		exposed:   newExposeRules(doc.Expose),
		named:     sandboxNames(doc),
		short:     make(map[string][]string),
		owned:     make(map[string]bool),
		kinds:     make(map[string][]string),
	}
	for _, c := range doc.Credentials {
		if len(c.AllowShort) > 0 {
			p.short[c.Name] = c.AllowShort
		}
		if len(c.Kinds) > 0 {
			p.kinds[c.Name] = c.Kinds
		}
		if v := c.Source.Vault; v != nil && v.Makes() {
			p.owned[c.Name] = true
		}
	}
	p.approvals = new(doc.Approvals.Defaulted())
	p.team = len(team.Sets) > 0
	for i := range rules {
		p.rules[rules[i].Name] = &rules[i]
		p.bodies = p.bodies || rules[i].Body != nil
		p.detours = p.detours || rules[i].Upstream != nil
	}
	regos, err := compileRego(ctx, team)
	if err != nil {
		return nil, err
	}
	p.query = regos.evaluator()
	size := defaultCacheSize
	if doc.Policy.Cache != nil {
		size = *doc.Policy.Cache
	}
	p.cache = newDecisionCache(size, p.query, team)
	p.query.timeout = o.Timeout
	p.query.patterns = cache.NewInterQueryValueCache(ctx, &cache.Config{
		InterQueryBuiltinValueCache: cache.InterQueryBuiltinValueCacheConfig{MaxNumEntries: new(len(rules) + 1000)},
	})
	return p, nil
}

// modules is all Rego that decides: decision.rego, the team's, what of the library the team
// imports, and the module that gathers the team's sets.
func modules(team *rego.Team) (map[string]*ast.Module, error) {
	all := map[string]*ast.Module{}
	maps.Copy(all, team.Modules)
	parse := func(name, text string) error {
		m, err := ast.ParseModuleWithOpts(name, text, ast.ParserOptions{RegoVersion: ast.RegoV1, ProcessAnnotation: true})
		all[name] = m
		return rego.Errors(err)
	}
	if err := parse(decisionFile, decisionRego); err != nil {
		return nil, err
	}
	if len(team.Sets) > 0 {
		if err := parse("contributed.rego", team.Gather()); err != nil {
			return nil, err
		}
	}
	return all, rego.AddLibrary(all)
}

const decisionFile = "decision.rego"

// data is what the Rego reads besides input: the team's own.
func data(team *rego.Team) (ast.Object, error) {
	value, err := ast.InterfaceToValue(team.Data)
	if err != nil {
		return nil, fmt.Errorf("reading the team's data: %w", err)
	}
	root, ok := value.(ast.Object)
	if !ok {
		return nil, errors.New("the team's data is not an object")
	}
	return root, nil
}

// compileRego compiles all Rego that decides. Policies without a team's share it.
func compileRego(ctx context.Context, team *rego.Team) (*compiled, error) {
	if len(team.Modules)+len(team.Data) == 0 {
		return decisionAlone()
	}
	return compileTeam(ctx, team)
}

var decisionAlone = sync.OnceValues(func() (*compiled, error) { return compileTeam(context.Background(), &rego.Team{}) })

func compileTeam(ctx context.Context, team *rego.Team) (*compiled, error) {
	all, err := modules(team)
	if err != nil {
		return nil, err
	}
	return prepare(ctx, all, team)
}

// prepare compiles the Rego over the team's data.
func prepare(ctx context.Context, all map[string]*ast.Module, team *rego.Team) (*compiled, error) {
	root, err := data(team)
	if err != nil {
		return nil, err
	}
	compiler, err := newCompiler()
	if err != nil {
		return nil, err
	}
	return newCompiled(ctx, compiler, all, root, team.Sets)
}

// newCompiler returns a strict compiler that has no built-in functions but those that Rego
// may use here, and some more.
func newCompiler(more ...*ast.Builtin) (*ast.Compiler, error) {
	schemas, err := schemaSet()
	if err != nil {
		return nil, err
	}
	caps := rego.Capabilities()
	caps.Builtins = append(caps.Builtins, more...)
	return ast.NewCompiler().
		WithStrict(true).
		WithCapabilities(caps).
		WithSchemas(schemas).
		WithUseTypeCheckAnnotations(true).
		SetErrorLimit(0), nil
}

// schemaSet makes the compiler check every use of input against
// schema/input.json. Both schemas have the names by which the annotations of
// `opa check --schema policy/schema` call them.
func schemaSet() (*ast.SchemaSet, error) {
	set := ast.NewSchemaSet()
	for _, name := range []string{"input", "data"} {
		text, err := policy.Schemas.ReadFile("schema/" + name + ".json")
		if err != nil {
			return nil, err
		}
		var document any
		if err := json.Unmarshal(text, &document); err != nil {
			return nil, err
		}
		if name == "input" {
			set.Put(ast.SchemaRootRef, document)
		}
		set.Put(ast.SchemaRootRef.Append(ast.StringTerm(name)), document)
	}
	return set, nil
}

// revision is the digest of all that decides.
func revision(doc policy.Document, team *rego.Team) string {
	h := sha256.New()
	add := func(name string, text []byte) { fmt.Fprintf(h, "%s %d\n%s\n", name, len(text), text) }
	doc.Policy.Dir = "" // its content counts, not its place
	doc.Policy.Cache = nil
	doc.Policy.Watch, doc.Policy.Bundle, doc.Policy.Verified = nil, nil, nil // likewise
	text, err := json.Marshal(doc)
	if err != nil {
		panic(err) // a Document holds nothing that JSON cannot
	}
	add("document", text)
	add("decision", []byte(decisionRego))
	for _, s := range team.Digest {
		add(strings.TrimPrefix("team/"+s.Name, "./"), s.Text)
	}
	for _, s := range rego.LibrarySources(team.Modules) {
		add(s.Name, s.Text)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// CompileRego says what the compiler finds wrong with a team's Rego. The rules of a
// document make no difference to it.
func CompileRego(ctx context.Context, t *rego.Team) error {
	_, err := compileRego(ctx, t)
	return err
}

// sandboxNames are the names of sandboxes that the document selects by.
func sandboxNames(doc policy.Document) map[string]bool {
	var all []policy.Selector
	for _, r := range doc.Egress {
		all = append(all, r.Sandboxes)
	}
	for _, r := range doc.EgressAuth {
		all = append(all, r.Sandboxes)
	}
	for _, r := range doc.Expose {
		all = append(all, r.Sandboxes)
	}
	for _, o := range doc.Observe {
		all = append(all, o.Sandboxes)
	}
	for _, l := range doc.Limits {
		all = append(all, l.Sandboxes)
	}
	names := map[string]bool{}
	for _, s := range all {
		for _, name := range s.Names {
			names[name] = true
		}
	}
	return names
}

// Names tells whether a rule selects sandboxes by this name. A new sandbox of that name gets
// what the rule gives. Nothing is known of what the team's Rego does with names.
func (p *Policy) Names(name string) bool { return p.named[name] }
