package validate

import (
	"fmt"
	"slices"
	"strings"

	"sallyport/policy"
	"sallyport/policy/finding"
)

// placeholder checks what sandboxes hold in a credential's place.
func (v *validator) placeholder(path string, c policy.Credential) {
	if c.Placeholder == nil {
		return
	}
	if !variableForm.MatchString(c.Placeholder.Env) {
		v.say(finding.BadCredential, path, fmt.Sprintf("env %q is not the name of a variable", c.Placeholder.Env), "write one as env: OPENAI_API_KEY")
	}
	if _, err := c.Placeholder.Shape(c.Name); err != nil {
		v.say(finding.BadCredential, path+".like", err.Error(), `write one as "sk-proj-" or "ghp_[A-Za-z0-9]{36}"`)
	}
}

// places checks where an injection replaces a placeholder.
func (v *validator) places(path string, places []string) {
	hint := "write one or more of " + strings.Join(policy.PlaceholderPlaces, ", ") + `, "header:NAME" and "query:NAME"`
	seen := make(map[string]bool)
	for i, p := range places {
		kind, name, named := strings.Cut(p, ":")
		key := p
		switch {
		case !named && slices.Contains(policy.PlaceholderPlaces, p):
		case named && kind == policy.PlaceHeader && policy.IsToken(name):
			if key = strings.ToLower(p); slices.Contains(unsettable, strings.ToLower(name)) {
				v.say(finding.BadInject, fmt.Sprintf("%s[%d]", path, i), name+" says how the request is carried, and cannot hold a credential", "write one as \"header:X-Api-Key\"")
			}
		case named && kind == policy.PlaceQuery && policy.IsLabel(name):
		default:
			v.say(finding.BadInject, fmt.Sprintf("%s[%d]", path, i), fmt.Sprintf("%q is no place", policy.Clean(p)), hint)
		}
		if seen[key] {
			v.say(finding.BadInject, fmt.Sprintf("%s[%d]", path, i), fmt.Sprintf("%q is there twice", policy.Clean(p)), "remove one")
		}
		seen[key] = true
	}
	if len(places) == 0 {
		v.say(finding.BadInject, path, "lists no place", hint)
	}
}

// replaced checks that a credential whose placeholder a rule replaces has one.
func (v *validator) replaced(path string, e policy.EgressAuthRule) {
	if e.Inject == nil || e.Inject.Placeholder == nil {
		return
	}
	i := v.find(e.AuthRef)
	if i >= 0 && v.doc.Credentials[i].Placeholder == nil {
		v.say(finding.BadInject, path, fmt.Sprintf("credential %q has no placeholder", e.AuthRef), "write placeholder: {env: NAME} in that credential")
	}
}
