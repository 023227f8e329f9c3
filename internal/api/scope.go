package api

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"sallyport/policy/approval"
)

// Scope is one kind of thing that a caller may do. None includes another, but
// for Admin, which is all of them: whoever drives sandboxes cannot approve what
// they ask for, tag them, or change what their tags allow.
type Scope string

const (
	ScopeRead    Scope = "read"    // see what there is and what happens
	ScopeRun     Scope = "run"     // make, use, stop and remove sandboxes
	ScopeApprove Scope = "approve" // answer what waits for an operator
	ScopePolicy  Scope = "policy"  // reload policy, reset limits, tag sandboxes
	ScopeSecrets Scope = "secrets" // set and remove secrets, list their names
	ScopeAdmin   Scope = "admin"   // everything: keys, proxy users, runc, shutdown
)

// Scopes lists all there are.
var Scopes = []Scope{ScopeRead, ScopeRun, ScopeApprove, ScopePolicy, ScopeSecrets, ScopeAdmin}

// ParseScopes reads what a person wrote.
func ParseScopes(words []string) ([]Scope, error) {
	var scopes []Scope
	for _, w := range words {
		s := Scope(strings.TrimSpace(w))
		if !slices.Contains(Scopes, s) {
			return nil, fmt.Errorf("%w: scope %q: use read, run, approve, policy, secrets, admin", errBadRequest, w)
		}
		if !slices.Contains(scopes, s) {
			scopes = append(scopes, s)
		}
	}
	if len(scopes) == 0 {
		return nil, fmt.Errorf("%w: no scope: name some of read, run, approve, policy, secrets, admin", errBadRequest)
	}
	return scopes, nil
}

// Principal is who calls, and what they may do. The zero Principal may do
// nothing.
type Principal struct {
	// ID is stable and no other's: unix:UID or key:ID.
	ID string
	// Operator is how events name them.
	Operator approval.Operator
	Scopes   []Scope
	// Tenant confines to the sandboxes of one owner; empty does not.
	Tenant string
	// key is the ID of the API key that was shown; empty on the socket.
	key string
	// contained is why they may change nothing, whatever their scopes.
	contained error
}

// Owner is who shares places with others: a tenant with all of its keys, or a caller of
// the host's own.
func (p Principal) Owner() string {
	if p.Tenant != "" {
		return "tenant:" + p.Tenant
	}
	return p.ID
}

// May says whether the caller has a scope.
func (p Principal) May(s Scope) bool {
	return slices.Contains(p.Scopes, s) || slices.Contains(p.Scopes, ScopeAdmin)
}

type principalKey struct{}

// PrincipalOf is who sent a request; the zero Principal outside of one.
func PrincipalOf(ctx context.Context) Principal {
	p, _ := ctx.Value(principalKey{}).(Principal)
	return p
}
