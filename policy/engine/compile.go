package engine

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown/cache"

	"sallyport/policy"
	"sallyport/policy/rego"
	"sallyport/policy/rule"
	"sallyport/policy/validate"
)

//go:embed decision.rego testing.rego builders.rego floor.rego
var sources embed.FS

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
	selectors *rule.Selectors
	terms     ruleTerms // of the rules in input.rules
	revision  string
	approvals *policy.Approvals
	cache     *decisionCache   // nil where nothing is kept
	clock     func() time.Time // nil for the real one
	observing *observing       // nil where nothing is ever in observe mode
	bodies    bool             // some rule has to see a request's body
	team      bool             // a team's Rego has a say
	limits    *limitTable      // nil where the document has none
	priced    *priceTable      // nil where nothing has a price
	exposed   exposeTable      // what may reach sandboxes
	named     nameSet
	short     map[string][]string // by credential: Credential.AllowShort
	overSSH   []policy.ExposeRule // and what may over SSH
}

// Compile checks a document and makes it decide. Its error joins every Finding
// that stands in the way, those of the team's Rego included.
func Compile(ctx context.Context, doc policy.Document, o Options) (*Policy, error) {
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
	team, err := rego.Load(doc.Policy.Dir)
	switch b := doc.Policy.Verified; {
	case team == nil:
	case b != nil:
		err = errors.Join(err, team.AddBundle(b))
	case doc.Policy.Bundle != nil:
		err = errors.Join(err, policy.Finding{Position: doc.Position("policy.bundle"), Path: "policy.bundle", Message: "has not been read"})
	}
	var f policy.Finding
	if errors.As(err, &f) && f.Path == "policy.dir" {
		f.Position = doc.Position(f.Path)
		err = f
	}
	if err := errors.Join(policy.JoinErrors(findings), err); err != nil {
		return nil, err
	}
	for _, f := range findings {
		o.Logger.WarnContext(ctx, "policy warning", "id", string(f.Kind), "at", f.Position.String(), "path", f.Path, "message", f.Message, "fix", f.Fix)
	}
	p := &Policy{
		table:     rule.NewTable(rules),
		rules:     make(map[string]*rule.Rule, len(rules)),
		selectors: rule.NewSelectors(rules),
		terms:     newRuleTerms(rules),
		revision:  revision(doc, team),
		clock:     o.Clock,
		observing: newObserving(doc, rules),
		limits:    newLimitTable(doc.Limits),
		priced:    newPriceTable(doc.Prices),
		exposed:   newExposeTable(doc.Expose),
		named:     sandboxNames(doc),
		short:     make(map[string][]string),
		overSSH:   overSSH(doc.Expose),
	}
	for _, c := range doc.Credentials {
		if len(c.AllowShort) > 0 {
			p.short[c.Name] = c.AllowShort
		}
	}
	p.approvals = new(doc.Approvals.Defaulted())
	p.team = len(team.Sets) > 0
	for i := range rules {
		p.rules[rules[i].Name] = &rules[i]
		p.bodies = p.bodies || rules[i].Body != nil
	}
	own, err := ownModules()
	if err != nil {
		return nil, err
	}
	if err := p.prepare(ctx, own, team); err != nil {
		return nil, err
	}
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

// prepare compiles the Rego, ours and the team's, over the document's data.
func (p *Policy) prepare(ctx context.Context, own map[string]*ast.Module, team *rego.Team) error {
	data, err := p.data(team)
	if err != nil {
		return err
	}
	modules := maps.Clone(own)
	for name, m := range team.Modules {
		modules[name] = m
	}
	if err := rego.AddLibrary(modules); err != nil {
		return err
	}
	if len(team.Sets) > 0 {
		const name = "contributed.rego"
		m, err := ast.ParseModuleWithOpts(name, team.Gather(), ast.ParserOptions{RegoVersion: ast.RegoV1})
		if err != nil {
			return rego.Errors(err)
		}
		modules[name] = m
	}
	schemas, err := schemaSet()
	if err != nil {
		return err
	}
	compiler := ast.NewCompiler().
		WithStrict(true).
		WithCapabilities(rego.Capabilities()).
		WithSchemas(schemas).
		WithUseTypeCheckAnnotations(true).
		SetErrorLimit(0)
	p.query, err = newEvaluator(ctx, compiler, modules, data, team.Sets)
	return err
}

// ownModules parses the Rego that Sallyport comes with.
func ownModules() (map[string]*ast.Module, error) {
	const name = "decision.rego"
	text, err := sources.ReadFile(name)
	if err != nil {
		return nil, err
	}
	m, err := ast.ParseModuleWithOpts(name, string(text), ast.ParserOptions{RegoVersion: ast.RegoV1, ProcessAnnotation: true})
	return map[string]*ast.Module{name: m}, err
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
	rules, err := sources.ReadFile("decision.rego")
	if err != nil {
		panic(err) // embedded
	}
	add("decision", rules)
	for _, s := range team.Digest {
		add(strings.TrimPrefix("team/"+s.Name, "./"), s.Text)
	}
	for _, s := range rego.LibrarySources(team.Modules) {
		add(s.Name, s.Text)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// compileRego says what the compiler finds wrong with a team's Rego. The rules of a
// document are data: they make no difference to it.
func CompileRego(ctx context.Context, t *rego.Team) error {
	own, err := ownModules()
	if err != nil {
		return err
	}
	return new(Policy).prepare(ctx, own, t)
}
