package manager

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"sallyport/sandbox"
)

type fullKey struct{}

// ByFullName confines a context to the owner that a caller names, and returns the
// name alone. For who is confined to an owner, TENANT/ may be left out; for the host's
// own callers a name alone is the host's. Nothing is made for another owner.
func ByFullName(ctx context.Context, full string) (context.Context, string, error) {
	owner, name, qualified := strings.Cut(full, "/")
	if !qualified {
		owner, name = sandbox.OwnerOf(ctx), full
	}
	if err := sandbox.CheckName(name); err != nil {
		return ctx, "", err
	}
	if qualified && sandbox.CheckName(owner) != nil {
		return ctx, "", fmt.Errorf("%w: %q: write NAME, or TENANT/NAME for a tenant's, each of lower-case letters, digits and hyphens", sandbox.ErrBadName, full)
	}
	if by := sandbox.OwnerOf(ctx); by != "" && owner != by {
		return ctx, "", notFound(full)
	}
	return context.WithValue(ctx, fullKey{}, owner), name, nil
}

// visible says whether a sandbox is there for a context.
func visible(ctx context.Context, s sandbox.Spec) bool {
	if owner, ok := ctx.Value(fullKey{}).(string); ok && s.Owner != owner {
		return false
	}
	return s.Owned(sandbox.OwnerOf(ctx))
}

type namesKey struct{}

// AllowNames has allow asked, with what is done with a context, whether a new sandbox may
// have a name: a name can be worth what rules give it. It is asked for the very name
// that is taken, and must not call the Manager.
func AllowNames(ctx context.Context, allow func(name string) error) context.Context {
	return context.WithValue(ctx, namesKey{}, allow)
}

// checkAllowed says what Naming's function says.
func checkAllowed(ctx context.Context, name string) error {
	if allow, ok := ctx.Value(namesKey{}).(func(string) error); ok {
		return allow(name)
	}
	return nil
}

// claimOwner sets the owner of a spec, which is who calls and never an argument.
func claimOwner(ctx context.Context, s *sandbox.Spec) error {
	owner := sandbox.OwnerOf(ctx)
	if s.Owner != "" && s.Owner != owner {
		return fmt.Errorf("%w: owner %q: a sandbox is whose key makes it, leave this out", sandbox.ErrBadSpec, s.Owner)
	}
	s.Owner = owner
	return nil
}

// Visible is Get for a context's owner.
func (m *Manager) Visible(ctx context.Context, name string) (sandbox.Info, error) {
	i, err := m.Get(name)
	if err == nil && !visible(ctx, i.Spec) {
		return sandbox.Info{}, hidden(ctx, i)
	}
	return i, err
}

// hidden is what is said of a sandbox that is not there for a context.
func hidden(ctx context.Context, i sandbox.Info) error {
	if owner, _ := ctx.Value(fullKey{}).(string); sandbox.OwnerOf(ctx) == "" && owner == "" && i.Spec.Owner != "" {
		return fmt.Errorf("%w: %q is tenant %s's: write %s for that", sandbox.ErrNotFound, i.Name, i.Spec.Owner, i.FullName())
	}
	return notFound(i.Name)
}

// ListVisible is List for a context's owner.
func (m *Manager) ListVisible(ctx context.Context) []sandbox.Info {
	return slices.DeleteFunc(m.List(), func(i sandbox.Info) bool { return !i.Spec.Owned(sandbox.OwnerOf(ctx)) })
}
