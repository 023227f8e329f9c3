package policycmd

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sallyport/internal/test/clitest"
	"sallyport/internal/test/must"
	"sallyport/policy/replay"
)

// A run in observe mode becomes a proposal, which replays the run without denying
// anything of it.
func TestPolicyLearn(t *testing.T) {
	dir, file := clitest.Configured(t, rules+"# until we know what it does\nobserve:\n- {sandboxes: {names: [demo]}, until: "+
		time.Now().Add(time.Hour).UTC().Format(time.RFC3339)+"}\n")
	ids := recordedOf(t, file, "GET https://docs.example.com/guide/a", "POST https://docs.example.com/comments/12", "POST https://docs.example.com/comments/13",
		"GET https://api.example.com/v1", "GET https://10.0.0.1/")
	before, err := os.ReadFile(file)
	must.OK(t, err)
	out, status, err := run(t, "", "policy", "learn", "--config", file, "--sandbox", "demo", "--diff")
	for _, want := range []string{
		"of 5 decisions that were carried the policy allows 2; 1 rule proposed, for 2",
		"not proposed: 1 to 10.0.0.1:443: a private or special address",
		"+# 2 requests, as " + ids[1] + ", " + ids[2], `+  destination: "docs.example.com"`, `+  methods: ["POST"]`, `+  - "/comments/*"`, `+  sandboxes: {names: ["demo"]}`,
	} {
		if status != 0 || !strings.Contains(out, want) {
			t.Errorf("%q is not in %s (%d, %v)", want, out, status, err)
		}
	}
	out, _, err = run(t, "", "policy", "learn", "--config", file, "-o", "json")
	var l lesson
	if i := strings.Index(out, "{"); i < 0 || json.Unmarshal([]byte(out[i:]), &l) != nil || l.NewlyDenied != 0 || l.Covered != 2 {
		t.Fatalf("got %+v, %v: %s", l, err, out)
	}
	if !strings.HasPrefix(l.Document, string(before[:strings.Index(string(before), "egressAuth")])) || !strings.Contains(l.Document, "# until we know") {
		t.Errorf("what was there is not: %s", l.Document)
	}
	candidate := filepath.Join(dir, "candidate.yaml")
	write(t, dir, map[string]string{"candidate.yaml": l.Document})
	if out, status, err := run(t, "", "policy", "check", "--config", candidate); status != 0 {
		t.Errorf("got %s, %v", out, err)
	}
	// A flagged request would be denied.
	out, status, _ = run(t, "", "policy", "replay", "--config", candidate, "--fail-on", "denied", "-o", "json")
	var r replay.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil || status != 1 || r.ByChange[replay.NewlyDenied] != 1 || r.Groups[0].Destination != "10.0.0.1:443" {
		t.Errorf("got %d, %s, %v", status, out, err)
	}
	after, err := os.ReadFile(file)
	if err != nil || string(after) != string(before) {
		t.Errorf("learning has changed the configuration: %v", err)
	}
}
