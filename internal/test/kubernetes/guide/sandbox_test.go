//go:build kubernetes

package guide

import (
	"context"
	"strings"
	"testing"
	"time"

	"sallyport/internal/test/kubernetes/kubeapi"
	"sallyport/internal/test/kubernetes/standin"
	"sallyport/internal/test/must"
)

// controller is agent-sandbox's, or the stand-in.
type controller interface {
	Template(ctx context.Context, name string, labels map[string]string, spec kubeapi.Object) error
	Pool(ctx context.Context, name, template string, replicas int) ([]string, error)
	Claim(ctx context.Context, name, pool, sandbox string, labels map[string]string) error
	Suspend(ctx context.Context, sandbox string) error
	Resume(ctx context.Context, sandbox string) error
}

// agentSandbox has pods as agent-sandbox makes them: a warm one is offline, a claimed one has
// what its labels allow, and so has the next pod of a sandbox that was suspended.
func (r *reader) agentSandbox(t *testing.T) {
	var s controller
	var err error
	if *itself == "" {
		s, err = standin.New(t.Context(), r.api, "default")
		must.OK(t, err)
	} else {
		s = r.startReal(t, *itself)
	}
	must.OK(t, s.Template(t.Context(), "python", map[string]string{"app": "box"}, kubeapi.Object{
		"runtimeClassName": "sallyport", "terminationGracePeriodSeconds": 0,
		"containers": []any{kubeapi.Object{"name": "main", "image": "registry.example.com/agent:1", "command": []any{"sleep", "infinity"}}},
	}))
	names, err := s.Pool(t.Context(), "warm", "python", 1)
	must.OK(t, err)
	name := names[0]
	ready := func() {
		t.Helper()
		r.kubectl(t, "wait", "--for=condition=Ready", "--timeout=2m", "pod/"+name)
	}
	get := func() string {
		out, err := r.c.Kubectl(t.Context(), "", "exec", name, "--", "curl", "-sS", "--max-time", "5", "https://api.example.com/")
		if err != nil {
			return err.Error()
		}
		return out
	}
	served := func(when string) {
		t.Helper()
		var last string
		defer func() {
			if t.Failed() {
				t.Log(last)
			}
		}()
		must.Soon(t, "an answer "+when, func() bool { last = get(); return strings.Contains(last, `"saw_key":true`) })
	}
	ready()
	// The document's rule is for the tag app: box, which it has.
	if out := get(); strings.Contains(out, "saw_key") {
		t.Errorf("a warm pod that nobody has claimed was answered: %s", out)
	}
	must.OK(t, s.Claim(t.Context(), "mine", "warm", name, map[string]string{"sandbox.users.io/user": "u1"}))
	served("after the claim")
	begun := time.Now()
	must.OK(t, s.Suspend(t.Context(), name))
	must.OK(t, s.Resume(t.Context(), name))
	ready()
	t.Logf("suspended and resumed in %s", time.Since(begun).Round(100*time.Millisecond))
	served("after it was suspended and resumed")
	shown := r.kubectl(t, "-n", "sallyport", "exec", "ds/sallyport", "--", "sallyport", "sandbox", "get", "default/"+name)
	for _, part := range []string{"sandbox.users.io/user", "u1"} {
		if !strings.Contains(shown, part) {
			t.Errorf("no %s in\n%s", part, shown)
		}
	}
}
