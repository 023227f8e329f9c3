package api_test

import (
	"errors"
	"net/http"
	"testing"

	"sallyport/internal/api"
	"sallyport/internal/test/must"
	"sallyport/sandbox"
)

func TestSnapshots(t *testing.T) {
	c, _, _ := serve(t, true)
	ctx := t.Context()
	is := func(what string, err error, status int) {
		t.Helper()
		var p *api.Problem
		if errors.As(err, &p); p == nil || p.Status != status {
			t.Errorf("%s: %v, want %d", what, err, status)
		}
	}
	fine := func(_ any, err error) {
		t.Helper()
		must.OK(t, err)
	}
	fine(c.Create(ctx, "a", sandbox.Spec{}))
	if list, err := c.Snapshots(ctx, "a"); err != nil || len(list) != 0 {
		t.Errorf("none: %v, %v", list, err)
	}
	fine(c.Start(ctx, "a"))
	s, err := c.Snapshot(ctx, "a", sandbox.SnapshotSpec{Name: "s", Memory: true, KeepLast: 3})
	if err != nil || s.Name != "s" || !s.Memory {
		t.Fatalf("%+v, %v", s, err)
	}
	_, err = c.Snapshot(ctx, "a", sandbox.SnapshotSpec{Name: "s"})
	is("a name twice", err, http.StatusConflict)
	_, err = c.Snapshot(ctx, "a", sandbox.SnapshotSpec{Name: "No"})
	is("no name", err, http.StatusBadRequest)
	_, err = c.Snapshot(ctx, "nobody", sandbox.SnapshotSpec{})
	is("of nobody", err, http.StatusNotFound)
	_, err = c.Restore(ctx, "a", sandbox.RestoreSpec{Snapshot: "t"})
	is("no such snapshot", err, http.StatusNotFound)
	if i, err := c.Restore(ctx, "a", sandbox.RestoreSpec{Snapshot: "s"}); err != nil || i.State != sandbox.Running {
		t.Errorf("restored: %+v, %v", i, err)
	}
	list, err := c.Fork(ctx, "a", sandbox.ForkSpec{Names: []string{"b", "c"}})
	if err != nil || len(list) != 2 || list[1].Lineage == nil || list[1].Lineage.Name != "a" {
		t.Errorf("forked: %+v, %v", list, err)
	}
	_, err = c.Fork(ctx, "a", sandbox.ForkSpec{Names: []string{"b"}})
	is("a sandbox twice", err, http.StatusConflict)
	_, err = c.Fork(ctx, "a", sandbox.ForkSpec{Count: 1000})
	is("too many", err, http.StatusBadRequest)
	if kept, err := c.Snapshots(ctx, "a"); err != nil || len(kept) != 2 || !kept[1].Safety {
		t.Errorf("kept: %+v, %v", kept, err)
	}
	if err := c.RemoveSnapshot(ctx, "a", "s"); err != nil {
		t.Error(err)
	}
	is("removed twice", c.RemoveSnapshot(ctx, "a", "s"), http.StatusNotFound)
}
