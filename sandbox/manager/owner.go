package manager

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"sallyport/sandbox"
	"sallyport/sandbox/state"
)

type fullKey struct{}

// ByFullName confines a context to the owner in a full name, and returns the name alone. A
// caller that is confined to an owner may leave TENANT/ out. For the host's own callers, a
// name alone is the host's. No sandbox is made for another owner.
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

// visible reports whether a sandbox exists for a context.
func visible(ctx context.Context, s sandbox.Spec) bool {
	if owner, ok := ctx.Value(fullKey{}).(string); ok && s.Owner != owner {
		return false
	}
	return s.Owned(sandbox.OwnerOf(ctx))
}

type namesKey struct{}

// AllowNames has calls with the context ask allow whether a new sandbox may have a name,
// since rules can be about names. allow gets the name that is taken, and must not call the
// Manager.
func AllowNames(ctx context.Context, allow func(name string) error) context.Context {
	return context.WithValue(ctx, namesKey{}, allow)
}

// checkAllowed asks the function of AllowNames.
func checkAllowed(ctx context.Context, name string) error {
	if allow, ok := ctx.Value(namesKey{}).(func(string) error); ok {
		return allow(name)
	}
	return nil
}

// claimOwner sets the owner of a spec to the caller's. A caller cannot name another.
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

// hidden is the error for a sandbox that does not exist for a context.
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

// checkQuota refuses an owner that may not have another sandbox.
func (m *Manager) checkQuota(owner string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.checkQuotaLocked(owner)
}

// checkQuotaLocked is checkQuota with m.mu held.
func (m *Manager) checkQuotaLocked(owner string) error {
	if most := m.opt.PerOwner; owner != "" && most > 0 && len(m.shares[owner]) >= most {
		return fmt.Errorf("%w: %d: remove some first", sandbox.ErrQuota, most)
	}
	return nil
}

// takeQuota counts a sandbox that is about to be made, or refuses it. discard takes the
// count back.
func (m *Manager) takeQuota(r state.Record) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.checkQuotaLocked(r.Spec.Owner); err != nil {
		return err
	}
	m.count(r)
	return nil
}

// count counts a sandbox as its owner's. m.mu is held, or Open runs.
func (m *Manager) count(r state.Record) {
	owner := r.Spec.Owner
	if m.shares[owner] == nil {
		m.shares[owner] = map[string]bool{}
	}
	m.shares[owner][r.ID] = true
}

// uncount undoes count. m.mu is held. It finds the owner itself: a record of the pool may
// have none yet.
func (m *Manager) uncount(id string) {
	for owner, all := range m.shares {
		if delete(all, id); len(all) == 0 {
			delete(m.shares, owner)
		}
	}
}
