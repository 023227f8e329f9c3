package engine

import (
	"cmp"
	"crypto/sha256"
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

// teamInject reads the inject of a team's injection, by the rules that
// sallyport.yaml's is read by.
func teamInject(v ast.Value) (policy.Inject, error) {
	var in policy.Inject
	if err := decodeTerm(v, &in, true); err != nil {
		return in, fmt.Errorf("reading an inject: %w", err)
	}
	return in, validate.CheckInject(&in)
}

// priced are prices ready to be looked up: by destination, which most have none of.
type priceTable struct {
	list policy.Prices
	to   []*rule.Destination // nil for all
}

// newPriced is for prices that have been checked; nil where there are none.
func newPriceTable(list []policy.Price) *priceTable {
	if len(list) == 0 {
		return nil
	}
	p := &priceTable{list: list, to: make([]*rule.Destination, len(list))}
	for i, one := range list {
		if one.Destination != "" {
			d, _ := rule.ParseDestination(one.Destination)
			p.to[i] = &d
		}
	}
	return p
}

// at are the prices about an input's destination.
func (p *priceTable) at(s rule.ParsedInput) policy.Prices {
	if p == nil {
		return nil
	}
	if !slices.ContainsFunc(p.to, func(d *rule.Destination) bool { return d != nil }) {
		return p.list
	}
	var here policy.Prices
	for i, d := range p.to {
		if d == nil || d.Port == 0 && d.Has(s) || d.Port == s.Destination.Port && d.Has(s) {
			here = append(here, p.list[i])
		}
	}
	return here
}

// compiledLimit is a Limit ready to be applied.
type compiledLimit struct {
	policy.Limit
	open *policy.Opening
}

// limits finds those that an input falls under.
type limitTable struct {
	table     *rule.Table // those of a destination
	anywhere  *rule.Entry // the others
	selectors *rule.Selectors
	names     map[string]*compiledLimit
}

// newLimits returns nil where there are none.
func newLimitTable(list []policy.Limit) *limitTable {
	if len(list) == 0 {
		return nil
	}
	ls := &limitTable{anywhere: &rule.Entry{Buckets: map[uint16]map[string]*rule.Bucket{}}, names: map[string]*compiledLimit{}}
	rules := make([]rule.Rule, 0, len(list))
	all := make([]rule.Rule, 0, len(list))
	for _, l := range list {
		r := rule.Rule{Name: l.Name, Sandboxes: l.Sandboxes}
		compiled := &compiledLimit{Limit: l, open: policy.NewOpening(l.Hours)}
		if compiled.Per == "" {
			compiled.Per = policy.PerSandbox
		}
		ls.names[l.Name] = compiled
		if l.Destination != "" {
			r.Destination, _ = rule.ParseDestination(l.Destination) // validated
			r.Ports = rule.PortsOf(nil, r.Destination)
			rules = append(rules, r)
		}
		all = append(all, r)
	}
	ls.table, ls.selectors = rule.NewTable(rules), rule.NewSelectors(all)
	for i := range all {
		r := &all[i]
		if ls.names[r.Name].Destination != "" {
			continue
		}
		for _, s := range rule.Selections(r.Sandboxes) {
			ls.anywhere.Add(r, rule.EveryPort, s.Text())
		}
	}
	return ls
}

// apply lists the limits of the document that an allowed input falls under.
func (ls *limitTable) apply(list []policy.Applied, s rule.ParsedInput, with []policy.Injection) []policy.Applied {
	if ls == nil {
		return list
	}
	var near [8]*rule.Bucket
	buckets := ls.table.Buckets(near[:0], s, ls.selectors)
	var names [8]string
	for _, selector := range ls.selectors.Picking(names[:0], s.Sandbox) {
		if b := ls.anywhere.Buckets[rule.EveryPort][selector]; b != nil {
			buckets = append(buckets, b)
		}
	}
	for _, b := range buckets {
		for _, r := range b.Rules {
			list = ls.names[r.Name].apply(list, s, with)
		}
	}
	return list
}

// apply adds the limit with its subject; once for each credential where those are
// the subjects.
func (l *compiledLimit) apply(list []policy.Applied, s rule.ParsedInput, with []policy.Injection) []policy.Applied {
	a := policy.Applied{Limit: &l.Limit, Opening: l.open}
	for i, in := range with {
		if l.Credential != "" && in.Credential != l.Credential {
			continue
		}
		if l.Per != policy.PerCredential {
			a.Credentials++
			continue
		}
		own := a
		own.Subject, own.Credentials = in.Credential, 1
		for _, before := range with[:i] {
			if before.Credential == in.Credential { // in two places
				own.Subject = ""
			}
		}
		if own.Subject != "" {
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
func (p *Policy) Limited() bool { return p.limits != nil || p.query.limits != nil }

// Every is the period of a limit of the document, 0 where there is no such, or it
// has none.
func (p *Policy) Every(limit string) time.Duration {
	if p.limits == nil || p.limits.names[limit] == nil {
		return 0
	}
	return time.Duration(p.limits.names[limit].Every)
}

// digest tells long texts apart, in 8 bytes.
func digest(text string) []byte {
	sum := sha256.Sum256([]byte(text))
	return sum[:8]
}
