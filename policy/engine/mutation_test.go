package engine

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/loader"
	"github.com/open-policy-agent/opa/v1/storage/inmem"
	"github.com/open-policy-agent/opa/v1/tester"

	"sallyport/internal/test/must"
	"sallyport/policy"
	"sallyport/policy/body"
	"sallyport/policy/oracle"
	"sallyport/policy/rego"
)

// These tests make rules by the thousand and keep none: half of their time was the garbage
// collector's.
func init() { debug.SetGCPercent(400) }

// TestMutation makes each small mistake that there is in decision.rego, one at a
// time, and expects the tests that hold its meaning to find it: the comparison with
// the oracle, and the tests in Rego. testdata/survivors.yaml has a reason for each
// mistake that none finds.
func TestMutation(t *testing.T) {
	original, err := ast.ParseModule(decisionFile, decisionRego)
	must.OK(t, err)
	jury := newJury(t)
	if why := jury.convicts(t, original); why != "" {
		t.Fatalf("decision.rego itself: %s", why)
	}
	survivors := map[string]string{}
	reasons, err := os.ReadFile("testdata/survivors.yaml")
	must.OK(t, err)
	must.OK(t, yaml.Unmarshal(reasons, &survivors))
	generated, killed, senseless := 0, map[string]int{}, 0
	seen := map[string]bool{}
	for _, m := range mutants(original) {
		module, err := ast.ParseModule("decision.rego", m.module.String())
		if err != nil || module.Equal(original) {
			senseless++
			continue
		}
		why := jury.convicts(t, module)
		if strings.HasPrefix(why, "compiler") {
			senseless++ // nobody could have made that mistake
			continue
		}
		generated++
		if why != "" {
			by, _, _ := strings.Cut(why, ":")
			killed[by]++
			continue
		}
		seen[m.what] = true
		if survivors[m.what] == "" {
			t.Errorf("survives without a reason in testdata/survivors.yaml:\n%s", m.what)
		} else {
			t.Logf("survives: %s\n\t%s", m.what, survivors[m.what])
		}
	}
	for what := range survivors {
		if !seen[what] {
			t.Errorf("testdata/survivors.yaml has a reason for what does not survive, or is not made:\n%s", what)
		}
	}
	t.Logf("mutants of decision.rego: %d generated, killed %v, %d surviving with a reason; %d more do not compile or change nothing", generated, killed, len(seen), senseless)
}

// jury is what a mutant has to get past.
type jury struct {
	alone []trial
	teams []trial
	rego  map[string]*ast.Module // tests, and what they need
	data  map[string]any
}

// trial is a random document, and what must come of asks.
type trial struct {
	document policy.Document
	team     *rego.Team
	policy   *Policy
	asks     []policy.Input
	verdicts []oracle.Verdict
	failed   []bool // the decision must have an error
}

func newJury(t *testing.T) *jury {
	t.Helper()
	random := rand.New(rand.NewPCG(7, 7))
	j := &jury{rego: map[string]*ast.Module{}}
	for range 60 {
		j.alone = append(j.alone, newTrial(t, random, "", nil))
	}
	for range 40 {
		text, contributed := oracle.Team(random)
		j.teams = append(j.teams, newTrial(t, random, text, contributed))
	}
	loaded, err := loader.NewFileLoader().All([]string{"decision_test.rego", "testdata/team"})
	must.OK(t, err)
	for name, m := range loaded.Modules {
		j.rego[name] = m.Parsed
	}
	j.data = loaded.Documents
	return j
}

func newTrial(t *testing.T, random *rand.Rand, regoText string, contributed func(oracle.Ask) oracle.Contributed) trial {
	t.Helper()
	for {
		text := oracle.Text(random)
		var tr trial
		must.OK(t, yaml.Unmarshal([]byte(text), &tr.document))
		tr.document.Policy.Cache = new(0)
		if regoText != "" {
			tr.document.Policy.Dir = t.TempDir()
			must.OK(t, os.WriteFile(filepath.Join(tr.document.Policy.Dir, "team.rego"), []byte(regoText), 0o600))
		}
		var err error
		if tr.policy, err = Compile(t.Context(), tr.document, Options{Timeout: time.Minute}); err != nil {
			continue // a rule contradicts itself or another
		}
		if tr.team, err = rego.Load(tr.document.Policy.Dir); err != nil {
			t.Fatal(err)
		}
		d, err := oracle.Read([]byte(text))
		must.OK(t, err)
		for range 50 {
			a := oracle.Random(random)
			v := d.Judge(a)
			if contributed != nil {
				v = d.JudgeWith(contributed, a)
			}
			tr.asks = append(tr.asks, inputOf(tr.policy, a))
			tr.verdicts = append(tr.verdicts, v)
			tr.failed = append(tr.failed, v.Malformed)
		}
		return tr
	}
}

func inputOf(p *Policy, a oracle.Ask) policy.Input {
	in := policy.Input{
		Phase: policy.Phase(a.Phase), Protocol: policy.Protocol(a.Protocol),
		Sandbox:     policy.Sandbox{Name: a.Sandbox, ID: "id-" + a.Sandbox, Tags: a.Tags},
		Destination: policy.Destination{Host: a.Host, Port: uint16(a.Port)},
	}
	if a.Phase == "request" {
		in.Request = &policy.Request{Method: a.Method, Scheme: strings.Replace(a.Protocol, "tls", "https", 1), Path: a.Path, Size: -1}
		if n := p.Need(in); n.Max > 0 && a.Body != "" {
			in.Request.Body = body.Read(n, []byte(a.Body))
		}
	}
	return in
}

// convicts says who found out that the module is not decision.rego, and how: ""
// for nobody.
func (j *jury) convicts(t *testing.T, module *ast.Module) string {
	t.Helper()
	own := map[string]*ast.Module{"decision.rego": module}
	if why := j.tests(t, module); why != "" {
		return why
	}
	var shared *evaluator
	for _, tr := range j.alone {
		p := *tr.policy
		if shared == nil {
			if why := tr.compile(t, &p, own); why != "" {
				return why
			}
			shared = p.query
		}
		p.query = shared
		if why := tr.differs(t, &p); why != "" {
			return "oracle: " + why
		}
	}
	for _, tr := range j.teams {
		p := *tr.policy
		if why := tr.compile(t, &p, own); why != "" {
			return why
		}
		if why := tr.differs(t, &p); why != "" {
			return "oracle, with a team: " + why
		}
	}
	return ""
}

func (tr trial) compile(t *testing.T, p *Policy, own map[string]*ast.Module) string {
	t.Helper()
	old := p.query
	all, err := modules(tr.team)
	must.OK(t, err)
	all[decisionFile] = own[decisionFile].Copy()
	c, err := prepare(t.Context(), all, tr.team)
	if err != nil {
		return "compiler: " + err.Error()
	}
	p.query = c.evaluator()
	p.query.timeout, p.query.patterns = old.timeout, old.patterns
	return ""
}

func (tr trial) differs(t *testing.T, p *Policy) string {
	t.Helper()
	for i, in := range tr.asks {
		want, got := tr.verdicts[i], p.Decide(t.Context(), in)
		if (got.Err != nil) != tr.failed[i] {
			return fmt.Sprint(got.Err)
		}
		if tr.failed[i] && !errors.Is(got.Err, ErrUndecided) {
			return fmt.Sprint(got.Err)
		}
		var credentials []string
		for _, i := range got.Inject {
			put := oracle.Put{Credential: i.Credential}
			if i.Inject.Query != nil {
				put.Query = i.Inject.Query.Name
			}
			if p := i.Inject.Protocol(); p.IsLogin() {
				put.Login = string(p)
			}
			credentials = append(credentials, put.String())
		}
		slices.Sort(credentials)
		kind := ""
		if got.Rule != "" {
			kind = map[byte]string{'e': policy.TypeEgress, 'a': policy.TypeEgressAuth, 't': policy.TypeRego, 's': policy.TypeRego}[got.Rule[0]]
		} else if got.RuleType == policy.TypeFloor {
			kind = policy.TypeFloor
		}
		named := len(want.Rules) == 0 && got.Rule == "" || slices.Contains(want.Rules, got.Rule)
		if string(got.Action) != want.Action || !named || got.RuleType != kind || !slices.Equal(credentials, want.Credentials) {
			return fmt.Sprintf("%+v: got %v by %q, want %v", in, got.Action, got.Rule, want)
		}
	}
	return ""
}

// tests runs the tests that are written in Rego.
func (j *jury) tests(t *testing.T, module *ast.Module) string {
	t.Helper()
	modules := map[string]*ast.Module{"decision.rego": module.Copy()}
	for name, m := range j.rego {
		modules[name] = m.Copy()
	}
	store := inmem.NewFromObject(j.data)
	txn, err := store.NewTransaction(t.Context())
	must.OK(t, err)
	defer store.Abort(t.Context(), txn)
	results, err := tester.NewRunner().SetStore(store).SetModules(modules).RaiseBuiltinErrors(true).RunTests(t.Context(), txn)
	if err != nil {
		return "compiler: " + err.Error()
	}
	why := ""
	for r := range results {
		if why == "" && (r.Error != nil || !r.Pass()) {
			why = "tests in Rego: " + r.Name
		}
	}
	return why
}
