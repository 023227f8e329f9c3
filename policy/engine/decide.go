package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"sallyport/internal/hostname"
	"sallyport/policy"
	"sallyport/policy/rule"
	"sallyport/policy/validate"

	"github.com/open-policy-agent/opa/v1/ast"
)

// ErrUndecided is wrapped by a Decision's Err: the policy gave no usable answer,
// and the decision is deny.
var ErrUndecided = errors.New("the policy could not decide")

// Decide evaluates the policy. It never fails: what cannot be evaluated, in time,
// to exactly one well-formed answer is denied, and Err says why.
func (p *Policy) Decide(ctx context.Context, in policy.Input) policy.Decision {
	return p.DecideAt(ctx, in, time.Time{})
}

// DecideAt decides as Decide does at a time: that is what a Rego that reads the
// clock reads. The zero time is now.
func (p *Policy) DecideAt(ctx context.Context, in policy.Input, at time.Time) policy.Decision {
	s, err := rule.ParseInput(in)
	if err != nil {
		return p.refuse("the request cannot be judged: "+policy.Clean(err.Error()), nil)
	}
	if at.IsZero() && p.clock != nil {
		at = p.clock()
	}
	if s.HasVariants() {
		return p.decideVariants(ctx, s, at)
	}
	return p.decide(ctx, s, at)
}

func (p *Policy) decide(ctx context.Context, s rule.ParsedInput, at time.Time) policy.Decision {
	if s.Phase == policy.PhaseInbound || s.Phase == policy.PhaseSSH {
		return p.entering(ctx, s, at)
	}
	if p.bodies && s.Phase == policy.PhaseRequest {
		if d, denied := p.missingBody(s, at); denied {
			return p.settle(ctx, d, s, at)
		}
	}
	seen := shown(s.Request)
	var near [8]rule.Match
	matches := p.matches(near[:0], s)
	var room [256]byte
	var key []byte
	if p.cache != nil && !seen {
		if key = p.cache.key(room[:0], matches, s); key != nil {
			if answer := p.cache.get(key); answer != nil {
				d, err := p.decode(answer, s)
				if err != nil {
					return p.undecided(err)
				}
				return p.settle(ctx, d, s, at)
			}
		}
	}
	v := p.query.evaluation(s.Phase)
	v.at = at
	v.document.setWith(p.terms, matches, s)
	answer, err := p.query.evalWithRetry(ctx, v)
	if err != nil {
		v.release()
		if seen {
			err = quiet(err)
		}
		return p.undecided(err)
	}
	d, err := p.decode(answer, s)
	if seen && d.Err != nil {
		d.Err = fmt.Errorf("%w: %w", ErrUndecided, quiet(errors.New("malformed")))
	}
	if key != nil && err == nil && d.Err == nil {
		p.cache.put(key, answer)
	}
	v.release()
	if err != nil {
		return p.undecided(err)
	}
	return p.settle(ctx, d, s, at)
}

// settle applies the floor to an answer, and then observe mode, which lifts
// nothing of the floor, and says which limits there are.
func (p *Policy) settle(ctx context.Context, d policy.Decision, s rule.ParsedInput, at time.Time) policy.Decision {
	d = p.inherited(p.floor(d, s), s)
	if p.observing != nil && d.Action != policy.Allow && d.Action != policy.Tunnel {
		d = p.observe(ctx, d, s, at)
	}
	d = p.meddled(d, s)
	if !p.Limited() {
		return d
	}
	return p.bounded(ctx, d, s, at)
}

// Revision is the digest of the document, the Rego and the team's directory.
func (p *Policy) Revision() string { return p.revision }

// Rules is the number of egress and egressAuth rules.
func (p *Policy) Rules() int { return len(p.rules) }

// RuleNames lists the names of the egress and egressAuth rules.
func (p *Policy) RuleNames() []string { return slices.Collect(maps.Keys(p.rules)) }

// CacheHits is how many decisions were made from an answer in the cache: see
// [policy.Source].Cache.
func (p *Policy) CacheHits() uint64 {
	if p.cache == nil {
		return 0
	}
	return p.cache.hits.Load()
}

// Bound reports whether some egressAuth rule binds the credential to the
// destination. A credential goes nowhere else, whatever Rego says.
func (p *Policy) Bound(credential, host string, port uint16) bool {
	name, addr, err := hostname.Parse(host)
	return err == nil && p.bound(credential, rule.ParsedInput{Host: name, Addr: addr}.Target(), port)
}

// AllowsShort reports whether a field of the credential may be injected however short
// it is.
func (p *Policy) AllowsShort(credential, field string) bool {
	return slices.Contains(p.short[credential], field)
}

// PerSandbox reports whether each sandbox has a secret of its own of the credential.
func (p *Policy) PerSandbox(credential string) bool { return p.owned[credential] }

func (p *Policy) refuse(reason string, err error) policy.Decision {
	return policy.Decision{Action: policy.Deny, RuleType: policy.TypeFloor, Reason: reason, Revision: p.revision, Err: err}
}

func (p *Policy) undecided(err error) policy.Decision {
	return p.refuse("the policy could not be evaluated, so everything is denied; the operator's log says why",
		fmt.Errorf("%w: %w", ErrUndecided, err))
}

// decode reads data.sallyport.decision: {action, why, rule or team, inject}, with an error besides
// where the team's policy is malformed.
func (p *Policy) decode(v ast.Value, s rule.ParsedInput) (policy.Decision, error) {
	d := policy.Decision{Revision: p.revision}
	o, ok := v.(ast.Object)
	if !ok {
		return d, fmt.Errorf("the answer is %v, not an object", ast.ValueName(v))
	}
	action, err := text(o, keyAction)
	if err != nil {
		return d, err
	}
	d.Action = policy.Action(action)
	if d.Reason, d.Rule, d.RuleType, err = reason(o, s); err != nil {
		return d, err
	}
	if o.Get(keyError) != nil {
		why, err := text(o, keyError)
		d.Err = fmt.Errorf("%w: %s", ErrUndecided, policy.Clean(why))
		d.Action = policy.Deny
		return d, err
	}
	switch d.Action {
	case policy.Deny:
		return d, nil
	case policy.Approve:
		d.Approvals = p.approvals
	case policy.Allow, policy.Tunnel:
	default:
		return d, fmt.Errorf("unknown action %q", d.Action)
	}
	r := p.rules[d.Rule]
	if r != nil && d.RuleType != r.Type {
		r = nil
	}
	if s.Phase != policy.PhaseDNS && p.detours {
		by := r
		if by == nil && d.Action == policy.Approve {
			by = p.carryingRule(s)
		}
		d.Upstream = p.upstreamBy(s, by)
	}
	if r != nil {
		d.RawPath = r.RawPath
	}
	d.Authorised = s.Phase == policy.PhaseConnect && s.Protocol.IsLogin() && p.logsIn(s)
	credentials := o.Get(keyInject)
	if credentials == nil {
		return d, errors.New("the answer has no inject")
	}
	if d.Inject, err = p.injections(credentials.Value); err == nil && len(d.Inject) > 0 {
		d.Cookies, err = p.passesCookies(credentials.Value.(ast.Set))
	}
	return d, err
}

// reason reads what decided, and why.
func reason(o ast.Object, s rule.ParsedInput) (reason, rule, kind string, err error) {
	var why string
	if o.Get(keyWhy) != nil {
		if why, err = text(o, keyWhy); err != nil {
			return "", "", "", err
		}
	}
	part := func(key *ast.Term) (ast.Object, error) {
		part, ok := o.Get(key).Value.(ast.Object)
		if !ok {
			return nil, fmt.Errorf("%v is no object", key)
		}
		rule, err = text(part, keyRule)
		return part, err
	}
	switch {
	case o.Get(keyRule) != nil:
		by, err := part(keyRule)
		if err != nil {
			return "", "", "", err
		}
		kind, err = text(by, keyType)
		return policy.Clean(why + " " + rule), policy.Clean(rule), kind, err
	case o.Get(keyTeam) != nil:
		by, err := part(keyTeam)
		if err == nil && by.Get(keyReason) != nil {
			why, err = text(by, keyReason)
		}
		return policy.Clean(why), policy.Clean(rule), policy.TypeRego, err
	}
	return policy.Clean(why + " " + s.String()), "", "", nil
}

// passesCookies tells whether all that injects lets cookies pass: a rule of the document by
// its own word, a team's Rego by {credential, inject, cookies}.
func (p *Policy) passesCookies(set ast.Set) (bool, error) {
	all := true
	err := set.Iter(func(t *ast.Term) error {
		o := t.Value.(ast.Object) // as injections has found
		if o.Get(keyRule) != nil {
			name, err := text(o, keyRule)
			all = all && err == nil && p.rules[name].Cookies
			return err
		}
		if o.Get(keyCookies) == nil {
			all = false
			return nil
		}
		said, err := text(o, keyCookies)
		if err == nil && said != policy.PassCookies {
			err = fmt.Errorf("cookies is %q: write pass, or leave it out", policy.Clean(said))
		}
		return err
	})
	return all && err == nil, err
}

// The keys of a decision, an injection and a rule.
var (
	keyAction     = ast.InternedTerm("action")
	keyTeam       = ast.InternedTerm("team")
	keyWhy        = ast.InternedTerm("why")
	keyReason     = ast.InternedTerm("reason")
	keyError      = ast.InternedTerm("error")
	keyType       = ast.StringTerm("type")
	keyRule       = ast.StringTerm("rule")
	keyInject     = ast.StringTerm("inject")
	keyCookies    = ast.StringTerm("cookies")
	keyOwn        = ast.StringTerm("own")
	keyCredential = ast.StringTerm("credential")
)

// injections reads decision.inject: {credential, rule} for what a rule of the
// document injects, {credential, inject} for what a team's Rego does.
func (p *Policy) injections(v ast.Value) ([]policy.Injection, error) {
	set, ok := v.(ast.Set)
	if !ok {
		return nil, fmt.Errorf("inject is %v, not a set", ast.ValueName(v))
	}
	if set.Len() == 0 {
		return nil, nil
	}
	list := make([]policy.Injection, 0, set.Len())
	err := set.Iter(func(t *ast.Term) error {
		o, ok := t.Value.(ast.Object)
		if !ok {
			return fmt.Errorf("an inject is %v, not an object", ast.ValueName(t.Value))
		}
		credential, err := text(o, keyCredential)
		if err != nil {
			return err
		}
		in := policy.Injection{Credential: credential}
		switch rule, inject := o.Get(keyRule), o.Get(keyInject); {
		case rule != nil:
			name, err := text(o, keyRule)
			if err != nil {
				return err
			}
			r := p.rules[name]
			if r == nil || r.Credential != credential {
				return fmt.Errorf("rule %q does not inject %q", name, credential)
			}
			in.Inject, in.DenyOwn = r.Inject, r.DenyOwn
		case inject != nil:
			if in.Inject, err = teamInject(inject.Value); err != nil {
				return err
			}
			if in.DenyOwn, err = deniesOwn(o); err != nil {
				return err
			}
		}
		list = append(list, in)
		return nil
	})
	return list, err
}

// teamInject reads the inject of a team's injection, by the rules that
// sallyport.yaml's is read by.
func teamInject(v ast.Value) (policy.Inject, error) {
	var in policy.Inject
	if err := decodeTerm(v, &in, true); err != nil {
		return in, fmt.Errorf("reading an inject: %w", err)
	}
	return in, validate.CheckInject(&in)
}

// deniesOwn reads own of a team's injection, {credential, inject, own}.
func deniesOwn(o ast.Object) (bool, error) {
	if o.Get(keyOwn) == nil {
		return false, nil
	}
	said, err := text(o, keyOwn)
	if err == nil && said != policy.DenyOwn {
		err = fmt.Errorf("own is %q: write deny, or leave it out", policy.Clean(said))
	}
	return said == policy.DenyOwn, err
}

func text(o ast.Object, key *ast.Term) (string, error) {
	t := o.Get(key)
	if t == nil {
		return "", fmt.Errorf("the answer has no %v", key)
	}
	s, ok := t.Value.(ast.String)
	if !ok {
		return "", fmt.Errorf("%v is %v, not a string", key, ast.ValueName(t.Value))
	}
	return string(s), nil
}
