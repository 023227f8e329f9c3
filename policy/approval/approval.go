// Package approval keeps what waits for an operator and what operators have
// granted.
//
// A [Store] lists a [Request] under an id until it is answered, withdrawn or its
// time is over, which is a no. A yes becomes a [Grant]. One that is given once
// is for one request that is the same in every field of its [Subject]: sandbox
// and session, destination, method, path, query, credentials, rule, the policy's
// revision and the digest of the body. It is used up, on disk, before whoever
// asks hears of it. One for the session or for a period is for requests of that
// sandbox to that host and port, with those credentials, under that rule, which
// a [Pattern] of method and path covers: up to a count, until a time.
//
// It guarantees that nothing is granted that no operator has answered for and
// that was not recorded before; that grants survive a restart and what waits does
// not; and that a sandbox which asks without end is refused, not kept. It does
// not know what a policy says, nor whether who asks tells the truth.
package approval

import (
	"errors"
	"regexp"
	"time"
)

// Errors to branch on.
var (
	ErrUnknown  = errors.New("no such approval")
	ErrAnswered = errors.New("it is answered already")
	ErrAnswer   = errors.New("not an answer")
	ErrFull     = errors.New("there are too many grants: deny one that is of no use any more")
)

// Subject is what approval is asked for: a request, or, without a Method, a
// connection that is carried unread. All fields are what the gateway saw, some of
// them a sandbox's own words.
type Subject struct {
	Sandbox   string `json:"sandbox"` // name
	SandboxID string `json:"sandbox_id"`
	Session   string `json:"session,omitempty"`
	Owner     string `json:"-"`        // the sandbox's tenant, or empty: places are divided by it
	Protocol  string `json:"protocol"` // tls, http, other
	Host      string `json:"host"`
	Port      uint16 `json:"port"`
	Method    string `json:"method,omitempty"`
	Path      string `json:"path,omitempty"` // normalised, which patterns are compared with
	// Target is the path as it will be sent, byte for byte: what a person is shown.
	Target string `json:"target,omitempty"`
	// QueryKeys are for people; Query, the SHA-256 of the whole query in hex,
	// binds. It is empty without a query.
	QueryKeys []string `json:"query_keys,omitempty"`
	Query     string   `json:"query,omitempty"`
	// Credentials lists what would be injected, sorted.
	Credentials []string `json:"credentials,omitempty"`
	Rule        string   `json:"rule,omitempty"`
	RuleType    string   `json:"rule_type,omitempty"`
	// Policy is the revision that asks for approval.
	Policy string `json:"policy,omitempty"`
	// Body is the SHA-256 of the body in hex. It is empty for a body that was not
	// read to its end, and such a request cannot be approved once.
	Body   string `json:"body,omitempty"`
	Length int64  `json:"length"` // of the body in bytes, -1 when unknown
}

// State is how a request stands. The zero State is no answer at all.
type State string

const (
	Pending   State = "pending"
	Approved  State = "approved"
	Denied    State = "denied"
	Expired   State = "expired"   // nobody answered in time, which is a no
	Withdrawn State = "withdrawn" // whoever asked has gone
	Refused   State = "refused"   // not asked at all: Verdict.Reason says why
)

// Request is what waits for an operator.
type Request struct {
	ID      string    `json:"id"` // UUIDv7
	Subject Subject   `json:"subject"`
	Reason  string    `json:"reason"` // the policy's
	Asked   time.Time `json:"asked"`
	Expires time.Time `json:"expires"`
	Held    bool      `json:"held"` // someone waits on an open connection
	State   State     `json:"state"`
}

// Span is how long an approval lasts. The zero Span is once.
type Span string

const (
	Once    Span = ""
	Session Span = "session" // the sandbox's current one
	Period  Span = "period"
)

// Pattern is what a longer grant covers beside the one request. In Path * is any
// run of characters but a slash, ** any run at all. Empty fields are those of the
// request that was asked about.
type Pattern struct {
	Method string `json:"method,omitempty"` // * is any
	Path   string `json:"path,omitempty"`
}

// Answer is an operator's.
type Answer struct {
	Approve bool `json:"approve"`
	Span    Span `json:"span,omitempty"`
	// For is a Period's length. A session's grant ends after MaxPeriod at the
	// latest.
	For time.Duration `json:"for,omitempty"`
	// Count bounds how often a longer grant is used; 0 does not.
	Count   int     `json:"count,omitempty"`
	Pattern Pattern `json:"pattern,omitzero"`
	// Note is for the audit and, with a no, for whoever asked.
	Note string `json:"note,omitempty"`
}

// Operator is who answers. The zero Operator is nobody.
type Operator struct {
	Name string `json:"name"`
	// UID is the user's, in decimal.
	UID string `json:"uid,omitempty"`
	// Login is who logged in, where Name is who they became since.
	Login string `json:"login,omitempty"`
}

// Grant is a yes that is not used up.
type Grant struct {
	ID       string    `json:"id"` // of the request that it answers
	Subject  Subject   `json:"subject"`
	Span     Span      `json:"span,omitempty"`
	Pattern  Pattern   `json:"pattern,omitzero"`
	Left     int       `json:"left,omitempty"` // uses; 0 is without end for a longer one
	Until    time.Time `json:"until"`
	Operator Operator  `json:"operator"`
	Note     string    `json:"note,omitempty"`
	Given    time.Time `json:"given"`
	// Held says that a grant for one request is for the one on an open connection:
	// another that is the same does not take it.
	Held bool `json:"held,omitempty"`

	path *regexp.Regexp // of Pattern
}

// Question asks for approval.
type Question struct {
	Subject Subject
	Reason  string
	// ID is what an earlier Question about the same Subject got, if any.
	ID string
	// Held says that whoever asks waits, and withdraws when it goes away.
	Held bool
	// Peek takes a grant that there is and asks for none: the Verdict is zero then.
	Peek bool
	// Timeout is after how long no answer is a no.
	Timeout time.Duration
}

// Verdict answers a Question. The zero Verdict grants nothing.
type Verdict struct {
	State    State
	ID       string
	Expires  time.Time // of a pending one
	Operator Operator
	Span     Span
	Reason   string // note of a no, or why it was refused
}

// Change is something to record.
type Change struct {
	State    State // Pending: asked
	Request  Request
	Answer   *Answer // of an operator
	Operator Operator
	// By is the grant that covers it, where that was given for another request.
	By string
	// Ended says that a Grant was taken back.
	Ended bool
}

// Bounds. A sandbox is hostile, and whoever asks for it may be too.
const (
	MaxPending    = 32      // of a sandbox, with those that were denied just now
	maxPendingAll = 1024    // of all; an owner has no more than are left for all others
	minPending    = 2       // of a sandbox, whatever the others have
	maxGrants     = 256     // of a sandbox
	maxGrantsAll  = 4096    // of all
	maxNote       = 1 << 10 // bytes
	maxCount      = 1 << 30
	askBurst      = 64 // questions that are listed anew, at once
	askEvery      = time.Second
	MinTimeout    = time.Second
	MaxTimeout    = time.Hour
	MaxPeriod     = 30 * 24 * time.Hour
)
