package policy

import (
	"context"
	"fmt"
	"iter"
	"reflect"
	"slices"
	"time"

	"sallyport/policy/pathvariants"
)

// several tells whether the request's path has more than one reading.
func (s subject) several() bool { return s.Request != nil && pathvariants.Several(s.Request.Path) }

// readings are the subject with each reading of its path: itself, where there is
// but one.
func (s subject) readings() iter.Seq[subject] {
	return func(yield func(subject) bool) {
		if !s.several() {
			yield(s)
			return
		}
		for _, path := range pathvariants.Of(s.Request.Path) {
			q, of := *s.Request, s
			q.Path, of.Request = path, &q
			if !yield(of) {
				return
			}
		}
	}
}

// agree decides about a request whose path has several readings: about each as if
// it had no other. Which one the server takes is not known, so that the request may
// do what is allowed of all of them. What any of them is denied for denies it; where
// any of them needs an approval, it needs one; and all of them have to give it the
// same credentials, and send it the same way. Limits of several count once.
func (p *Policy) agree(ctx context.Context, s subject, at time.Time) Decision {
	var all []Decision
	var strictest int
	var read string // the reading that the strictest is of
	for s := range s.readings() {
		d := p.decide(ctx, s, at)
		if all = append(all, d); len(all) == 1 || d.strictness() > all[strictest].strictness() {
			strictest, read = len(all)-1, s.Request.Path
		}
	}
	d := all[strictest]
	if d.RuleType != "" && d.Action != Allow {
		d.Reason = clean(d.Reason + ", the path read as " + read)
	}
	if d.Action == Deny {
		return d
	}
	lifted := slices.IndexFunc(all, func(d Decision) bool { return d.Observed != nil })
	for _, other := range all {
		d.Governed = d.Governed || other.Governed
		d.RawPath = d.RawPath && other.RawPath
		d.Cookies = d.Cookies && other.Cookies
		switch {
		case lifted >= 0:
			// What is lifted gets no credential that its rules do not give, and so
			// neither does what the others allow.
			d.Inject = slices.DeleteFunc(slices.Clone(d.Inject), func(in Injection) bool { return !other.injects(in) })
			if d.Upstream == nil {
				d.Upstream = other.Upstream
			}
		case len(d.Inject) != len(other.Inject) || slices.ContainsFunc(d.Inject, func(in Injection) bool { return !other.injects(in) }):
			return p.refuse("the readings of the path do not get the same credentials: "+pathvariants.Decoded(s.sent)+" and "+s.sent, nil)
		}
		if other.Upstream != nil && !reflect.DeepEqual(d.Upstream, other.Upstream) || other.Upstream == nil && d.Upstream != nil && lifted < 0 {
			return p.refuse("the readings of the path do not go the same way: "+pathvariants.Decoded(s.sent)+" and "+s.sent, nil)
		}
		var err error
		if d.Limits, err = joined(d.Limits, other.Limits); err != nil {
			return p.undecided(err)
		}
	}
	return d
}

// strictness orders decisions: the higher one wins.
func (d Decision) strictness() int {
	switch {
	case d.Action == Allow && d.Observed == nil:
		return 1
	case d.Action == Allow:
		return 2
	case d.Action == Approve:
		return 3
	case d.Unjudged != nil:
		return 4
	case d.Err == nil:
		return 5
	}
	return 6
}

// injects tells whether a decision puts a credential there.
func (d Decision) injects(in Injection) bool {
	return slices.ContainsFunc(d.Inject, func(other Injection) bool { return reflect.DeepEqual(in, other) })
}

// joined adds the limits that are not among the first.
func joined(list, more []Applied) ([]Applied, error) {
	list = slices.Clip(list)
	for _, m := range more {
		same := slices.IndexFunc(list, func(a Applied) bool { return a.Name == m.Name && a.Subject == m.Subject })
		switch {
		case same < 0:
			list = append(list, m)
		case !reflect.DeepEqual(*list[same].Limit, *m.Limit):
			return nil, fmt.Errorf("two limits of one request are named %q", m.Name)
		}
	}
	return list, nil
}
