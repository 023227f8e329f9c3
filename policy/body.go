package policy

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"
)

// MaxBody is the largest request body that a rule may judge, in bytes.
const MaxBody = 1 << 20

// BodyView is what a rule has to see of a request's body; exactly one field is
// set. The size is the largest that is read; a larger body is denied.
type BodyView struct {
	// JSON shows the body as input.request.body.json, up to 1MiB of it.
	// Example: 64KiB
	JSON Size `yaml:"json" json:"json,omitempty"`
	// GraphQL shows the operations of a GraphQL request over HTTP as
	// input.request.body.graphql, of a body of up to 1MiB.
	// Example: 64KiB
	GraphQL Size `yaml:"graphql" json:"graphql,omitempty"`
}

// size is the largest body that is read, 0 for none.
func (v *BodyView) size() int64 {
	if v == nil {
		return 0
	}
	return int64(max(v.JSON, v.GraphQL))
}

// covers reports whether every body that w shows is one that v shows.
func (v *BodyView) covers(w *BodyView) bool {
	return v == nil || w != nil && v.JSON >= w.JSON && v.GraphQL >= w.GraphQL
}

// Need is what has to be known of a request's body before it is decided about.
// The zero Need is nothing.
type Need struct {
	// Max is how many bytes the body may have; of a longer one nothing is needed.
	Max int64
	// JSON and GraphQL say in which forms it is needed.
	JSON, GraphQL bool
}

// Body is what is known of a request's body, as ReadBody found it. It is never
// written anywhere, and whoever has decided lets go of it.
type Body struct {
	size          int64
	json, graphql ast.Value // nil where they are not needed
	fault         error     // why it is no JSON
	graphqlFault  error
}

// ReadBody reads a body of which a policy has the need. text is not changed, and
// nothing of it is kept but copies.
func ReadBody(n Need, text []byte) *Body {
	b := &Body{size: int64(len(text))}
	if b.size > n.Max {
		b.fault = TooLong(n.Max)
		return b
	}
	document, err := readJSON(text)
	if b.fault = err; err != nil {
		return b
	}
	if n.JSON {
		b.json = document
	}
	if n.GraphQL {
		b.graphql, b.graphqlFault = readGraphQL(document)
	}
	return b
}

// NoBody is a body that cannot be read as JSON, and why: "its Content-Type is not
// JSON".
func NoBody(fault error) *Body { return &Body{fault: fault} }

// Need is what has to be known of a request's body before Decide is asked about
// in: which rules that could match it ask for one. Request.Body counts for nothing.
func (p *Policy) Need(in Input) Need {
	if !p.bodies || in.Phase != PhaseRequest {
		return Need{}
	}
	s, err := read(in)
	if err != nil {
		return Need{}
	}
	var n Need
	for s := range s.readings() {
		for _, r := range p.judging(s) {
			n.Max = max(n.Max, r.body.size())
			n.JSON, n.GraphQL = n.JSON || r.body.JSON > 0, n.GraphQL || r.body.GraphQL > 0
		}
	}
	return n
}

// judging lists the rules with a body that speak about a request, whatever its
// body is.
func (p *Policy) judging(s subject) []*rule {
	var found []*rule
	var near [8]*bucket
	for _, b := range p.table.buckets(near[:0], s, p.selectors) {
		for _, r := range b.rules {
			if r.body != nil && slices.Contains(r.protocols, s.Protocol) && r.speaks(s) {
				found = append(found, r)
			}
		}
	}
	return found
}

// unjudged denies a request whose body a rule has to see and cannot. The others
// of its rules have no say: what is not there would slip through a team's deny. A
// rule in observe mode is named where no other denies.
func (p *Policy) unjudged(s subject, at time.Time) (d Decision, denied bool) {
	for _, r := range p.judging(s) {
		fault := r.misses(s.Request)
		if fault == nil {
			continue
		}
		enforced := !r.observed(at)
		if denied && !enforced {
			continue
		}
		d = Decision{
			Action: Deny, RuleType: r.kind, Rule: clean(r.name), Revision: p.revision, Unjudged: fault,
			Upstream: r.upstream, // by which it goes where observe mode lifts this
			Reason:   clean(fmt.Sprintf("the rule %s decides by the request's body: %v", r.name, fault)),
		}
		if denied = true; enforced {
			break
		}
	}
	return d, denied
}

// observed tells whether the rule is in observe mode at a time, of which zero is now.
func (r *rule) observed(at time.Time) bool {
	if at.IsZero() && !r.observe.IsZero() {
		at = time.Now()
	}
	return at.Before(r.observe)
}

// misses is why the rule cannot see what it has to, or nil.
func (r *rule) misses(q *Request) error {
	b := q.Body
	switch {
	case b == nil:
		return errUnread
	case b.fault != nil:
		return b.fault
	case b.size > r.body.size():
		return TooLong(r.body.size())
	case r.body.JSON > 0 && b.json != nil:
		return nil
	case r.body.JSON > 0:
		return errUnread
	case len(q.QueryKeys) > 0:
		return errParameters
	case b.graphqlFault != nil:
		return b.graphqlFault
	case b.graphql == nil:
		return errUnread
	}
	return nil
}

// ErrTooLong is wrapped by what a body larger than a rule's cap is denied for.
var ErrTooLong = errors.New("it is too long")

// TooLong is that a body is longer than so many bytes.
func TooLong(limit int64) error { return fmt.Errorf("%w: more than %v", ErrTooLong, Size(limit)) }

var (
	errUnread     = errors.New("it was not read")
	errParameters = errors.New("a GraphQL request has no query parameters, which some servers take for its query")
)

// shown tells whether there is something of the body to show.
func (q *Request) shown() bool {
	return q != nil && q.Body != nil && (q.Body.json != nil || q.Body.graphql != nil)
}

var (
	keyJSON    = ast.StringTerm("json")
	keyGraphQL = ast.StringTerm("graphql")
)

// value is the body in Rego's form.
func (b *Body) value() ast.Value {
	o := ast.NewObject()
	if b.json != nil {
		o.Insert(keyJSON, ast.NewTerm(b.json))
	}
	if b.graphql != nil {
		o.Insert(keyGraphQL, ast.NewTerm(b.graphql))
	}
	return o
}

// quiet leaves out of an error what may quote the request's body: it goes into
// logs and events.
func quiet(err error) error {
	var e *topdown.Error
	switch {
	case err == nil, errors.Is(err, errTimeout), errors.Is(err, errUndefined):
		return err
	case errors.As(err, &e):
		return fmt.Errorf("%s at %v; its text may quote the request's body", e.Code, e.Location)
	}
	return errors.New("an error whose text may quote the request's body")
}

// body checks what a rule has to see of a request's body.
func (v *validator) body(path string, b *BodyView, action Action) {
	if b == nil {
		return
	}
	if action == Deny || action == Tunnel {
		v.say(NeverMatches, path, fmt.Sprintf("the body of what a %s is about is never read", action), "remove it, or write action: allow")
	}
	if (b.JSON == 0) == (b.GraphQL == 0) {
		v.fail(path, "has not exactly one of json and graphql", "write one as {json: 64KiB}")
	}
	if size := b.size(); size < 0 || size > MaxBody {
		v.fail(path, fmt.Sprintf("%v is more than the %v of a body that a rule can see", Size(size), Size(MaxBody)), "write a size as 64KiB")
	}
}

// unseen warns of rules that ask for bodies that no Rego looks at.
func (l *linter) unseen(t *team, rules []rule) {
	library := ast.MustParseRef("data.sallyport.library") // which may look
	for _, m := range t.modules {
		seen := false
		ast.WalkRefs(m, func(ref ast.Ref) bool {
			seen = seen || ref[0].Equal(ast.InputRootDocument) && fieldsOf(ref)&fieldBody != 0 || ref.HasPrefix(library)
			return seen
		})
		if seen {
			return
		}
	}
	for _, r := range rules {
		if r.body != nil {
			l.findings = append(l.findings, BodyUnseen.found(r.position, r.at+".body",
				"no Rego looks at input.request.body: whatever is JSON passes",
				"deny what must not pass, as in deny contains \"…\" if not input.request.body.json.model in {…}, or remove it"))
		}
	}
}
