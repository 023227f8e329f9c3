package engine

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"time"

	"sallyport/policy"
	"sallyport/policy/pathvariants"
	"sallyport/policy/rule"
)

// decideVariants decides about a request whose path has several readings: about each as if
// it had no other.
func (p *Policy) decideVariants(ctx context.Context, s rule.ParsedInput, at time.Time) policy.Decision {
	var all []policy.Decision
	for s := range s.Variants() {
		all = append(all, p.decide(ctx, s, at))
	}
	return p.join(s, all)
}

// join makes one decision of those about each reading of a path. Nobody knows which reading
// the server takes, so the request may do what is allowed of all of them. A denial of one
// denies it. It needs an approval where one of them needs one. All of them have to give it the
// same credentials, and send it the same way. A limit of several counts once.
func (p *Policy) join(s rule.ParsedInput, all []policy.Decision) policy.Decision {
	if len(all) == 1 {
		return all[0]
	}
	strictest := 0
	for i, d := range all {
		if strictness(d) > strictness(all[strictest]) {
			strictest = i
		}
	}
	d, read := all[strictest], pathvariants.Of(s.Request.Path)[strictest]
	if d.RuleType != "" && d.Action != policy.Allow {
		d.Reason = policy.Clean(d.Reason + ", the path read as " + read)
	}
	if d.Action == policy.Deny {
		return d
	}
	lifted := slices.IndexFunc(all, func(d policy.Decision) bool { return d.Observed != nil })
	for _, other := range all {
		d.Governed = d.Governed || other.Governed
		d.RawPath = d.RawPath && other.RawPath
		d.Cookies = d.Cookies && other.Cookies
		switch {
		case lifted >= 0:
			// A lifted reading gets no credential that its rules do not give, and so
			// neither does what the others allow.
			d.Inject = slices.DeleteFunc(slices.Clone(d.Inject), func(in policy.Injection) bool { return !injects(other, in) })
			if d.Upstream == nil {
				d.Upstream = other.Upstream
			}
		case len(d.Inject) != len(other.Inject) || slices.ContainsFunc(d.Inject, func(in policy.Injection) bool { return !injects(other, in) }):
			return p.refuse("the readings of the path do not get the same credentials: "+pathvariants.Decoded(s.SentPath)+" and "+s.SentPath, nil)
		}
		if other.Upstream != nil && !reflect.DeepEqual(d.Upstream, other.Upstream) || other.Upstream == nil && d.Upstream != nil && lifted < 0 {
			return p.refuse("the readings of the path do not go the same way: "+pathvariants.Decoded(s.SentPath)+" and "+s.SentPath, nil)
		}
		var err error
		if d.Limits, err = joined(d.Limits, other.Limits); err != nil {
			return p.undecided(err)
		}
	}
	return d
}

// strictness orders decisions: the higher one wins.
func strictness(d policy.Decision) int {
	switch {
	case d.Action == policy.Allow && d.Observed == nil:
		return 1
	case d.Action == policy.Allow:
		return 2
	case d.Action == policy.Approve:
		return 3
	case d.Unjudged != nil:
		return 4
	case d.Err == nil:
		return 5
	}
	return 6
}

// injects tells whether a decision puts a credential there.
func injects(d policy.Decision, in policy.Injection) bool {
	return slices.ContainsFunc(d.Inject, func(other policy.Injection) bool { return reflect.DeepEqual(in, other) })
}

// joined adds the limits that are not among the first.
func joined(list, more []policy.Applied) ([]policy.Applied, error) {
	list = slices.Clip(list)
	for _, m := range more {
		same := slices.IndexFunc(list, func(a policy.Applied) bool { return a.Name == m.Name && a.Subject == m.Subject })
		switch {
		case same < 0:
			list = append(list, m)
		case !reflect.DeepEqual(*list[same].Limit, *m.Limit):
			return nil, fmt.Errorf("two limits of one request are named %q", m.Name)
		}
	}
	return list, nil
}
