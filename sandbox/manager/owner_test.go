package manager

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"

	"sallyport/internal/test/must"
	"sallyport/sandbox"
	"sallyport/sandbox/disk"
)

// A caller confined to an owner finds no sandbox of another's by its name, and takes no name
// of one.
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

// An owner has as many sandboxes as there is a share for, however they come to be,
// over restarts; others have theirs, and the host's own have no bound.
func TestShareOfAnOwner(t *testing.T) {
	h, dir := newFaultHost(), t.TempDir()
	m := open(t, h, dir)
	m.opt.PerOwner, m.opt.Subnet = 3, netip.MustParsePrefix("10.9.0.0/24")
	m.opt.Disks, m.opt.Defaults.Disk, h.layers = fakeDisks{h}, disk.Min, t.TempDir()
	a, b := sandbox.ForOwner(t.Context(), "a"), sandbox.ForOwner(t.Context(), "b")
	var made atomic.Int32
	var all sync.WaitGroup
	for i := range 10 {
		all.Go(func() {
			switch _, _, err := m.GetOrCreate(a, fmt.Sprintf("a-%d", i), sandbox.Spec{}); {
			case err == nil:
				made.Add(1)
			case !errors.Is(err, sandbox.ErrQuota):
				t.Errorf("one too many: %v", err)
			}
		})
	}
	all.Wait()
	if made.Load() != 3 || len(m.ListVisible(a)) != 3 {
		t.Fatalf("%d made, %d there", made.Load(), len(m.ListVisible(a)))
	}
	name := m.ListVisible(a)[0].Name
	if _, err := m.Fork(a, name, sandbox.ForkSpec{}); !errors.Is(err, sandbox.ErrQuota) {
		t.Errorf("a fork: %v", err)
	}
	create := func(ctx context.Context, name string) error {
		_, _, err := m.GetOrCreate(ctx, name, sandbox.Spec{})
		return err
	}
	for i := range 5 {
		if err := create(t.Context(), fmt.Sprintf("host-%d", i)); err != nil {
			t.Error(err)
		}
	}
	if err := create(b, "b"); err != nil {
		t.Errorf("another owner: %v", err)
	}
	if err := create(a, name); err != nil {
		t.Errorf("one that is there: %v", err)
	}
	m = open(t, h, dir)
	m.opt.PerOwner, m.opt.Subnet = 3, netip.MustParsePrefix("10.9.0.0/24")
	if err := create(a, "again"); !errors.Is(err, sandbox.ErrQuota) {
		t.Errorf("after a restart: %v", err)
	}
	must.OK(t, m.Remove(a, name))
	if err := create(a, "again"); err != nil {
		t.Errorf("in place of one that was removed: %v", err)
	}
}

// One from the pool counts as any other, and one that is refused stays in it.
func TestShareOfThePool(t *testing.T) {
	m := pooledHost(t, newFaultHost(), t.TempDir())
	m.opt.PerOwner = 1
	ctx := sandbox.ForOwner(t.Context(), "a")
	if i, _, err := m.GetOrCreate(ctx, "one", sandbox.Spec{}); err != nil || i.State != sandbox.Running {
		t.Fatalf("%+v %v", i, err)
	}
	if _, _, err := m.GetOrCreate(ctx, "two", sandbox.Spec{}); !errors.Is(err, sandbox.ErrQuota) || m.poolSize() != 1 {
		t.Errorf("%v, %d in the pool", err, m.poolSize())
	}
	must.OK(t, m.Remove(ctx, "one"))
	if _, _, err := m.GetOrCreate(ctx, "two", sandbox.Spec{}); err != nil {
		t.Errorf("in place of one that was removed: %v", err)
	}
}
