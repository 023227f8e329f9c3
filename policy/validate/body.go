package validate

import (
	"fmt"

	"sallyport/policy"
)

// body checks what a rule has to see of a request's body.
func (v *validator) body(path string, b *policy.BodyView, action policy.Action) {
	if b == nil {
		return
	}
	if action == policy.Deny || action == policy.Tunnel {
		v.say(policy.NeverMatches, path, fmt.Sprintf("the body of what a %s is about is never read", action), "remove it, or write action: allow")
	}
	if (b.JSON == 0) == (b.GraphQL == 0) {
		v.fail(path, "has not exactly one of json and graphql", "write one as {json: 64KiB}")
	}
	if size := b.Max(); size < 0 || size > policy.MaxBody {
		v.fail(path, fmt.Sprintf("%v is more than the %v of a body that a rule can see", policy.Size(size), policy.Size(policy.MaxBody)), "write a size as 64KiB")
	}
}
