package manager

import (
	"context"
	"errors"
	"testing"

	"sallyport/sandbox"
)

// Whoever is confined to an owner finds no sandbox of another's by its name, and
// takes no name of one.
func TestOwners(t *testing.T) {
	m := open(t, newFaultHost(), t.TempDir())
	a, b := sandbox.ForOwner(t.Context(), "a"), sandbox.ForOwner(t.Context(), "b")
	i, created, err := m.GetOrCreate(a, "box", sandbox.Spec{})
	if err != nil || !created || i.Spec.Owner != "a" {
		t.Fatalf("%+v %v %v", i, created, err)
	}
	if _, _, err := m.GetOrCreate(b, "box", sandbox.Spec{Image: "guess"}); !errors.Is(err, sandbox.ErrTaken) {
		t.Errorf("create: %v", err)
	}
	if _, _, err := m.GetOrCreate(b, "mine", sandbox.Spec{Owner: "a"}); !errors.Is(err, sandbox.ErrBadSpec) {
		t.Errorf("an owner that is sent: %v", err)
	}
	do := func(ctx context.Context) []error {
		_, start := m.Start(ctx, "box")
		_, stop := m.Stop(ctx, "box")
		_, get := m.Visible(ctx, "box")
		return []error{start, stop, get}
	}
	for i, err := range append(do(b), m.Remove(b, "box")) {
		if !errors.Is(err, sandbox.ErrNotFound) {
			t.Errorf("%d: %v", i, err)
		}
	}
	if len(m.ListVisible(b)) != 0 || len(m.ListVisible(a)) != 1 || len(m.ListVisible(t.Context())) != 1 {
		t.Error("a list has another's")
	}
	for _, ctx := range []context.Context{a, t.Context()} {
		if err := errors.Join(do(ctx)...); err != nil {
			t.Error(err)
		}
	}
	if err := m.Remove(a, "box"); err != nil {
		t.Error(err)
	}
}
