package policy

import (
	"errors"
	"fmt"
	"sync"
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

// Max is the largest body that is read, 0 for none.
func (v *BodyView) Max() int64 {
	if v == nil {
		return 0
	}
	return int64(max(v.JSON, v.GraphQL))
}

// Need is what has to be known of a request's body before it is decided about.
// The zero Need is nothing.
type Need struct {
	// Max is how many bytes the body may have; of a longer one nothing is needed.
	Max int64
	// JSON and GraphQL say in which forms it is needed.
	JSON, GraphQL bool
}

// Body is what is known of a request's body, as package body reads it. It is never
// written anywhere, and the caller drops it once it has a decision.
type Body struct {
	Size int64
	// JSON and GraphQL point to the body as Rego sees it, made of map[string]any, []any,
	// string, [json.Number], bool and nil. A form that the policy does not need is a nil
	// pointer.
	JSON, GraphQL *any
	Fault         error // why the body is not JSON, or nil
	GraphQLFault  error // why it is not a GraphQL request, or nil

	once sync.Once
	form any
}

// Form returns make's form of the body, which is made once: a request is asked about several
// times, and a body may be large. It is safe for concurrent use.
func (b *Body) Form(make func() any) any {
	b.once.Do(func() { b.form = make() })
	return b.form
}

// NoBody is a body that cannot be read as JSON, and why: "its Content-Type is not
// JSON".
func NoBody(fault error) *Body { return &Body{Fault: fault} }

// ErrTooLong is wrapped by what a body larger than a rule's cap is denied for.
var ErrTooLong = errors.New("it is too long")

// TooLong is that a body is longer than so many bytes.
func TooLong(limit int64) error { return fmt.Errorf("%w: more than %v", ErrTooLong, Size(limit)) }
