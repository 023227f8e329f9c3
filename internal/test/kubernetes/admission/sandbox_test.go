//go:build kubernetes

package admission

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sallyport/internal/test/kubernetes/kubeapi"
	"sallyport/internal/test/kubernetes/standin"
	"sallyport/internal/test/must"
)

// Pods as agent-sandbox makes them pass through all policies: from a warm pool, claimed,
// suspended and resumed.
func testAgentSandbox(t *testing.T, c cluster) {
	s, err := standin.New(t.Context(), c.api, "agents")
	must.OK(t, err)
	must.OK(t, s.Template(t.Context(), "python", map[string]string{"team": "support"}, object{
		"runtimeClassName": "sallyport", "containers": []object{{"name": "main", "image": image}}}))
	names, err := s.Pool(t.Context(), "warm", "python", 2)
	must.OK(t, err)
	if len(names) != 2 || !strings.HasPrefix(names[0], "warm-") {
		t.Fatalf("sandboxes %v", names)
	}
	name := names[0]
	get := func() object {
		t.Helper()
		pod, err := c.api.Get(t.Context(), "/api/v1/namespaces/agents/pods/"+name)
		must.OK(t, err)
		if kubeapi.At(pod, "spec", "dnsPolicy") != "None" {
			t.Errorf("the pod was not mutated: %v", pod["spec"])
		}
		return pod
	}
	labels := func(pod object) object { return kubeapi.At(pod, "metadata", "labels").(object) }
	owner := func(pod object) object {
		return kubeapi.At(pod, "metadata", "ownerReferences").([]any)[0].(object)
	}

	warm := get()
	if labels(warm)[standin.PoolLabel] == nil || labels(warm)["team"] != "support" || owner(warm)["kind"] != "Sandbox" || owner(warm)["name"] != name {
		t.Errorf("warm: labels %v, owner %v", labels(warm), owner(warm))
	}
	must.OK(t, s.Claim(t.Context(), "mine", "warm", name, map[string]string{"sandbox.users.io/user": "u1"}))
	claimed := get()
	want := object{"team": "support", "sandbox.users.io/user": "u1",
		"agents.x-k8s.io/sandbox-name-hash": labels(warm)["agents.x-k8s.io/sandbox-name-hash"], "agents.x-k8s.io/sandbox-template-ref-hash": labels(warm)["agents.x-k8s.io/sandbox-template-ref-hash"]}
	if diff := cmp.Diff(labels(claimed), want); diff != "" {
		t.Errorf("labels of the claimed pod, got - want +\n%s", diff)
	}
	if kubeapi.At(claimed, "metadata", "uid") != kubeapi.At(warm, "metadata", "uid") {
		t.Error("the claim made another pod")
	}
	must.OK(t, s.Suspend(t.Context(), name))
	must.OK(t, s.Resume(t.Context(), name))
	resumed := get()
	if diff := cmp.Diff(labels(resumed), want); diff != "" {
		t.Errorf("labels of the resumed pod, got - want +\n%s", diff)
	}
	if owner(resumed)["uid"] != owner(warm)["uid"] || kubeapi.At(resumed, "metadata", "uid") == kubeapi.At(warm, "metadata", "uid") {
		t.Error("want another pod of the same Sandbox")
	}
}
