//go:build kubernetes

package admission

import (
	"maps"
	"net/http"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sallyport/internal/test/kubernetes/kubeapi"
	"sallyport/internal/test/must"
)

const trusted = "/etc/sallyport/ca.crt"

// variables are those of a container that sets none.
var variables = []string{"AWS_CA_BUNDLE", "CARGO_HTTP_CAINFO", "CURL_CA_BUNDLE", "DENO_CERT", "GIT_SSL_CAINFO",
	"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", "NODE_EXTRA_CA_CERTS", "PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"}

func testMutations(t *testing.T, c cluster) {
	trust := object{"name": "sallyport-trust", "projected": object{"defaultMode": 420.0, "sources": []any{
		object{"clusterTrustBundle": object{"name": "sallyport", "path": "ca.crt"}}}}}
	own := object{"name": "work", "emptyDir": object{}}

	for _, test := range []struct {
		name    string
		pod     string
		volumes []any
		// env is of each container by its name.
		env map[string]map[string]string
	}{
		{"a pod", pod("", ""), []any{trust}, map[string]map[string]string{"main": nil}},
		{"volumes of its own", pod("volumes: [{name: work, emptyDir: {}}]", ""), []any{own, trust}, map[string]map[string]string{"main": nil}},
		{"containers and init containers", podOf("runtimeClassName: sallyport", "initContainers: [{name: first, image: x}, {name: side, image: x, restartPolicy: Always}]",
			"containers: [{name: a, image: x}, {name: b, image: x}]"), []any{trust}, map[string]map[string]string{"first": nil, "side": nil, "a": nil, "b": nil}},
		{"a variable of its own", pod("", "env: [{name: SSL_CERT_FILE, value: /own.pem}, {name: OTHER, value: x}]"), []any{trust},
			map[string]map[string]string{"main": {"SSL_CERT_FILE": "/own.pem", "OTHER": "x"}}},
		{"name servers of its own, as agent-sandbox sets them", pod("dnsPolicy: None, dnsConfig: {nameservers: [8.8.8.8], searches: [example.com]}", ""),
			[]any{trust}, map[string]map[string]string{"main": nil}},
		{"service links of its own", pod("enableServiceLinks: true", ""), []any{trust}, map[string]map[string]string{"main": nil}},
	} {
		t.Run(test.name, func(t *testing.T) {
			made, err := c.try(t.Context(), "agents", test.pod)
			must.OK(t, err)
			spec := made["spec"].(object)
			got := object{}
			for _, key := range []string{"dnsPolicy", "dnsConfig", "enableServiceLinks", "nodeSelector", "overhead", "volumes"} {
				got[key] = spec[key]
			}
			want := object{"dnsPolicy": "None", "dnsConfig": object{"nameservers": []any{"10.231.0.1"}}, "enableServiceLinks": false,
				"nodeSelector": object{"sallyport.dev/node": ""}, "overhead": object{"memory": "64Mi"}, "volumes": test.volumes}
			if diff := cmp.Diff(got, want); diff != "" {
				t.Errorf("got - want +\n%s", diff)
			}
			inits, _ := spec["initContainers"].([]any)
			containers := append(inits, spec["containers"].([]any)...)
			if len(containers) != len(test.env) {
				t.Errorf("%d containers, want %d", len(containers), len(test.env))
			}
			for _, container := range containers {
				name := kubeapi.At(container, "name").(string)
				env := map[string]string{}
				for _, e := range kubeapi.At(container, "env").([]any) {
					env[kubeapi.At(e, "name").(string)] = kubeapi.At(e, "value").(string)
				}
				want := map[string]string{}
				for _, v := range variables {
					want[v] = trusted
				}
				maps.Copy(want, test.env[name])
				if diff := cmp.Diff(env, want); diff != "" {
					t.Errorf("variables of %s, got - want +\n%s", name, diff)
				}
				mount := object{"name": "sallyport-trust", "mountPath": "/etc/sallyport", "readOnly": true}
				if diff := cmp.Diff(kubeapi.At(container, "volumeMounts"), any([]any{mount})); diff != "" {
					t.Errorf("mounts of %s, got - want +\n%s", name, diff)
				}
			}
		})
	}
	t.Run("a pod of no class", func(t *testing.T) {
		made, err := c.try(t.Context(), "agents", podOf("containers: [{name: main, image: x}]"))
		must.OK(t, err)
		if kubeapi.At(made, "spec", "dnsPolicy") != "ClusterFirst" || kubeapi.At(made, "spec", "volumes") != nil {
			t.Errorf("it was changed: %v", made["spec"])
		}
	})
}

// refusal is a pod that is refused.
type refusal struct {
	name string
	// spec and container are more of the pod's and of its container's.
	spec, container string
	message         string
	// lasting is what an ephemeral container cannot have.
	lasting bool
}

func volume(source string) string { return "volumes: [{name: v, " + source + "}]" }

const (
	network    = "Leave out hostNetwork, hostPID and hostIPC"
	privileged = "Leave out securityContext.privileged and capabilities.add"
	secrets    = "a secret never enters a sandbox"
	tokens     = "Set automountServiceAccountToken: false"
	kinds      = "a sandbox has volumes of the kinds"
)

var refusals = []refusal{
	{name: "hostNetwork", spec: "hostNetwork: true", message: network},
	{name: "hostPID", spec: "hostPID: true", message: network},
	{name: "hostIPC", spec: "hostIPC: true", message: network},
	{name: "privileged", container: "securityContext: {privileged: true}", message: privileged},
	{name: "a capability", container: "securityContext: {capabilities: {add: [NET_RAW]}}", message: privileged},
	{name: "hostPort", container: "ports: [{containerPort: 80, hostPort: 8080}]", message: "Leave out hostPort", lasting: true},

	{name: "the token of the service account", spec: "automountServiceAccountToken: true", message: tokens},
	{name: "a projected token", spec: volume("projected: {sources: [{serviceAccountToken: {path: t, audience: vault}}]}"), message: tokens},
	{name: "a secret as a volume", spec: volume("secret: {secretName: s}"), message: secrets},
	{name: "an optional secret as a volume", spec: volume("secret: {secretName: s, optional: true}"), message: secrets},
	{name: "a projected secret", spec: volume("projected: {sources: [{configMap: {name: c}}, {secret: {name: s}}]}"), message: secrets},
	{name: "secretKeyRef", container: "env: [{name: A, value: b}, {name: KEY, valueFrom: {secretKeyRef: {name: s, key: k}}}]", message: secrets},
	{name: "secretRef", container: "envFrom: [{configMapRef: {name: c}}, {secretRef: {name: s}}]", message: secrets},

	{name: "hostPath", spec: volume("hostPath: {path: /}"), message: kinds},
	{name: "a CSI driver", spec: volume("csi: {driver: secrets-store.csi.k8s.io, readOnly: true}"), message: kinds},
	{name: "NFS", spec: volume("nfs: {server: 192.0.2.9, path: /}"), message: kinds},
	{name: "iSCSI", spec: volume("iscsi: {targetPortal: \"192.0.2.9:3260\", iqn: iqn.2001-04.com.example:storage, lun: 0}"), message: kinds},
	{name: "flexVolume", spec: volume("flexVolume: {driver: example.com/d}"), message: kinds},
	{name: "gitRepo", spec: volume("gitRepo: {repository: \"https://git.example.com/r\"}"), message: kinds},
	{name: "a pod certificate", spec: volume("projected: {sources: [{podCertificate: {signerName: example.com/s, keyType: ED25519, credentialBundlePath: b}}]}"), message: kinds},

	{name: "a device of a driver", spec: "resourceClaims: [{name: d, resourceClaimName: c}]", message: "Leave out resourceClaims"},
	{name: "an extended resource, which can be a DeviceClass's", container: "resources: {limits: {example.com/nic: 1}}", message: "Leave out resourceClaims", lasting: true},
	{name: "a device of a class", container: "resources: {limits: {deviceclass.resource.kubernetes.io/nic: 1}}", message: "Leave out resourceClaims", lasting: true},
	{name: "an extended resource as a request", container: "resources: {requests: {example.com/nic: 1}, limits: {example.com/nic: 1}}", message: "Leave out resourceClaims", lasting: true},

	{name: "an HTTP probe elsewhere", container: "livenessProbe: {httpGet: {host: 192.0.2.9, port: 80}}", message: "Leave out host", lasting: true},
	{name: "a TCP probe elsewhere", container: "readinessProbe: {tcpSocket: {host: 192.0.2.9, port: 80}}", message: "Leave out host", lasting: true},
	{name: "a startup probe elsewhere", container: "startupProbe: {httpGet: {host: 192.0.2.9, port: 80}}", message: "Leave out host", lasting: true},
	{name: "a hook after the start that goes elsewhere", container: "lifecycle: {postStart: {httpGet: {host: 192.0.2.9, port: 80}}}", message: "Leave out host", lasting: true},
	{name: "a hook before the end that goes elsewhere", container: "lifecycle: {preStop: {httpGet: {host: 192.0.2.9, port: 80}}}", message: "Leave out host", lasting: true},
}

// admitted is what a sandbox may have.
var admitted = []refusal{
	{name: "emptyDir", spec: volume("emptyDir: {}")},
	{name: "a ConfigMap as a volume", spec: volume("configMap: {name: c}")},
	{name: "downwardAPI", spec: volume("downwardAPI: {items: [{path: l, fieldRef: {fieldPath: metadata.labels}}]}")},
	{name: "a claim", spec: volume("persistentVolumeClaim: {claimName: work}")},
	{name: "a claim of the pod's own", spec: volume("ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}}")},
	{name: "an image as a volume", spec: volume("image: {reference: registry.example.com/data:1}")},
	{name: "projected", spec: volume("projected: {sources: [{configMap: {name: c}}, {downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}}, {clusterTrustBundle: {name: more, path: p}}]}")},
	{name: "variables from a ConfigMap", container: "env: [{name: A, valueFrom: {configMapKeyRef: {name: c, key: k}}}, {name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}], envFrom: [{configMapRef: {name: c}}]"},
	{name: "an ordinary security context", spec: "securityContext: {runAsNonRoot: true, runAsUser: 1000, fsGroup: 1000}", container: "securityContext: {privileged: false, capabilities: {drop: [ALL]}}"},
	{name: "resources", container: "resources: {requests: {cpu: 1, memory: 1Gi}, limits: {memory: 2Gi, ephemeral-storage: 1Gi}}", lasting: true},
	{name: "a port and probes", container: "ports: [{containerPort: 80}], livenessProbe: {httpGet: {port: 80}}, readinessProbe: {exec: {command: [\"true\"]}}", lasting: true},
}

func testRefusals(t *testing.T, c cluster) {
	for _, r := range slices.Concat(refusals, admitted) {
		t.Run(r.name, func(t *testing.T) {
			if err := c.refused(t.Context(), "agents", pod(r.spec, r.container), r.message); err != nil {
				t.Error(err)
			}
			// The refusal is for the class: nothing else is wrong with it.
			other := podOf(r.spec, "containers: [{name: main, image: x, "+r.container+"}]")
			if err := c.refused(t.Context(), "agents", other, ""); err != nil {
				t.Errorf("without the class: %v", err)
			}
			if r.container == "" {
				return
			}
			kind := "restartPolicy: Always, " // init containers that last may have ports and probes
			inits := podOf("runtimeClassName: sallyport", r.spec, "initContainers: [{name: first, image: x, "+kind+r.container+"}]", "containers: [{name: main, image: x}]")
			if err := c.refused(t.Context(), "agents", inits, r.message); err != nil {
				t.Errorf("init container: %v", err)
			}
			second := podOf("runtimeClassName: sallyport", r.spec, "containers: [{name: main, image: x}, {name: second, image: x, "+r.container+"}]")
			if err := c.refused(t.Context(), "agents", second, r.message); err != nil {
				t.Errorf("second container: %v", err)
			}
		})
	}
}

// Ephemeral containers come by a subresource of their own.
func testEphemeral(t *testing.T, c cluster) {
	path := "/api/v1/namespaces/agents/pods"
	_, err := c.api.Create(t.Context(), path, pod("", ""))
	must.OK(t, err)
	_, err = c.api.Create(t.Context(), "/api/v1/namespaces/others/pods", podOf("containers: [{name: main, image: x}]"))
	must.OK(t, err)
	add := func(namespace, container string) error {
		patch := "{spec: {ephemeralContainers: [{name: debug, image: x, " + container + "}]}}"
		_, err := c.api.Do(t.Context(), http.MethodPatch, "/api/v1/namespaces/"+namespace+"/pods/pod/ephemeralcontainers?dryRun=All",
			"application/strategic-merge-patch+json", toJSON(t, patch))
		return err
	}
	for _, r := range slices.Concat(refusals, admitted) {
		if r.lasting || r.container == "" {
			continue
		}
		t.Run(r.name, func(t *testing.T) {
			if err := wants(add("agents", r.container), r.message); err != nil {
				t.Error(err)
			}
			if err := add("others", r.container); err != nil {
				t.Errorf("without the class: %v", err)
			}
		})
	}
	t.Run("trust", func(t *testing.T) {
		var made object
		for _, container := range []string{"{name: first, image: x, env: [{name: SSL_CERT_FILE, value: /own.pem}]}", "{name: second, image: x}"} {
			var err error
			made, err = c.api.Do(t.Context(), http.MethodPatch, path+"/pod/ephemeralcontainers",
				"application/strategic-merge-patch+json", toJSON(t, "{spec: {ephemeralContainers: ["+container+"]}}"))
			must.OK(t, err)
		}
		for _, container := range kubeapi.At(made, "spec", "ephemeralContainers").([]any) {
			env := map[string]any{}
			for _, e := range kubeapi.At(container, "env").([]any) {
				env[kubeapi.At(e, "name").(string)] = kubeapi.At(e, "value")
			}
			want := map[string]any{}
			for _, v := range variables {
				want[v] = trusted
			}
			if kubeapi.At(container, "name") == "first" {
				want["SSL_CERT_FILE"] = "/own.pem"
			}
			if diff := cmp.Diff(env, want); diff != "" {
				t.Errorf("variables, got - want +\n%s", diff)
			}
			if mounts := kubeapi.At(container, "volumeMounts").([]any); len(mounts) != 1 || kubeapi.At(mounts[0], "mountPath") != "/etc/sallyport" {
				t.Errorf("mounts %v", mounts)
			}
		}
	})
	t.Run("the class stays", func(t *testing.T) {
		for _, class := range []string{"null", `"other"`} {
			_, err := c.api.Patch(t.Context(), path+"/pod", kubeapi.MergePatch, `{"spec": {"runtimeClassName": `+class+`}}`)
			if err == nil {
				t.Errorf("runtimeClassName is %s now", class)
			}
		}
	})
	must.OK(t, c.api.Delete(t.Context(), path+"/pod?gracePeriodSeconds=0"))
}
