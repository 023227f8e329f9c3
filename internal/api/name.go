package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"sallyport/gateway"
	"sallyport/sandbox"
)

// naming has the manager ask whether a caller may make a sandbox of a name. Rules
// select by name as well as by tags, so that a name can be worth a credential: it is
// no user's of the explicit proxy, and who may not tag takes none that a rule is for.
func (h *handler) naming(r *http.Request) context.Context {
	who := PrincipalOf(r.Context())
	return sandbox.Naming(r.Context(), func(name string) error {
		used := slices.ContainsFunc(h.opt.Clients.List(), func(c gateway.Client) bool { return c.Name == name })
		switch {
		case used && who.Tenant != "":
			return fmt.Errorf("%w: %s: choose another", sandbox.ErrTaken, name)
		case used:
			return fmt.Errorf("%w: a proxy user is named %q: rules select by name, so choose another", errTaken, name)
		case !who.May(ScopePolicy) && h.opt.Named != nil && h.opt.Named(name):
			return fmt.Errorf("%w %s: rules of the policy select sandboxes by the name %q: choose another", errScope, ScopePolicy, name)
		}
		return nil
	})
}

// unmade answers that a sandbox is not made: what lacks a scope is on record.
func (h *handler) unmade(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, errScope) {
		h.refuse(w, r, PrincipalOf(r.Context()), err)
		return
	}
	writeProblem(w, err)
}
