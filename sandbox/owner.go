package sandbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ErrTaken refuses a name that is another owner's. It says no more of that one.
var ErrTaken = errors.New("the name is taken on this host")

type ownerKey struct{}

// ForOwner confines what is done with a context to the sandboxes of an owner: to
// it others are not there, and what it makes is the owner's. Names are the host's
// all the same. Without it, and for "", all sandboxes are there.
//
// It is in the context, so that whoever is asked under a sandbox's lock knows
// it: a name that has changed hands between a check and its use is no way in.
func ForOwner(ctx context.Context, owner string) context.Context {
	return context.WithValue(ctx, ownerKey{}, owner)
}

// FullName is a sandbox's name as callers of the host's own write it: TENANT/NAME of
// a tenant's, since by name alone they mean the host's.
func (i Info) FullName() string { return fullName(i.Spec.Owner, i.Name) }

func fullName(owner, name string) string {
	if owner == "" {
		return name
	}
	return owner + "/" + name
}

type fullKey struct{}

// ByFullName confines a context to the owner that a caller names, and returns the
// name alone. For who is confined to an owner, TENANT/ may be left out; for the host's
// own callers a name alone is the host's. Nothing is made for another owner.
func ByFullName(ctx context.Context, full string) (context.Context, string, error) {
	owner, name, qualified := strings.Cut(full, "/")
	if !qualified {
		owner, name = OwnerOf(ctx), full
	}
	if err := CheckName(name); err != nil {
		return ctx, "", err
	}
	if qualified && CheckName(owner) != nil {
		return ctx, "", fmt.Errorf("%w: %q: write NAME, or TENANT/NAME for a tenant's, each of lower-case letters, digits and hyphens", ErrBadName, full)
	}
	if by := OwnerOf(ctx); by != "" && owner != by {
		return ctx, "", notFound(full)
	}
	return context.WithValue(ctx, fullKey{}, owner), name, nil
}

// visible says whether a sandbox is there for a context.
func (s Spec) visible(ctx context.Context) bool {
	if owner, ok := ctx.Value(fullKey{}).(string); ok && s.Owner != owner {
		return false
	}
	return s.Owned(OwnerOf(ctx))
}

type namesKey struct{}

// Naming has allow asked, with what is done with a context, whether a new sandbox may
// have a name: a name can be worth what rules give it. It is asked for the very name
// that is taken, and must not call the Manager.
func Naming(ctx context.Context, allow func(name string) error) context.Context {
	return context.WithValue(ctx, namesKey{}, allow)
}

// mayName says what Naming's function says.
func mayName(ctx context.Context, name string) error {
	if allow, ok := ctx.Value(namesKey{}).(func(string) error); ok {
		return allow(name)
	}
	return nil
}

// OwnerOf is whom ForOwner has confined a context to, or "".
func OwnerOf(ctx context.Context) string {
	owner, _ := ctx.Value(ownerKey{}).(string)
	return owner
}

// Owned says whether a sandbox is there for who is confined to an owner.
func (s Spec) Owned(owner string) bool { return owner == "" || s.Owner == owner }

// claim sets the owner of a spec, which is who calls and never an argument.
func (s *Spec) claim(ctx context.Context) error {
	owner := OwnerOf(ctx)
	if s.Owner != "" && s.Owner != owner {
		return fmt.Errorf("%w: owner %q: a sandbox is whose key makes it, leave this out", ErrBadSpec, s.Owner)
	}
	s.Owner = owner
	return nil
}

// Visible is Get for a context's owner.
func (m *Manager) Visible(ctx context.Context, name string) (Info, error) {
	i, err := m.Get(name)
	if err == nil && !i.Spec.visible(ctx) {
		return Info{}, i.hidden(ctx)
	}
	return i, err
}

// hidden is what is said of a sandbox that is not there for a context.
func (i Info) hidden(ctx context.Context) error {
	if owner, _ := ctx.Value(fullKey{}).(string); OwnerOf(ctx) == "" && owner == "" && i.Spec.Owner != "" {
		return fmt.Errorf("%w: %q is tenant %s's: write %s for that", ErrNotFound, i.Name, i.Spec.Owner, i.FullName())
	}
	return notFound(i.Name)
}

// ListVisible is List for a context's owner.
func (m *Manager) ListVisible(ctx context.Context) []Info {
	return slices.DeleteFunc(m.List(), func(i Info) bool { return !i.Spec.Owned(OwnerOf(ctx)) })
}
