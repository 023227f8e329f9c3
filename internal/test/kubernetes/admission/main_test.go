//go:build kubernetes

package admission

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sallyport/internal/test/kubernetes"
	"sallyport/internal/test/kubernetes/kubeapi"
	"sallyport/internal/test/must"
	"sallyport/internal/test/testnet"
)

func TestMain(m *testing.M) {
	if err := testnet.Isolate(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

const examples = "../../../../examples/kubernetes"

// cluster is a control plane with a client of its administrator's.
type cluster struct {
	*kubernetes.ControlPlane
	api *kubeapi.Client
}

type object = kubeapi.Object

// One control plane for all of them: it takes seconds to start.
func TestManifests(t *testing.T) {
	c := cluster{ControlPlane: kubernetes.Start(t)}
	config, err := c.Kubeconfig("admin", "system:masters")
	must.OK(t, err)
	c.api, err = kubeapi.Open(config)
	must.OK(t, err)
	t.Cleanup(c.api.Close)
	plain, err := os.ReadFile(filepath.Join(examples, "sallyport.yaml"))
	must.OK(t, err)
	must.OK(t, c.Apply(t.Context(), string(plain)))
	for _, name := range []string{"agents", "others"} {
		must.OK(t, c.Apply(t.Context(), "{apiVersion: v1, kind: Namespace, metadata: {name: "+name+"}}"))
		c.soon(t, "the service account of "+name, func() error {
			_, err := c.api.Get(t.Context(), "/api/v1/namespaces/"+name+"/serviceaccounts/default")
			return err
		})
	}
	// Policies are in force a moment after they are there, each for itself.
	c.soon(t, "the policies", func() error {
		return errors.Join(
			c.refused(t.Context(), "agents", pod("hostNetwork: true", ""), "network"),
			c.refused(t.Context(), "agents", pod("", ""), ""),
			c.mutated(t.Context()))
	})
	for _, test := range []struct {
		name string
		run  func(*testing.T, cluster)
	}{
		{"Mutations", testMutations}, {"Refusals", testRefusals}, {"Ephemeral", testEphemeral}, {"Only", testOnly}, {"Classes", testClasses},
		{"AgentSandbox", testAgentSandbox}, {"Access", testAccess}, {"Nodes", testNodes}, {"Members", testMembers}, {"Warnings", testWarnings}, {"Values", testValues},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, c) })
	}
}

// soon waits until there is no error.
func (c cluster) soon(t *testing.T, what string, holds func() error) {
	t.Helper()
	var err error
	defer func() {
		if err != nil {
			t.Log(err)
		}
	}()
	must.Soon(t, what, func() bool { err = holds(); return err == nil })
}

// pod is a pod of the class in YAML, with more in its spec and in its container.
func pod(spec, container string) string {
	return podOf("runtimeClassName: sallyport", spec, "containers: [{name: main, image: "+image+", "+container+"}]")
}

const image = "registry.example.com/agent:1"

func podOf(parts ...string) string {
	text := "{apiVersion: v1, kind: Pod, metadata: {name: pod}, spec: {"
	if !strings.Contains(strings.Join(parts, ""), "automountServiceAccountToken") {
		text += "automountServiceAccountToken: false, "
	}
	for _, part := range parts {
		if part != "" {
			text += part + ", "
		}
	}
	return text + "}}"
}

// try creates a pod in a namespace without keeping it.
func (c cluster) try(ctx context.Context, namespace, pod string) (object, error) {
	return c.api.Create(ctx, "/api/v1/namespaces/"+namespace+"/pods?dryRun=All", pod)
}

// refused reports an error unless a policy refuses the pod with this in its message, or
// admits it where there is no message.
func (c cluster) refused(ctx context.Context, namespace, pod, message string) error {
	_, err := c.try(ctx, namespace, pod)
	return wants(err, message)
}

// wants compares what a policy said with what it should say: "" is nothing.
func wants(err error, message string) error {
	var e *kubeapi.Error
	switch {
	case message == "":
		return err
	case err == nil:
		return fmt.Errorf("admitted, want it refused with %q", message)
	case !errors.As(err, &e), !strings.Contains(e.Message, "ValidatingAdmissionPolicy"), !strings.Contains(e.Message, message):
		return fmt.Errorf("got %w, want a policy's refusal with %q", err, message)
	}
	return nil
}

func (c cluster) mutated(ctx context.Context) error {
	made, err := c.try(ctx, "agents", pod("", ""))
	if err == nil && kubeapi.At(made, "spec", "dnsPolicy") != "None" {
		err = errors.New("not mutated")
	}
	return err
}

// render returns the objects of the chart with these values, as YAML.
func render(t *testing.T, values string) string {
	t.Helper()
	program, err := exec.Command(filepath.Join(examples, "render/build.sh")).Output()
	must.OK(t, err)
	file := filepath.Join(t.TempDir(), "values.yaml")
	must.OK(t, os.WriteFile(file, []byte(values), 0o644))
	out, err := exec.Command(strings.TrimSpace(string(program)), "-chart", filepath.Join(examples, "chart"), "-values", file).Output()
	must.OK(t, err)
	return string(out)
}
