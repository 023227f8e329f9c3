package validate

import (
	"fmt"

	"sallyport/policy"
)

// headers checks the headers that a rule lets pass.
func (v *validator) headers(path string, names []string, action policy.Action) {
	if names != nil && (action == policy.Deny || action == policy.Tunnel) {
		v.say(policy.NeverMatches, path+".headers", fmt.Sprintf("is of no use with action: %s, which sends none", action), "remove it")
	}
	for i, name := range names {
		at := fmt.Sprintf("%s.headers[%d]", path, i)
		switch m := policy.Meddles(name); {
		case !policy.IsToken(name):
			v.fail(at, fmt.Sprintf("%q is not the name of a header", name), "write one as Impersonate-User")
		case m == "":
			v.fail(at, fmt.Sprintf("%s passes anyway", name), "remove it: the list is of those that are refused otherwise")
		case m == policy.OtherRequest:
			v.fail(at, fmt.Sprintf("%s %s, which no rule lets pass", name, m), "remove it")
		}
	}
}
