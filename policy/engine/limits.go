package engine

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"sallyport/policy"
	"sallyport/policy/rule"
	"sallyport/policy/validate"

	"github.com/open-policy-agent/opa/v1/ast"
)

// priceList are prices with what they are about.
type priceList []struct {
	policy.Price
	to scope
}

func newPriceList(list []policy.Price) priceList {
	prices := make(priceList, len(list))
	for i, one := range list {
		prices[i].Price, prices[i].to = one, newScope(one.Destination)
	}
	return prices
}

// at are the prices about an input's destination.
func (p priceList) at(s rule.ParsedInput) (here policy.Prices) {
	for i := range p {
		if p[i].to.holds(s) {
			here = append(here, p[i].Price)
		}
	}
	return here
}

// scope is a destination, or everywhere.
type scope struct{ only *rule.Destination }

func newScope(destination string) scope {
	if destination == "" {
		return scope{}
	}
	d, _ := rule.ParseDestination(destination) // validated
	return scope{&d}
}

func (o scope) holds(s rule.ParsedInput) bool {
	return o.only == nil || (o.only.Port == 0 || o.only.Port == s.Destination.Port) && o.only.Has(s)
}

// compiledLimit is a Limit ready to be applied.
type compiledLimit struct {
	policy.Limit
	open *policy.Opening
	to   scope
}

func newCompiledLimit(l policy.Limit) *compiledLimit {
	l.Per = cmp.Or(l.Per, policy.PerSandbox)
	return &compiledLimit{Limit: l, open: policy.NewOpening(l.Hours), to: newScope(l.Destination)}
}

// limitList are the limits of a document, in its order. Each is tried.
type limitList []*compiledLimit

func newLimitList(list []policy.Limit) limitList {
	limits := make(limitList, len(list))
	for i, l := range list {
		limits[i] = newCompiledLimit(l)
	}
	return limits
}

func (ls limitList) named(name string) *compiledLimit {
	if i := slices.IndexFunc(ls, func(l *compiledLimit) bool { return l.Name == name }); i >= 0 {
		return ls[i]
	}
	return nil
}

// apply adds the limit with its subject, if the input falls under it; once for each credential
// where those are the subjects.
func (l *compiledLimit) apply(list []policy.Applied, s rule.ParsedInput, with []policy.Injection) []policy.Applied {
	if !l.to.holds(s) || !l.Sandboxes.Picks(s.Sandbox.Name, s.Sandbox.Tags) {
		return list
	}
	a := policy.Applied{Limit: &l.Limit, Opening: l.open}
	for i, in := range with {
		if l.Credential != "" && in.Credential != l.Credential {
			continue
		}
		if l.Per != policy.PerCredential {
			a.Credentials++
			continue
		}
		// A credential in two places of a request counts once.
		if !slices.ContainsFunc(with[:i], func(before policy.Injection) bool { return before.Credential == in.Credential }) {
			own := a
			own.Subject, own.Credentials = in.Credential, 1
			list = append(list, own)
		}
	}
	if l.Per == policy.PerCredential || l.Credential != "" && a.Credentials == 0 {
		return list
	}
	a.Subject = l.subject(s)
	return append(list, a)
}

// maxSubject bounds a counter's name, in bytes: a tag may be of any length.
const maxSubject = 300

func (l *compiledLimit) subject(s rule.ParsedInput) string {
	text := policy.PerAll
	switch {
	case l.Per == policy.PerSandbox:
		// Forks share what their lineage has: else who may fork a sandbox could
		// multiply what it may use.
		text = cmp.Or(s.Sandbox.Tags[policy.TagLineage], s.Sandbox.ID, s.Sandbox.Name)
	case l.Per == policy.PerDestination:
		text = net.JoinHostPort(s.Host, strconv.Itoa(int(s.Destination.Port)))
	case strings.HasPrefix(l.Per, policy.PerTag):
		text = s.Sandbox.Tags[strings.TrimPrefix(l.Per, policy.PerTag)]
	}
	if len(text) > maxSubject {
		text = fmt.Sprintf("%s…%x", strings.ToValidUTF8(text[:200], ""), digest(text))
	}
	return text
}

// Limited tells whether some limit may apply to something.
func (p *Policy) Limited() bool { return len(p.limits) > 0 || p.query.limits != nil }

// Every is the period of a limit of the document, 0 where there is no such, or it
// has none.
func (p *Policy) Every(limit string) time.Duration {
	if l := p.limits.named(limit); l != nil {
		return time.Duration(l.Every)
	}
	return 0
}

// digest tells long texts apart, in 8 bytes.
func digest(text string) []byte {
	sum := sha256.Sum256([]byte(text))
	return sum[:8]
}

// maxTeamLimits bounds those that a team's Rego gives one request.
const maxTeamLimits = 32

// bounded adds the limits that apply to what is allowed. A request that a team's Rego
// limits in a form that cannot be read is denied.
func (p *Policy) bounded(ctx context.Context, d policy.Decision, s rule.ParsedInput, at time.Time) policy.Decision {
	if !passes(d.Action, s.Phase) {
		return d
	}
	d.Lenient = p.lenient(s, at)
	if p.query.limits == nil {
		return p.limited(d, s, nil)
	}
	team, err := p.teamLimits(ctx, s, at)
	if err != nil {
		if shown(s.Request) {
			err = quiet(err)
		}
		return p.undecided(err)
	}
	return p.limited(d, s, team)
}

// limited adds the limits of the document and of the team that a decision falls under.
func (p *Policy) limited(d policy.Decision, s rule.ParsedInput, team []*compiledLimit) policy.Decision {
	d.Limits = nil
	for _, l := range p.limits {
		d.Limits = l.apply(d.Limits, s, d.Inject)
	}
	for _, l := range team {
		if p.limits.named(l.Name) != nil {
			return p.undecided(fmt.Errorf("a limit of the team's is named %q, as one of sallyport.yaml's is", l.Name))
		}
		d.Limits = l.apply(d.Limits, s, d.Inject)
	}
	for i := range d.Limits {
		if d.Limits[i].Cost > 0 {
			d.Limits[i].Prices = p.priced.at(s)
		}
	}
	return d
}

// lenient tells whether the sandbox is in observe mode.
func (p *Policy) lenient(s rule.ParsedInput, at time.Time) bool {
	if p.observing == nil {
		return false
	}
	if at.IsZero() {
		at = time.Now()
	}
	return slices.ContainsFunc(p.observing.list, func(o policy.Observation) bool {
		return at.Before(o.Until) && o.Sandboxes.Picks(s.Sandbox.Name, s.Sandbox.Tags)
	})
}

// passes tells whether something is carried after the decision.
func passes(a policy.Action, at policy.Phase) bool {
	switch at {
	case policy.PhaseRequest:
		return a == policy.Allow || a == policy.Approve
	case policy.PhaseConnect:
		return a == policy.Tunnel || a == policy.Approve
	}
	return false
}

// teamLimits asks the team's Rego.
func (p *Policy) teamLimits(ctx context.Context, s rule.ParsedInput, at time.Time) ([]*compiledLimit, error) {
	v := p.query.evaluationOf(p.query.limits[s.Phase], s.Phase)
	defer v.release()
	v.at = at
	v.document.set(p, s)
	answer, err := p.query.evalWithRetry(ctx, v)
	if err != nil {
		return nil, err
	}
	return readTeamLimits(answer)
}

// readTeamLimits reads data.sallyport.contributed.limits.
func readTeamLimits(answer ast.Value) ([]*compiledLimit, error) {
	list, ok := answer.(*ast.Array)
	if !ok {
		return nil, fmt.Errorf("the team's limits are %v, not an array", ast.ValueName(answer))
	}
	if list.Len() > maxTeamLimits {
		return nil, fmt.Errorf("the team's limits: at most %d apply to one request, got %d", maxTeamLimits, list.Len())
	}
	limits := make([]*compiledLimit, 0, list.Len())
	names := map[string]bool{}
	err := list.Iter(func(t *ast.Term) error {
		l, err := teamLimit(t.Value)
		if err != nil {
			return fmt.Errorf("a limit must be {\"name\": …, \"per\": …, \"every\": …, \"requests\": …}: %w, got %.200s", err, policy.Clean(t.String()))
		}
		if names[l.Name] {
			return fmt.Errorf("two limits of one request are named %q", l.Name)
		}
		names[l.Name] = true
		limits = append(limits, l)
		return nil
	})
	return limits, err
}

// teamLimit reads a limit by the rules that sallyport.yaml's are read by.
func teamLimit(v ast.Value) (*compiledLimit, error) {
	var l policy.Limit
	if err := decodeTerm(v, &l, true); err != nil {
		return nil, err
	}
	if err := validate.CheckLimit(l); err != nil {
		return nil, err
	}
	return newCompiledLimit(l), nil
}

// decodeTerm reads a value of Rego's into a struct; strict refuses keys that it does not have.
func decodeTerm(v ast.Value, into any, strict bool) error {
	plain, err := ast.JSON(v)
	if err != nil {
		return err
	}
	text, err := json.Marshal(plain)
	if err != nil {
		return err
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if strict {
		decoder.DisallowUnknownFields()
	}
	return decoder.Decode(into)
}
