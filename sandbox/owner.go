package sandbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
	if err == nil && !i.Spec.Owned(OwnerOf(ctx)) {
		return Info{}, notFound(name)
	}
	return i, err
}

// ListVisible is List for a context's owner.
func (m *Manager) ListVisible(ctx context.Context) []Info {
	return slices.DeleteFunc(m.List(), func(i Info) bool { return !i.Spec.Owned(OwnerOf(ctx)) })
}
