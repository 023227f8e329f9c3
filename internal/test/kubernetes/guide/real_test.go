//go:build kubernetes

package guide

import (
	"context"
	"errors"
	"flag"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sallyport/internal/test/kubernetes/kubeapi"
	"sallyport/internal/test/must"
)

// The controller itself, once for each release: see docs/kubernetes.md.
var itself = flag.String("agent-sandbox", "", "a `folder` with agent-sandbox's repository and, in bin, its program agent-sandbox-controller: it takes the stand-in's place")

// real drives agent-sandbox's own controller as standin.Controller drives nothing but itself.
type real struct {
	t   *testing.T
	api *kubeapi.Client
}

// conversion is a webhook between versions, which a process beside the cluster does not serve.
var conversion = regexp.MustCompile(`(?m)^  conversion:\n(?:    .*\n)+`)

// startReal installs agent-sandbox's definitions and starts its controller.
func (r *reader) startReal(t *testing.T, dir string) *real {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "k8s/crds/*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no definitions in %s: %v", dir, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		must.OK(t, err)
		must.OK(t, r.c.Apply(t.Context(), conversion.ReplaceAllString(string(text), "")))
	}
	r.kubectl(t, "wait", "--for=condition=Established", "--timeout=1m", "crd", "--all")
	config, err := r.c.Kubeconfig("agent-sandbox", "system:masters")
	must.OK(t, err)
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	must.OK(t, err)
	cmd := exec.Command(filepath.Join(dir, "bin/agent-sandbox-controller"), "--extensions", "--leader-elect=false", "--enable-webhook=false",
		"--manage-webhook-certs=false", "--metrics-bind-address=0", "--health-probe-bind-address=0", "--kubeconfig="+config)
	cmd.Stdout, cmd.Stderr = log, log
	must.OK(t, cmd.Start())
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if text, _ := os.ReadFile(log.Name()); t.Failed() {
			t.Logf("agent-sandbox's log:\n%s", text[max(0, len(text)-8000):])
		}
	})
	return &real{t, r.api}
}

const extensions = "/apis/extensions.agents.x-k8s.io/v1beta1/namespaces/default/"

func (r *real) create(ctx context.Context, plural, kind, name string, spec kubeapi.Object) error {
	_, err := r.api.Create(ctx, extensions+plural, kubeapi.Object{"apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": kind,
		"metadata": kubeapi.Object{"name": name}, "spec": spec})
	return err
}

func (r *real) Template(ctx context.Context, name string, labels map[string]string, spec kubeapi.Object) error {
	return r.create(ctx, "sandboxtemplates", "SandboxTemplate", name, kubeapi.Object{"networkPolicyManagement": "Unmanaged",
		"podTemplate": kubeapi.Object{"metadata": kubeapi.Object{"labels": labels}, "spec": spec}})
}

const sandboxes = "/apis/agents.x-k8s.io/v1beta1/namespaces/default/sandboxes"

func (r *real) Pool(ctx context.Context, name, template string, replicas int) (names []string, err error) {
	if err := r.create(ctx, "sandboxwarmpools", "SandboxWarmPool", name, kubeapi.Object{"replicas": replicas, "sandboxTemplateRef": kubeapi.Object{"name": template}}); err != nil {
		return nil, err
	}
	must.Soon(r.t, "the pool's pods", func() bool {
		list, err := r.api.Get(ctx, "/api/v1/namespaces/default/pods")
		must.OK(r.t, err)
		names = nil
		for _, pod := range list["items"].([]any) {
			if n := kubeapi.At(pod, "metadata", "name").(string); strings.HasPrefix(n, name+"-") {
				names = append(names, n)
			}
		}
		return len(names) == replicas
	})
	return names, nil
}

func (r *real) Claim(ctx context.Context, name, pool, sandbox string, labels map[string]string) error {
	err := r.create(ctx, "sandboxclaims", "SandboxClaim", name, kubeapi.Object{"warmPoolRef": kubeapi.Object{"name": pool}, "additionalPodMetadata": kubeapi.Object{"labels": labels}})
	if err != nil {
		return err
	}
	must.Soon(r.t, "the claim", func() bool {
		claim, err := r.api.Get(ctx, extensions+"sandboxclaims/"+name)
		must.OK(r.t, err)
		return kubeapi.At(claim, "status", "sandbox", "name") == sandbox
	})
	return nil
}

func (r *real) mode(ctx context.Context, sandbox, mode string, done func(error) bool) error {
	if _, err := r.api.Patch(ctx, sandboxes+"/"+sandbox, kubeapi.MergePatch, kubeapi.Object{"spec": kubeapi.Object{"operatingMode": mode}}); err != nil {
		return err
	}
	must.Soon(r.t, sandbox+" to be "+mode, func() bool {
		_, err := r.api.Get(ctx, "/api/v1/namespaces/default/pods/"+sandbox)
		return done(err)
	})
	return nil
}

func (r *real) Suspend(ctx context.Context, sandbox string) error {
	return r.mode(ctx, sandbox, "Suspended", func(err error) bool {
		var e *kubeapi.Error
		return errors.As(err, &e) && e.Code == http.StatusNotFound
	})
}

func (r *real) Resume(ctx context.Context, sandbox string) error {
	return r.mode(ctx, sandbox, "Running", func(err error) bool { return err == nil })
}
