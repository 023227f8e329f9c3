package api_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"sallyport/internal/api"
	"sallyport/sandbox"
	"sallyport/sandbox/client"
)

// fakePods is a node with one pod.
type fakePods struct{}

var pod = sandbox.Info{Name: "ns/a", ID: "id", State: sandbox.Running, Spec: sandbox.Spec{Owner: "ns"}, Pod: &sandbox.Pod{Name: "a", UID: "uid"}}

func (fakePods) List() []sandbox.Info { return []sandbox.Info{pod} }

func (fakePods) ListVisible(context.Context) []sandbox.Info { return fakePods{}.List() }

func (fakePods) Get(name string) (sandbox.Info, error) {
	if name != pod.Name {
		return sandbox.Info{}, sandbox.ErrNotFound
	}
	return pod, nil
}

func (fakePods) Visible(_ context.Context, name string) (sandbox.Info, error) {
	return fakePods{}.Get(name)
}

// A daemon whose sandboxes are pods shows them, and says who does the rest.
func TestPods(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	l := need[net.Listener](t)(net.Listen("unix", socket))
	log := slog.New(slog.DiscardHandler)
	s, l := api.Local(l, checked(t, api.NewHandler(api.Options{
		Sandboxes: fakePods{}, Logger: log, Root: func(id string) ([]byte, error) { return []byte("root of " + id), nil },
	})), log)
	served := make(chan struct{})
	go func() { defer close(served); _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close(); <-served })
	c := client.Unix(socket)
	t.Cleanup(c.Close)
	ctx := t.Context()

	if list := need[[]sandbox.Info](t)(c.Sandboxes(ctx)); len(list) != 1 || list[0].FullName() != "ns/a" || list[0].Pod.UID != "uid" {
		t.Errorf("listed %+v", list)
	}
	if i := need[sandbox.Info](t)(c.Sandbox(ctx, "ns/a")); i.ID != "id" {
		t.Errorf("got %+v", i)
	}
	if root := need[[]byte](t)(c.SandboxRoot(ctx, "ns/a")); string(root) != "root of id" {
		t.Errorf("its root is %q", root)
	}
	run := func(_ any, err error) error { return err }
	for what, err := range map[string]error{
		"create": run(c.Create(ctx, "b", sandbox.Spec{})), "start": run(c.Start(ctx, "ns/a")), "remove": c.Remove(ctx, "ns/a"),
		"exec":   run(c.Exec(ctx, "ns/a", sandbox.CommandSpec{Args: []string{"true"}}, sandbox.Streams{})),
		"images": run(c.Images(ctx)), "snapshots": run(c.Snapshots(ctx, "ns/a")),
	} {
		var p *api.Problem
		if !errors.As(err, &p) || p.Status != http.StatusBadRequest || !strings.Contains(p.Detail, "kubectl") {
			t.Errorf("%s: got %v, want what to use instead", what, err)
		}
	}
	if _, err := c.Sandbox(ctx, "ns/b"); err == nil {
		t.Error("a pod that is not there")
	}
}
