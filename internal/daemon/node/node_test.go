package node

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sallyport/internal/config"
	"sallyport/internal/test/must"
	"sallyport/sandbox/pods"
)

// No pod comes to a node whose addresses are not known, and those that run never have them as
// upstreams: the API server's own is known at once, those that come later soon, and the next daemon
// knows what the last one did.
func TestNodeIsLearntBeforePods(t *testing.T) {
	taints, asked, away, address := 1, 0, false, "192.0.2.4"
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPatch {
			taints = 0
		} else if asked++; asked == 1 || away {
			http.Error(w, "{}", http.StatusServiceUnavailable)
			return
		}
		taint := map[string]string{"key": pods.NotReady, "effect": "NoSchedule"}
		_ = json.NewEncoder(w).Encode(map[string]any{
			"spec":   map[string]any{"taints": slices.Repeat([]any{taint}, taints)},
			"status": map[string]any{"addresses": []map[string]string{{"address": address}}},
		})
	}))
	t.Cleanup(s.Close)
	dir := t.TempDir()
	file := filepath.Join(dir, "kubeconfig")
	authority := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
	must.OK(t, os.WriteFile(file, fmt.Appendf(nil, `{current-context: x, contexts: [{name: x, context: {cluster: c, user: u}}], users: [{name: u, user: {token: t}}],
		clusters: [{name: c, cluster: {server: %q, certificate-authority-data: %q}}]}`, s.URL, authority), 0o600))
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	cluster, err := pods.Connect(file, logger)
	must.OK(t, err)
	next := func() *Node {
		t.Helper()
		o := Options{Config: config.Pods{Node: "n1"}, Cluster: cluster, Dir: dir, Logger: logger}
		n := &Node{Options: o, intermediate: &intermediate{Options: o}} // whose files do not change
		must.OK(t, n.recall())
		return n
	}
	is := func(n *Node, when string, wantTaints int, open bool, want ...string) {
		t.Helper()
		var got []string
		for _, p := range n.Local() {
			got = append(got, p.String())
		}
		err := n.Learnt()
		if !slices.Equal(got, want) || taints != wantTaints || (err == nil) != open || strings.Contains(log.String(), "not known yet") == open {
			t.Errorf("%s: %v are refused, %d taints, a pod gets %v; want %v, %d, and that a pod may come is %v. Logged:\n%s", when, got, taints, err, want, wantTaints, open, log.String())
		}
		log.Reset()
	}
	n := next()
	n.look(t.Context(), time.Now())
	is(n, "a node that is not told", 1, false, "127.0.0.1/32")
	n.look(t.Context(), time.Now())
	is(n, "told", 0, true, "127.0.0.1/32", "192.0.2.4/32")
	before := asked
	n.look(t.Context(), time.Now())
	if asked != before {
		t.Error("a node that is settled is asked about again")
	}
	address = "192.0.2.5"
	n.look(t.Context(), time.Now().Add(learnEvery))
	is(n, "another address", 0, true, "127.0.0.1/32", "192.0.2.4/32", "192.0.2.5/32")
	away = true
	n.look(t.Context(), time.Now().Add(learnEvery))
	is(n, "away again", 0, true, "127.0.0.1/32", "192.0.2.4/32", "192.0.2.5/32")
	s.Close()
	n = next()
	n.look(t.Context(), time.Now())
	is(n, "the next daemon, without the API server", 0, false, "127.0.0.1/32", "192.0.2.4/32", "192.0.2.5/32")
}
