//go:build kubernetes

package kubernetes

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"sallyport/internal/test/must"
	"sallyport/sandbox/pods"
)

// teams has the label team of each pod that it has heard of.
type teams struct {
	mu     sync.Mutex
	of     map[string]string
	synced bool
}

func (f *teams) Changed(p *pods.Pod) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.of[p.Name] = p.Labels["team"]
}

func (f *teams) Gone(p *pods.Pod) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.of, p.Name)
}

func (f *teams) Synced() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.synced = true
}

func (f *teams) are(name, team string, there bool) func() bool {
	return func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		got, ok := f.of[name]
		return f.synced && ok == there && got == team
	}
}

// The daemon's client reads pods, hears of labels as they change, also of those that changed
// while the API server was away, and taints a node, by a real API server.
func TestClient(t *testing.T) {
	c := Start(t)
	ctx, cancel := context.WithCancel(t.Context())
	config, err := c.Kubeconfig("daemon", "system:masters")
	must.OK(t, err)
	must.OK(t, c.Apply(ctx, "{apiVersion: v1, kind: Node, metadata: {name: n9}, spec: {podCIDR: 10.244.9.0/24, podCIDRs: [10.244.9.0/24], taints: [{key: other, effect: NoSchedule}]}}"))
	must.OK(t, c.Apply(ctx, "{apiVersion: v1, kind: Namespace, metadata: {name: agents}}"))
	must.Soon(t, "the service account", func() bool {
		_, err := c.Kubectl(ctx, "", "-n", "agents", "get", "serviceaccount", "default")
		return err == nil
	})
	kubectl := func(words ...string) string {
		t.Helper()
		out, err := c.Kubectl(ctx, "", words...)
		must.OK(t, err)
		return out
	}
	must.OK(t, c.Apply(ctx, "{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: agents, labels: {team: red}}, spec: {nodeName: n9, automountServiceAccountToken: false, containers: [{name: main, image: x}]}}"))

	client, err := pods.Connect(config, slog.New(slog.NewTextHandler(t.Output(), nil)))
	must.OK(t, err)
	p, err := client.Pod(ctx, "agents", "a")
	must.OK(t, err)
	if p.Labels["team"] != "red" || p.Spec.NodeName != "n9" || p.UID != kubectl("-n", "agents", "get", "pod", "a", "-o", "jsonpath={.metadata.uid}") || p.CreationTimestamp.IsZero() {
		t.Errorf("got %+v", p)
	}
	if _, err := client.Pod(ctx, "agents", "b"); err == nil || !strings.Contains(err.Error(), "not found") {
		t.Errorf("a pod that is not there: %v", err)
	}

	heard := &teams{of: map[string]string{}}
	done := make(chan error, 1)
	go func() { done <- client.Follow(ctx, "n9", heard) }()
	must.Soon(t, "the pod", heard.are("a", "red", true))
	kubectl("-n", "agents", "label", "pod", "a", "team=blue", "--overwrite")
	must.Soon(t, "its label", heard.are("a", "blue", true))
	must.OK(t, c.StopAPIServer())
	must.OK(t, c.StartAPIServer())
	kubectl("-n", "agents", "label", "pod", "a", "team=green", "--overwrite")
	must.Soon(t, "its label after a restart of the API server", heard.are("a", "green", true))
	kubectl("-n", "agents", "delete", "pod", "a", "--grace-period=0", "--force")
	must.Soon(t, "its end", heard.are("a", "", false))

	for _, on := range []bool{true, true, false} {
		must.Soon(t, "the taint", func() bool { return client.Taint(ctx, "n9", on) == nil }) // a controller may change the node in between
		want := "other"
		if on {
			want += " " + pods.NotReady
		}
		if got := kubectl("get", "node", "n9", "-o", "jsonpath={.spec.taints[?(@.effect=='NoSchedule')].key}"); !strings.HasPrefix(got, want) || !on && strings.Contains(got, pods.NotReady) {
			t.Errorf("taints %q, want %q", got, want)
		}
	}
	list, err := client.Local(ctx, "n9")
	must.OK(t, err)
	if len(list) < 2 {
		t.Errorf("local are %v, want the API server and the node's range of pods", list)
	}
	cancel()
	must.OK(t, <-done)
}
