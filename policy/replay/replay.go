// Package replay makes recorded decisions again with another policy and reports what
// changes.
package replay

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"sallyport/policy"
	"sallyport/policy/engine"
	"sallyport/policy/learn"
	"sallyport/policy/rule"
)

// Change is something that a policy makes otherwise of a recorded decision.
type Change string

const (
	NewlyAllowed  Change = "allowed"
	NewlyDenied   Change = "denied"
	NewlyAsked    Change = "approval" // a person would be asked
	NewlyInjected Change = "injected" // a credential goes along that did not
	NotInjected   Change = "uninjected"
	OtherRule     Change = "rule" // the same comes of it, by another rule
)

// Changes lists all there are, the gravest first.
var Changes = []Change{NewlyAllowed, NewlyInjected, NewlyDenied, NewlyAsked, NotInjected, OtherRule}

// Verdict is what a decision comes to.
type Verdict struct {
	Action      policy.Action `json:"action"`
	Rule        string        `json:"rule,omitempty"`
	RuleType    string        `json:"rule_type,omitempty"`
	Credentials []string      `json:"credentials,omitempty"`
}

// Group is recorded decisions that change alike.
type Group struct {
	Changes     []Change        `json:"changes"`
	Phase       policy.Phase    `json:"phase"`
	Protocol    policy.Protocol `json:"protocol,omitempty"`
	Destination string          `json:"destination"`
	Method      string          `json:"method,omitempty"`
	Path        string          `json:"path,omitempty"` // its [learn.PathShape]
	Was         Verdict         `json:"was"`
	Is          Verdict         `json:"is"`
	// Reason is what the policy says of the first of them.
	Reason string `json:"reason"`
	Count  int    `json:"count"`
	// Examples are ids of decisions, the oldest first.
	Examples []string `json:"examples"`
}

// Report says what a policy makes of recorded decisions.
type Report struct {
	Revision string    `json:"policy_revision"`
	First    time.Time `json:"first,omitzero"` // of the decisions
	Last     time.Time `json:"last,omitzero"`
	// Decisions is how many there are; each is one of the three that follow.
	// Records that stand for several count as often.
	Decisions int                  `json:"decisions"`
	Same      int                  `json:"same"`
	Changed   int                  `json:"changed"`
	Unfit     map[policy.Unfit]int `json:"not_decided_again"`
	// Unseen lists the rules that had to see the bodies of those that are unfit for
	// lack of one, the most frequent first.
	Unseen   []Unseen       `json:"unseen_bodies,omitempty"`
	ByChange map[Change]int `json:"by_change"`
	Groups   []Group        `json:"groups"`
	// Ungrouped is how many of Changed are in no group, since there is a bound.
	Ungrouped int `json:"ungrouped,omitempty"`
	// Undecided is how many of Changed are denied since the policy has no answer.
	Undecided int `json:"undecided,omitempty"`
	// FromCache is how many were answered from an equal input's answer.
	FromCache uint64 `json:"recalled"`
}

// Unseen is a rule that has to see a body, and what it could not judge again.
type Unseen struct {
	Rule     string   `json:"rule"`
	RuleType string   `json:"rule_type"`
	Count    int      `json:"count"`
	Examples []string `json:"examples"` // ids of decisions, the oldest first
}

// Bounds of a Report.
const (
	maxGroups   = 5000
	maxExamples = 3
)

// Run makes recorded decisions again, each at the time that it was made, on all
// processors. Observe mode lifts nothing meanwhile. It ends at the first error of
// the records, and returns it.
func Run(ctx context.Context, p *engine.Policy, records iter.Seq2[policy.Recorded, error]) (Report, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	before := p.CacheHits()
	enforced := p.WithoutObserve()
	batches := make(chan []policy.Recorded, 2*runtime.GOMAXPROCS(0))
	t := newTally(enforced)
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for batch := range batches {
				for i := range batch {
					t.add(ctx, &batch[i])
				}
			}
		})
	}
	err := deal(ctx, records, batches)
	close(batches)
	workers.Wait()
	if err = cmp.Or(err, ctx.Err()); err != nil {
		return Report{}, err
	}
	r := t.report()
	r.Revision, r.FromCache = p.Revision(), p.CacheHits()-before
	return r, nil
}

// deal hands the records out in batches.
func deal(ctx context.Context, records iter.Seq2[policy.Recorded, error], to chan<- []policy.Recorded) error {
	const size = 256
	batch := make([]policy.Recorded, 0, size)
	for r, err := range records {
		if err != nil {
			return err
		}
		if batch = append(batch, r); len(batch) < size {
			continue
		}
		select {
		case to <- batch:
		case <-ctx.Done():
			return ctx.Err()
		}
		batch = make([]policy.Recorded, 0, size)
	}
	to <- batch
	return ctx.Err()
}

// tally counts what all processors decide.
type tally struct {
	policy *engine.Policy

	mu     sync.Mutex
	sum    Report
	groups map[groupKey]*Group
	unseen map[*rule.Rule]*Unseen
}

type groupKey struct {
	changes, phase, protocol, destination, method, path string
	was, is                                             string
}

func newTally(p *engine.Policy) *tally {
	return &tally{policy: p, groups: map[groupKey]*Group{}, unseen: map[*rule.Rule]*Unseen{}, sum: Report{Unfit: map[policy.Unfit]int{}, ByChange: map[Change]int{}}}
}

func (t *tally) add(ctx context.Context, r *policy.Recorded) {
	*r = t.policy.Fit(*r)
	var d policy.Decision
	if r.Unfit == "" {
		d = t.policy.DecideAt(ctx, r.Input, r.At)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	s := &t.sum
	if s.First.IsZero() || r.At.Before(s.First) {
		s.First = r.At
	}
	if r.At.After(s.Last) {
		s.Last = r.At
	}
	s.Decisions += r.Count
	unfit := r.Unfit
	if unfit == policy.UnfitBody {
		t.missed(r)
	}
	if unfit == "" && r.Count > 1 && r.Input.Request != nil {
		// The others may have had another method or path.
		s.Unfit[policy.UnfitFolded] += r.Count - 1
		r.Count = 1
	}
	if unfit != "" {
		s.Unfit[unfit] += r.Count
		return
	}
	changes := changesOf(r, d)
	if len(changes) == 0 {
		s.Same += r.Count
		return
	}
	s.Changed += r.Count
	if errors.Is(d.Err, engine.ErrUndecided) {
		s.Undecided += r.Count
	}
	for _, c := range changes {
		s.ByChange[c] += r.Count
	}
	t.group(r, d, changes)
}

// missed counts a decision for the rule that has to see its body, the first if
// there are several.
func (t *tally) missed(r *policy.Recorded) {
	s, err := rule.ParseInput(r.Input)
	if err != nil {
		return
	}
	for _, by := range t.policy.BodyRules(s) {
		u := t.unseen[by]
		if u == nil {
			u = &Unseen{Rule: by.Name, RuleType: by.Type}
			t.unseen[by] = u
		}
		u.Count += r.Count
		u.Examples = oldest(u.Examples, r.ID)
		return
	}
}

// oldest keeps the first of ids. They are UUIDv7, which sort by time.
func oldest(ids []string, more string) []string {
	ids = append(ids, more)
	slices.Sort(ids)
	return ids[:min(len(ids), maxExamples)]
}

// changes lists what a decision makes otherwise.
func changesOf(r *policy.Recorded, d policy.Decision) (list []Change) {
	passes := d.Action == policy.Allow || d.Action == policy.Tunnel
	switch {
	case passes && !r.Passes():
		list = append(list, NewlyAllowed)
	case d.Action == policy.Approve && r.Action != policy.Approve:
		list = append(list, NewlyAsked)
	case d.Action == policy.Deny && r.Action != policy.Deny:
		list = append(list, NewlyDenied)
	}
	// A refused request injects nothing, before and now.
	had := func(name string) bool { return r.Passes() && slices.Contains(r.Credentials, name) }
	has := func(name string) bool {
		return passes && slices.ContainsFunc(d.Inject, func(i policy.Injection) bool { return i.Credential == name })
	}
	if slices.ContainsFunc(d.Inject, func(i policy.Injection) bool { return has(i.Credential) && !had(i.Credential) }) {
		list = append(list, NewlyInjected)
	}
	if passes && slices.ContainsFunc(r.Credentials, func(name string) bool { return had(name) && !has(name) }) {
		list = append(list, NotInjected)
	}
	if len(list) == 0 && !r.Observed && (r.Rule != d.Rule || r.Rule != "" && r.RuleType != d.RuleType) {
		list = append(list, OtherRule)
	}
	return list
}

func (t *tally) group(r *policy.Recorded, d policy.Decision, changes []Change) {
	in := &r.Input
	key := groupKey{phase: string(in.Phase), protocol: string(in.Protocol), destination: in.Destination.String()}
	for _, c := range changes {
		key.changes += string(c) + " "
	}
	if q := in.Request; q != nil {
		key.method, key.path = q.Method, learn.PathShape(q.Path)
	}
	was := Verdict{Action: r.Action, Rule: r.Rule, RuleType: r.RuleType}
	if r.Passes() {
		was.Credentials = r.Credentials
	}
	is := Verdict{Action: d.Action, Rule: d.Rule, RuleType: d.RuleType}
	for _, i := range d.Inject {
		is.Credentials = append(is.Credentials, i.Credential)
	}
	slices.Sort(is.Credentials)
	key.was, key.is = was.key(), is.key()
	g := t.groups[key]
	if g == nil {
		if len(t.groups) >= maxGroups {
			t.sum.Ungrouped += r.Count
			return
		}
		g = &Group{
			Changes: changes, Phase: in.Phase, Protocol: in.Protocol, Destination: key.destination,
			Method: key.method, Path: key.path, Was: was, Is: is, Reason: d.Reason,
		}
		t.groups[key] = g
	}
	g.Count += r.Count
	if len(g.Examples) > 0 && r.ID < g.Examples[0] {
		g.Reason = d.Reason
	}
	g.Examples = oldest(g.Examples, r.ID)
}

func (v Verdict) key() string {
	return strings.Join(append([]string{string(v.Action), v.RuleType, v.Rule}, v.Credentials...), "\x00")
}

// report orders the groups: the gravest change first, then the most frequent.
func (t *tally) report() Report {
	r := t.sum
	for _, u := range t.unseen {
		r.Unseen = append(r.Unseen, *u)
	}
	slices.SortFunc(r.Unseen, func(a, b Unseen) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), strings.Compare(a.Rule, b.Rule), strings.Compare(a.RuleType, b.RuleType))
	})
	r.Groups = make([]Group, 0, len(t.groups))
	for _, g := range t.groups {
		r.Groups = append(r.Groups, *g)
	}
	slices.SortFunc(r.Groups, func(a, b Group) int {
		return cmp.Or(
			cmp.Compare(slices.Index(Changes, a.Changes[0]), slices.Index(Changes, b.Changes[0])),
			cmp.Compare(b.Count, a.Count),
			strings.Compare(a.Destination, b.Destination), strings.Compare(a.Path, b.Path), strings.Compare(a.Method, b.Method),
			strings.Compare(a.Examples[0], b.Examples[0]),
		)
	})
	return r
}
