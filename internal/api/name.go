package api

import (
	"errors"
	"fmt"
	"net/http"

	"sallyport/sandbox"
)

// nameable says why a caller may not make a sandbox of one of these names. Rules
// select by name as well as by tags, so that a name can be worth a credential: it is
// no user's of the explicit proxy, and a tenant does not take one that a rule is for.
func (h *handler) nameable(r *http.Request, names ...string) error {
	who := PrincipalOf(r.Context())
	users := map[string]bool{}
	for _, c := range h.opt.Clients.List() {
		users[c.Name] = true
	}
	for _, name := range names {
		switch {
		case users[name] && who.Tenant != "":
			return fmt.Errorf("%w: %s: choose another", sandbox.ErrTaken, name)
		case users[name]:
			return fmt.Errorf("%w: a proxy user is named %q: rules select by name, so choose another", errTaken, name)
		case who.Tenant != "" && !who.May(ScopePolicy) && h.opt.Named != nil && h.opt.Named(name):
			return fmt.Errorf("%w %s: rules of the policy select sandboxes by the name %q: choose another", errScope, ScopePolicy, name)
		}
	}
	return nil
}

// unmade answers that a sandbox is not made: what lacks a scope is on record.
func (h *handler) unmade(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, errScope) {
		h.refuse(w, r, PrincipalOf(r.Context()), err)
		return
	}
	writeProblem(w, err)
}

// childNames are those that a fork makes, or may make where it is to find them
// itself: it passes over those that are taken.
func (h *handler) childNames(parent string, spec sandbox.ForkSpec) []string {
	if len(spec.Names) > 0 {
		return spec.Names
	}
	var names []string
	for n := 1; n <= min(max(spec.Count, 1), sandbox.MaxForks)+len(h.opt.Sandboxes.List()); n++ {
		names = append(names, sandbox.ChildName(parent, n))
	}
	return names
}
