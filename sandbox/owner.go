package sandbox

import (
	"context"
	"strings"
)

type ownerKey struct{}

// ForOwner limits every call that is made with the context to the sandboxes of an owner:
// the others do not exist for such a call, and a sandbox that it makes is the owner's.
// Names are unique on the host all the same. Without ForOwner, and for "", all sandboxes
// are visible.
//
// The owner is in the context so that it is known under a sandbox's lock: a name that
// changes hands between a check and its use gives no access.
func ForOwner(ctx context.Context, owner string) context.Context {
	return context.WithValue(ctx, ownerKey{}, owner)
}

// OwnerOf returns the owner that ForOwner has limited a context to, or "".
func OwnerOf(ctx context.Context) string {
	owner, _ := ctx.Value(ownerKey{}).(string)
	return owner
}

// Owned reports whether a caller that is limited to an owner sees the sandbox.
func (s Spec) Owned(owner string) bool { return owner == "" || s.Owner == owner }

// FullName is the sandbox's name as the host's own callers write it: NAME, or
// TENANT/NAME for a tenant's sandbox.
func (i Info) FullName() string { return FullName(i.Spec.Owner, i.Name) }

// FullName joins an owner, which may be "", and a name. A pod's name has its owner in it.
func FullName(owner, name string) string {
	if owner == "" || strings.HasPrefix(name, owner+"/") {
		return name
	}
	return owner + "/" + name
}
