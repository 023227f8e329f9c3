package e2e

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"sallyport/internal/test/must"
)

// doctor names each requirement with what it found.
func testDoctor(t *testing.T, r *rig) {
	out := r.ok("doctor")
	for _, want := range []string{"kernel", "BTF", "cgroup", "bpffs", "Docker", "gVisor", "bridge netfilter", "disk"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

// The metrics count what happened, under labels that hold no name of anybody's.
func testMetrics(t *testing.T, r *rig) {
	r.inside("agent", "curl -sS https://api.example.test/; curl -sS https://unlisted.example.test/")
	resp, err := http.Get("http://127.0.0.1:9464/metrics")
	must.OK(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	must.OK(t, err)
	text := string(body)
	for _, want := range []string{"sallyport_audit_events_total", "sallyport_datapath_dropped_packets_total", "sallyport_datapath_passed_packets_total", "sallyport_flows_open", "sallyport_flows_unmatched_total", "sallyport_gateway_"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in the metrics", want)
		}
	}
	for _, never := range []string{"example.test", "agent", r.key} {
		if strings.Contains(text, never) {
			t.Errorf("%q is in the metrics", never)
		}
	}
}

// explain says the rule that decides, what would be injected, and for what is
// denied the nearest rule and the part that it failed on.
func testExplain(t *testing.T, r *rig) {
	for _, c := range []struct {
		method, url string
		want        []string
	}{
		{"GET", "https://api.example.test/v1/models", []string{"ALLOW", "key@api.example.test", "injects   key"}},
		{"GET", "https://denied.example.test/", []string{"DENY", "denied.example.test"}},
		{"GET", "http://api.example.test/", []string{"DENY", "fails on"}},
	} {
		out := r.ok("policy", "explain", "--sandbox", "agent", c.method, c.url)
		for _, w := range c.want {
			if !strings.Contains(out, w) {
				t.Errorf("%s %s: no %q in\n%s", c.method, c.url, w, out)
			}
		}
	}
}
