//go:build kubernetes

package admission

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"

	"sallyport/internal/test/kubernetes/kubeapi"
	"sallyport/internal/test/must"
	"sallyport/internal/test/testnet"
)

func toJSON(t *testing.T, text string) string {
	t.Helper()
	out, err := yaml.YAMLToJSON([]byte(text))
	must.OK(t, err)
	return string(out)
}

func testRoot(t *testing.T) string {
	t.Helper()
	ca, err := testnet.NewCA()
	must.OK(t, err)
	return string(ca.PEM())
}

// quoted is a string in JSON, which is YAML too.
func quoted(t *testing.T, s string) string {
	t.Helper()
	out, err := json.Marshal(s)
	must.OK(t, err)
	return string(out)
}

func testOnly(t *testing.T, c cluster) {
	const only = "this namespace has the label sallyport.dev/only"
	must.OK(t, c.Apply(t.Context(), "{apiVersion: v1, kind: Namespace, metadata: {name: only, labels: {sallyport.dev/only: \"\"}}}"))
	must.OK(t, c.Apply(t.Context(), "{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: other}, handler: other}"))
	c.soon(t, "the service account", func() error {
		_, err := c.api.Get(t.Context(), "/api/v1/namespaces/only/serviceaccounts/default")
		return err
	})
	for name, test := range map[string]struct{ class, message string }{
		"no class":      {"", only},
		"another class": {"runtimeClassName: other", only},
		"the class":     {"runtimeClassName: sallyport", ""},
	} {
		t.Run(name, func(t *testing.T) {
			if err := c.refused(t.Context(), "only", podOf(test.class, "containers: [{name: main, image: x}]"), test.message); err != nil {
				t.Error(err)
			}
		})
	}
}

func testClasses(t *testing.T, c cluster) {
	const belong = "belong together"
	create := func(name, handler string) error {
		_, err := c.api.Create(t.Context(), "/apis/node.k8s.io/v1/runtimeclasses?dryRun=All",
			"{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: "+name+"}, handler: "+handler+"}")
		return err
	}
	if err := wants(create("mine", "sallyport"), belong); err != nil {
		t.Errorf("another class with the handler: %v", err)
	}
	if err := wants(create("mine", "runc"), ""); err != nil {
		t.Errorf("another class with another handler: %v", err)
	}
	const path = "/apis/node.k8s.io/v1/runtimeclasses/sallyport"
	class, err := c.api.Get(t.Context(), path)
	must.OK(t, err)
	must.OK(t, c.api.Delete(t.Context(), path))
	if err := wants(create("sallyport", "runc"), belong); err != nil {
		t.Errorf("the class with another handler: %v", err)
	}
	delete(class["metadata"].(object), "resourceVersion")
	_, err = c.api.Create(t.Context(), "/apis/node.k8s.io/v1/runtimeclasses", class)
	must.OK(t, err)
}

const account = "system:serviceaccount:sallyport:sallyport"

// RBAC as the API server itself reads it.
func testAccess(t *testing.T, c cluster) {
	for _, test := range []struct {
		verb, group, resource, namespace string
		want                             bool
	}{
		{"get", "", "pods", "agents", true},
		{"list", "", "pods", "", true},
		{"watch", "", "pods", "", true},
		{"get", "", "nodes", "", true},
		{"patch", "", "nodes", "", true},

		{"create", "", "pods", "agents", false},
		{"patch", "", "pods", "agents", false},
		{"delete", "", "pods", "agents", false},
		{"create", "", "pods/exec", "agents", false},
		{"get", "", "pods/log", "agents", false},
		{"update", "", "pods/ephemeralcontainers", "agents", false},
		{"patch", "", "pods/status", "agents", false},
		{"get", "", "secrets", "sallyport", false},
		{"list", "", "secrets", "", false},
		{"get", "", "configmaps", "sallyport", false},
		{"create", "", "serviceaccounts/token", "sallyport", false},
		{"list", "", "nodes", "", false},
		{"update", "", "nodes", "", false},
		{"patch", "", "nodes/status", "", false},
		{"delete", "", "nodes", "", false},
		{"get", "", "nodes/proxy", "", false},
		{"list", "", "namespaces", "", false},
		{"update", "certificates.k8s.io", "clustertrustbundles", "", false},
		{"update", "admissionregistration.k8s.io", "validatingadmissionpolicies", "", false},
		{"update", "node.k8s.io", "runtimeclasses", "", false},
		{"get", "agents.x-k8s.io", "sandboxes", "agents", false},
		{"impersonate", "", "users", "", false},
		{"escalate", "rbac.authorization.k8s.io", "clusterroles", "", false},
	} {
		resource, sub, _ := strings.Cut(test.resource, "/")
		review, err := c.api.Create(t.Context(), "/apis/authorization.k8s.io/v1/subjectaccessreviews", object{
			"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
			"spec": object{"user": account, "groups": []string{"system:serviceaccounts", "system:serviceaccounts:sallyport", "system:authenticated"},
				"resourceAttributes": object{"verb": test.verb, "group": test.group, "resource": resource, "subresource": sub, "namespace": test.namespace}},
		})
		must.OK(t, err)
		if got := kubeapi.At(review, "status", "allowed"); got != test.want {
			t.Errorf("%s %s in %q: allowed is %v, want %v", test.verb, test.resource, test.namespace, got, test.want)
		}
	}
}

// The daemon's own token, which says the node of its pod.
func testNodes(t *testing.T, c cluster) {
	for _, name := range []string{"worker-1", "worker-2"} {
		_, err := c.api.Create(t.Context(), "/api/v1/nodes", "{apiVersion: v1, kind: Node, metadata: {name: "+name+", labels: {zone: a}}, spec: {taints: [{key: dedicated, effect: NoSchedule}]}}")
		must.OK(t, err)
	}
	_, err := c.api.Create(t.Context(), "/api/v1/namespaces/sallyport/pods",
		"{apiVersion: v1, kind: Pod, metadata: {name: daemon}, spec: {serviceAccountName: sallyport, nodeName: worker-1, containers: [{name: main, image: x}]}}")
	must.OK(t, err)
	request := object{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": object{
		"boundObjectRef": object{"kind": "Pod", "apiVersion": "v1", "name": "daemon"}}}
	bound, err := c.api.Create(t.Context(), "/api/v1/namespaces/sallyport/serviceaccounts/sallyport/token", request)
	must.OK(t, err)
	unbound, err := c.api.Create(t.Context(), "/api/v1/namespaces/sallyport/serviceaccounts/sallyport/token",
		object{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": object{}})
	must.OK(t, err)
	daemon, stranger := c.api.WithToken(kubeapi.At(bound, "status", "token").(string)), c.api.WithToken(kubeapi.At(unbound, "status", "token").(string))
	t.Cleanup(daemon.Close)
	t.Cleanup(stranger.Close)

	const (
		own       = "the daemon changes its own node only"
		taintOnly = "the daemon changes the taint sallyport.dev/not-ready only"
		taint     = `{"spec": {"taints": [{"key": "dedicated", "effect": "NoSchedule"}, {"key": "sallyport.dev/not-ready", "effect": "NoSchedule"}]}}`
	)
	for _, mine := range [][]any{{object{"key": "sallyport.dev/not-ready", "effect": "NoSchedule"}}, nil} {
		if err := setTaint(t, c.api, daemon, mine); err != nil {
			t.Errorf("its taint as %v: %v", mine, err)
		}
	}
	for _, test := range []struct {
		name, node, patch, message string
		as                         *kubeapi.Client
	}{
		{"another node", "worker-2", taint, own, daemon},
		{"a token of no pod", "worker-1", taint, own, stranger},
		{"another taint", "worker-1", `{"spec": {"taints": [{"key": "other", "effect": "NoSchedule"}]}}`, taintOnly, daemon},
		{"all taints taken away", "worker-1", `{"spec": {"taints": null}}`, taintOnly, daemon},
		{"a label", "worker-1", `{"metadata": {"labels": {"zone": "b"}}}`, taintOnly, daemon},
		{"an annotation", "worker-1", `{"metadata": {"annotations": {"a": "b"}}}`, taintOnly, daemon},
		{"cordoned", "worker-1", `{"spec": {"unschedulable": true}}`, taintOnly, daemon},
		{"an administrator", "worker-2", `{"metadata": {"labels": {"zone": "b"}}}`, "", c.api},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := test.as.Patch(t.Context(), "/api/v1/nodes/"+test.node, kubeapi.MergePatch, test.patch)
			if err := wants(err, test.message); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("secrets", func(t *testing.T) {
		_, err := daemon.Get(t.Context(), "/api/v1/namespaces/sallyport/secrets")
		var e *kubeapi.Error
		if !errors.As(err, &e) || e.Code != http.StatusForbidden {
			t.Errorf("got %v, want 403", err)
		}
	})
}

// setTaint has the daemon replace its own taint of worker-1. Controllers change others meanwhile.
func setTaint(t *testing.T, admin, daemon *kubeapi.Client, mine []any) error {
	for {
		node, err := admin.Get(t.Context(), "/api/v1/nodes/worker-1")
		must.OK(t, err)
		taints, _ := kubeapi.At(node, "spec", "taints").([]any)
		taints = slices.DeleteFunc(taints, func(taint any) bool { return kubeapi.At(taint, "key") == "sallyport.dev/not-ready" })
		_, err = daemon.Patch(t.Context(), "/api/v1/nodes/worker-1", kubeapi.MergePatch, object{
			"metadata": object{"resourceVersion": kubeapi.At(node, "metadata", "resourceVersion")}, "spec": object{"taints": append(taints, mine...)}})
		var e *kubeapi.Error
		if !errors.As(err, &e) || e.Code != http.StatusConflict {
			return err
		}
	}
}

// Root on a node has its kubelet's certificate.
func testMembers(t *testing.T, c cluster) {
	config, err := c.Kubeconfig("system:node:worker-3", "system:nodes")
	must.OK(t, err)
	kubelet, err := kubeapi.Open(config)
	must.OK(t, err)
	t.Cleanup(kubelet.Close)
	const refused = "an administrator gives a node the label sallyport.dev/node"
	label := func(as *kubeapi.Client, path, labels string) error {
		_, err := as.Patch(t.Context(), "/api/v1/nodes/worker-3"+path, kubeapi.MergePatch, `{"metadata": {"labels": `+labels+`}}`)
		return err
	}
	create := func(labels string) error {
		_, err := kubelet.Create(t.Context(), "/api/v1/nodes", "{apiVersion: v1, kind: Node, metadata: {name: worker-3, labels: "+labels+"}}")
		return err
	}
	for _, step := range []struct {
		name    string
		err     func() error
		message string
	}{
		{"registers with the label", func() error { return create(`{"sallyport.dev/node": ""}`) }, refused},
		{"registers", func() error { return create("{disk: ssd}") }, ""},
		{"gives itself the label", func() error { return label(kubelet, "", `{"sallyport.dev/node": ""}`) }, refused},
		{"gives itself the label with its status", func() error { return label(kubelet, "/status", `{"sallyport.dev/node": ""}`) }, refused},
		{"gives itself another label", func() error { return label(kubelet, "", `{"disk": "nvme"}`) }, ""},
		{"an administrator gives it the label", func() error { return label(c.api, "", `{"sallyport.dev/node": ""}`) }, ""},
		{"keeps it", func() error { return label(kubelet, "", `{"disk": "ssd"}`) }, ""},
		{"takes it away", func() error { return label(kubelet, "", `{"sallyport.dev/node": null}`) }, refused},
	} {
		if err := wants(step.err(), step.message); err != nil {
			t.Errorf("%s: %v", step.name, err)
		}
	}
}

// The API server has checked each expression against the types that it is for.
func testWarnings(t *testing.T, c cluster) {
	for _, name := range []string{"sallyport", "sallyport-only", "sallyport-classes", "sallyport-nodes", "sallyport-members"} {
		var policy object
		must.Soon(t, "the check of "+name, func() bool {
			var err error
			policy, err = c.api.Get(t.Context(), "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/"+name)
			must.OK(t, err)
			return kubeapi.At(policy, "status", "observedGeneration") != nil
		})
		if w := kubeapi.At(policy, "status", "typeChecking", "expressionWarnings"); w != nil {
			text, _ := json.MarshalIndent(w, "", "  ")
			t.Errorf("%s: %s", name, text)
		}
		if got := kubeapi.At(policy, "spec", "failurePolicy"); got != "Fail" {
			t.Errorf("%s: failurePolicy is %v", name, got)
		}
	}
}

// The chart with other values than its own. The last ones stay in force.
func testValues(t *testing.T, c cluster) {
	t.Run("two roots while one is replaced", func(t *testing.T) {
		first, second := testRoot(t), testRoot(t)
		must.OK(t, c.Apply(t.Context(), render(t, "trust: {roots: "+quoted(t, first+second)+"}")))
		bundle, err := c.api.Get(t.Context(), "/apis/certificates.k8s.io/v1/clustertrustbundles/sallyport")
		must.OK(t, err)
		got, _ := kubeapi.At(bundle, "spec", "trustBundle").(string)
		if !strings.Contains(got, strings.TrimSpace(first)) || !strings.Contains(got, strings.TrimSpace(second)) {
			t.Errorf("bundle %s", got)
		}
	})
	t.Run("an intermediate for each node, and Rego", func(t *testing.T) {
		must.OK(t, c.Apply(t.Context(), render(t, `{ca: {certManager: {issuerName: nodes}}, policy: {team.rego: "package sallyport.team.a\n"}, vaultAudience: other}`)))
		set, err := c.api.Get(t.Context(), "/apis/apps/v1/namespaces/sallyport/daemonsets/sallyport")
		must.OK(t, err)
		volumes := map[string]object{}
		for _, v := range kubeapi.At(set, "spec", "template", "spec", "volumes").([]any) {
			volumes[kubeapi.At(v, "name").(string)] = v.(object)
		}
		attributes := kubeapi.At(volumes["ca"], "csi", "volumeAttributes")
		if kubeapi.At(attributes, "csi.cert-manager.io/issuer-name") != "nodes" || kubeapi.At(attributes, "csi.cert-manager.io/is-ca") != "true" || kubeapi.At(volumes["ca"], "secret") != nil {
			t.Errorf("the volume of the authority: %v", volumes["ca"])
		}
		want := []any{object{"key": "sallyport.yaml", "path": "sallyport.yaml"}, object{"key": "team.rego", "path": "policy.d/team.rego"}}
		if diff := cmp.Diff(kubeapi.At(volumes["config"], "configMap", "items"), any(want)); diff != "" {
			t.Errorf("files of the configuration, got - want +\n%s", diff)
		}
		token := kubeapi.At(volumes["vault"], "projected", "sources").([]any)[0]
		if got := kubeapi.At(token, "serviceAccountToken", "audience"); got != "other" {
			t.Errorf("the token's audience is %v", got)
		}
	})
	t.Run("older clusters have a ConfigMap", func(t *testing.T) {
		must.OK(t, c.Apply(t.Context(), render(t, "{gateway: 10.99.0.1, trust: {configMap: roots}}")))
		c.soon(t, "the policy", func() error {
			made, err := c.try(t.Context(), "agents", pod("", ""))
			must.OK(t, err)
			volumes, _ := kubeapi.At(made, "spec", "volumes").([]any)
			if len(volumes) != 1 || kubeapi.At(volumes[0], "configMap", "name") != "roots" {
				return errors.New("the volume is another one still")
			}
			if servers, _ := kubeapi.At(made, "spec", "dnsConfig", "nameservers").([]any); len(servers) != 1 || servers[0] != "10.99.0.1" {
				t.Errorf("name servers %v", servers)
			}
			return nil
		})
	})
}
