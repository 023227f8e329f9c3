// Package learn proposes rules for recorded traffic that the policy does not allow yet.
//
// It proposes no host, port, protocol or sandbox that was not seen, and no credential. It
// flags what a person has to decide.
package learn

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"sallyport/internal/hostname"
	"sallyport/policy"
	"sallyport/policy/engine"
	"sallyport/policy/pathvariants"
	"sallyport/policy/rule"
)

// Report is what policy learn makes of recorded traffic: the rules that a policy
// lacks for it, and what it does not propose.
type Report struct {
	Proposals []Proposal `json:"proposals"`
	Flags     []Flag     `json:"flags"`
	Decisions int        `json:"decisions"` // that were carried, each in one of the three
	Allowed   int        `json:"allowed"`   // by the policy as it is
	Covered   int        `json:"covered"`   // by the proposals
	Flagged   int        `json:"flagged"`
}

// Proposal is a rule for what was carried.
type Proposal struct {
	Rule     policy.EgressRule `json:"rule"`
	Requests int               `json:"requests"` // that it covers
	Examples []string          `json:"examples"` // ids of decisions, the oldest first
}

// Flag is traffic that a person has to decide about, and why.
type Flag struct {
	Why         string   `json:"why"`
	Destination string   `json:"destination"`
	Requests    int      `json:"requests"`
	Examples    []string `json:"examples"`
}

// Why traffic is flagged rather than proposed.
const (
	flagPrivate  = "a private or special address"
	flagUnlisted = "the upstream's address was refused"
	flagGoverned = "egressAuth rules govern it: whether they should give the credential is yours to say"
	flagDenied   = "the policy denies it by a rule"
	flagAsked    = "a person is to be asked"
	flagUnfit    = "not all of it is recorded"
	flagMuch     = "more than can be learned at once"
	flagOwner    = "its path says whose it is with characters, or at a length, that no rule can name"
	flagSlashes  = "a path of more encoded slashes than a rule can say"
)

// Options say what is proposed, and for whom.
type Options struct {
	// Everyone leaves the rules' sandboxes out. Default: those that were seen.
	Everyone bool
	// Refused tells of a carried decision that its upstream's address was refused.
	// Default: none was.
	Refused func(id string) bool
}

// Bounds of what is learned.
const (
	maxLearned     = 200_000 // requests that differ
	maxFlags       = 1000
	maxLearnedFrom = 3  // ids that a proposal names
	maxSiblings    = 8  // names of one place in a path before they are *
	maxBelow       = 24 // paths below one place before they are **
)

// Propose proposes the rules that a policy lacks to carry what was carried: no host,
// port, protocol or sandbox that was not seen, no method that was not seen with a
// path, and paths in which identifiers, and places with many names, are *, and
// places with many paths below them **. The first segments of hosts that many
// share are kept. An upstream that a rule names for the destination is the proposal's too.
// It proposes no credential.
func Propose(ctx context.Context, p *engine.Policy, records iter.Seq2[policy.Recorded, error], o Options) (Report, error) {
	strict := p.WithoutObserve()
	l := learner{options: o, seen: map[seenKey]*seen{}, flags: map[[2]string]*Flag{}}
	for r, err := range records {
		if err != nil {
			return Report{}, err
		}
		if !r.Passes() || r.Input.Phase == policy.PhaseDNS || r.Input.Phase == policy.PhaseInbound || r.Input.Phase == policy.PhaseSSH {
			continue
		}
		l.report.Decisions += r.Count
		if r.Unfit != "" || strict.NeedsBody(r.Input) {
			l.flag(flagUnfit, &r)
			continue
		}
		d := strict.DecideAt(ctx, r.Input, r.At)
		switch {
		case ctx.Err() != nil:
			return Report{}, ctx.Err()
		case d.Action == policy.Allow || d.Action == policy.Tunnel:
			l.report.Allowed += r.Count
		default:
			objection, way := objectionTo(strict, &r, d, o)
			l.add(&r, objection, way)
		}
	}
	l.propose(p)
	return l.report, nil
}

// objectionTo is why a refused decision is not proposed, or "", and by which upstream
// it went.
func objectionTo(p *engine.Policy, r *policy.Recorded, d policy.Decision, o Options) (why string, way *policy.Upstream) {
	s, err := rule.ParseInput(r.Input)
	if err == nil {
		way = p.UpstreamOf(s)
	}
	switch {
	case err != nil || d.Err != nil:
		return flagUnfit, way
	case s.Addr.IsValid() && special(s.Addr):
		return flagPrivate, way
	case o.Refused != nil && o.Refused(r.ID):
		return flagUnlisted, way
	case d.Action == policy.Approve:
		return flagAsked, way
	case s.HasVariants() && strings.Count(s.SentPath, pathvariants.Slash) > maxSlashes:
		return flagSlashes, way
	case p.Governed(s), s.Phase == policy.PhaseRequest && s.Protocol.IsLogin():
		return flagGoverned, way
	case d.RuleType != "":
		return flagDenied + ": " + d.Rule, way
	}
	return "", way
}

// special tells of addresses that are not on the public internet, roughly: the
// gateway's own list, which decides, is longer.
func special(a netip.Addr) bool {
	return !a.IsGlobalUnicast() || a.IsPrivate() || slices.ContainsFunc(specialPrefixes, func(p netip.Prefix) bool { return p.Contains(a) })
}

// specialPrefixes are of RFC 6890 and its successors: shared address space,
// protocol assignments, benchmarks, the reserved block.
var specialPrefixes = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("192.0.0.0/24"),
	netip.MustParsePrefix("198.18.0.0/15"), netip.MustParsePrefix("240.0.0.0/4"), netip.MustParsePrefix("64:ff9b::/96"),
	netip.MustParsePrefix("64:ff9b:1::/48"), netip.MustParsePrefix("2002::/16"), netip.MustParsePrefix("2001::/32"),
}

type learner struct {
	options Options
	report  Report
	seen    map[seenKey]*seen
	flags   map[[2]string]*Flag
}

// seenKey is what a rule tells apart.
type seenKey struct {
	aim
	sandbox, method, path string
}

// aim is where something went, and how.
type aim struct {
	host   string
	port   uint16
	plain  bool // HTTP without TLS
	tunnel bool
	way    *policy.Upstream // of the rules that there are
}

type seen struct {
	count    int
	examples []string
}

func (s *seen) add(n int, ids ...string) {
	s.count += n
	s.examples = append(s.examples, ids...)
	slices.Sort(s.examples)
	s.examples = s.examples[:min(len(s.examples), maxLearnedFrom)]
}

func (l *learner) flag(why string, r *policy.Recorded) {
	l.report.Flagged += r.Count
	key := [2]string{why, r.Input.Destination.String()}
	f := l.flags[key]
	if f == nil {
		if len(l.flags) >= maxFlags {
			return
		}
		f = &Flag{Why: why, Destination: key[1]}
		l.flags[key] = f
	}
	s := seen{f.Requests, f.Examples}
	s.add(r.Count, r.ID)
	f.Requests, f.Examples = s.count, s.examples
}

func (l *learner) add(r *policy.Recorded, objection string, way *policy.Upstream) {
	if objection != "" {
		l.flag(objection, r)
		return
	}
	host, _, _ := hostname.Parse(r.Input.Destination.Host) // which Decide has read
	key := seenKey{aim: aim{host: host, port: r.Input.Destination.Port, way: way}, sandbox: r.Input.Sandbox.Name}
	if q := r.Input.Request; q != nil {
		key.plain, key.method, key.path = q.Scheme == "http", q.Method, q.Path
		if !owned(q.Path, sharedDepth(host)) {
			l.flag(flagOwner, r)
			return
		}
	} else {
		key.tunnel = true
	}
	s := l.seen[key]
	if s == nil {
		if len(l.seen) >= maxLearned {
			l.flag(flagMuch, r)
			return
		}
		s = new(seen)
		l.seen[key] = s
	}
	s.add(r.Count, r.ID)
	l.report.Covered += r.Count
}

// propose makes rules of what was seen, destination by destination.
func (l *learner) propose(p *engine.Policy) {
	byAim := map[aim][]seenKey{}
	for key := range l.seen {
		byAim[key.aim] = append(byAim[key.aim], key)
	}
	taken := map[string]bool{}
	for _, name := range p.RuleNames() {
		taken[name] = true
	}
	for _, a := range slices.SortedFunc(maps.Keys(byAim), aim.compare) {
		keys := byAim[a]
		slices.SortFunc(keys, seenKey.compare)
		l.report.Proposals = append(l.report.Proposals, l.rules(a, keys, taken)...)
	}
	for _, f := range l.flags {
		l.report.Flags = append(l.report.Flags, *f)
	}
	slices.SortFunc(l.report.Flags, func(a, b Flag) int {
		return cmp.Or(strings.Compare(a.Why, b.Why), strings.Compare(a.Destination, b.Destination))
	})
}

func (a aim) compare(b aim) int {
	order := func(x bool) int {
		if x {
			return 1
		}
		return 0
	}
	return cmp.Or(strings.Compare(a.host, b.host), cmp.Compare(a.port, b.port), order(a.plain)-order(b.plain), order(a.tunnel)-order(b.tunnel),
		strings.Compare(upstreamText(a.way), upstreamText(b.way)))
}

func (k seenKey) compare(o seenKey) int {
	return cmp.Or(strings.Compare(k.path, o.path), strings.Compare(k.method, o.method), strings.Compare(k.sandbox, o.sandbox))
}

// rules are those for one destination. Traffic that differs in who did it, and how, is a
// rule of its own: one rule for all would allow everybody everything.
func (l *learner) rules(a aim, keys []seenKey, taken map[string]bool) (list []Proposal) {
	var globs []string
	if !a.tunnel {
		tree := newPathTree(sharedDepth(a.host))
		for _, k := range keys {
			tree.add(k.path)
		}
		globs = tree.globs()
	}
	// cells: who used a method on what a glob matches.
	type cell struct{ glob, method string }
	who := map[cell]map[string]bool{}
	sum := map[cell]*seen{}
	matcher := newGlobMatcher(globs)
	for _, k := range keys {
		c := cell{matcher.of(k.path), k.method}
		if who[c] == nil {
			who[c], sum[c] = map[string]bool{}, new(seen)
		}
		if !l.options.Everyone {
			who[c][k.sandbox] = true
		}
		sum[c].add(l.seen[k].count, l.seen[k].examples...)
	}
	// Cells of the same sandboxes and methods are one rule.
	type group struct{ sandboxes, methods string }
	methods := map[[2]string][]string{} // by sandboxes and glob
	for c := range who {
		at := [2]string{strings.Join(slices.Sorted(maps.Keys(who[c])), "\x00"), c.glob}
		methods[at] = append(methods[at], c.method)
	}
	paths := map[group][]string{}
	for at, m := range methods {
		slices.Sort(m)
		g := group{at[0], strings.Join(m, "\x00")}
		paths[g] = append(paths[g], at[1])
	}
	groups := slices.SortedFunc(maps.Keys(paths), func(x, y group) int {
		return cmp.Or(strings.Compare(x.methods, y.methods), strings.Compare(x.sandboxes, y.sandboxes))
	})
	for _, g := range groups {
		p := Proposal{Rule: a.rule()}
		total := new(seen)
		for _, m := range strings.Split(g.methods, "\x00") {
			for _, glob := range paths[g] {
				s := sum[cell{glob, m}]
				total.add(s.count, s.examples...)
			}
		}
		p.Requests, p.Examples = total.count, total.examples
		if !a.tunnel {
			p.Rule.Methods = strings.Split(g.methods, "\x00")
			slices.Sort(paths[g])
			p.Rule.Paths = paths[g]
		}
		if g.sandboxes != "" {
			p.Rule.Sandboxes.Names = strings.Split(g.sandboxes, "\x00")
		}
		p.Rule.Name = unused(taken, "learned-"+a.host)
		list = append(list, p)
	}
	return list
}

// rule is one for the destination, without what it is narrowed to.
func (a aim) rule() policy.EgressRule {
	e := policy.EgressRule{Destination: a.host, Plain: a.plain, Upstream: a.way}
	if a.tunnel {
		e.Action = policy.Tunnel
	}
	if a.port != 443 || a.plain || a.tunnel {
		e.Ports = []uint16{a.port}
	}
	return e
}

// unused is a name that no rule has.
func unused(taken map[string]bool, name string) string {
	if len(name) > 180 {
		name = name[:180]
	}
	free := name
	for n := 2; taken[free]; n++ {
		free = fmt.Sprintf("%s-%d", name, n)
	}
	taken[free] = true
	return free
}
