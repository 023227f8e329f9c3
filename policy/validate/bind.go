package validate

import (
	"fmt"
	"slices"
	"strings"

	"sallyport/policy"
	"sallyport/policy/finding"
	"sallyport/policy/rule"
)

// binding checks the destinations and kinds that a credential is bound to.
func (v *validator) binding(path string, c policy.Credential) {
	empty := func(key string) {
		v.say(finding.BadCredential, path+"."+key, "is empty, so that no rule can use the credential", "remove it to leave that to the rules, or list some")
	}
	if c.Destinations != nil && len(c.Destinations) == 0 {
		empty("destinations")
	}
	if c.Kinds != nil && len(c.Kinds) == 0 {
		empty("kinds")
	}
	for i, s := range c.Destinations {
		if _, err := rule.ParseDestination(s); err != nil {
			message, fix, _ := strings.Cut(err.Error(), "; ")
			v.say(finding.BadCredential, fmt.Sprintf("%s.destinations[%d]", path, i), message, fix)
		}
	}
	kinds := append([]string{policy.Bearer}, policy.InjectKinds...)
	for i, kind := range c.Kinds {
		at, fix := fmt.Sprintf("%s.kinds[%d]", path, i), "write one of "+strings.Join(kinds, ", ")
		if kind == "" {
			v.say(finding.BadCredential, at, `"" is no way to give a credential`, fix)
		}
		v.oneOf(finding.BadCredential, at, kind, "is no way to give a credential", fix, kinds...)
	}
}

// bound checks that a rule gives its credential where and how that may be given.
func (v *validator) bound(e policy.EgressAuthRule, r rule.Rule) {
	at := v.find(e.AuthRef)
	if at < 0 {
		return
	}
	c := v.doc.Credentials[at]
	if c.Destinations != nil && !slices.ContainsFunc(c.Destinations, func(s string) bool {
		d, err := rule.ParseDestination(s)
		return err == nil && d.Holds(r.Destination) && (d.Port == 0 || within(r.Ports, []uint16{d.Port}))
	}) {
		v.say(finding.NotBound, r.Path+".destination", fmt.Sprintf("credential %s goes to %s only", c.Name, strings.Join(c.Destinations, ", ")),
			fmt.Sprintf("narrow the rule, or add the destination to credentials[%d].destinations", at))
	}
	var inject policy.Inject
	if e.Inject != nil {
		inject = *e.Inject
	}
	if c.Kinds != nil && !slices.Contains(c.Kinds, inject.Kind()) {
		v.say(finding.NotBound, r.Path+".inject", fmt.Sprintf("gives the credential %s as %s, and it may be given as %s only", c.Name, inject.Kind(), strings.Join(c.Kinds, ", ")),
			fmt.Sprintf("write the rule so, or add it to credentials[%d].kinds", at))
	}
}
