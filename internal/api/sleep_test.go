package api_test

import (
	"context"
	"errors"
	"net/http"
	"testing"

	"sallyport/internal/api"
	"sallyport/internal/test/must"
	"sallyport/sandbox"
)

func TestSleep(t *testing.T) {
	c, _, _ := serve(t, true)
	ctx := t.Context()
	is := func(i sandbox.Info, err error) sandbox.State {
		t.Helper()
		must.OK(t, err)
		return i.State
	}
	is(c.Create(ctx, "a", sandbox.Spec{}))
	for name, f := range map[string]func(context.Context, string) (sandbox.Info, error){"pause": c.Pause, "resume": c.Resume, "hibernate": c.Hibernate, "wake": c.Wake} {
		var p *api.Problem
		if _, err := f(ctx, "a"); !errors.As(err, &p) || p.Status != http.StatusConflict {
			t.Errorf("%s of a stopped sandbox: %v", name, err)
		}
		if _, err := f(ctx, "nobody"); !errors.As(err, &p) || p.Status != http.StatusNotFound {
			t.Errorf("%s of nobody: %v", name, err)
		}
	}
	is(c.Start(ctx, "a"))
	for _, step := range []struct {
		name string
		do   func(context.Context, string) (sandbox.Info, error)
		want sandbox.State
	}{
		{"pause", c.Pause, sandbox.Paused}, {"get", c.Sandbox, sandbox.Paused}, {"resume", c.Resume, sandbox.Running},
		{"hibernate", c.Hibernate, sandbox.Hibernated}, {"get", c.Sandbox, sandbox.Hibernated}, {"wake", c.Wake, sandbox.Running},
		{"recover", c.Recover, sandbox.Running}, // which is in no error
	} {
		if got := is(step.do(ctx, "a")); got != step.want {
			t.Errorf("after %s: %s, want %s", step.name, got, step.want)
		}
	}
}
