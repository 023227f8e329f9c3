package policycmd

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"sallyport/internal/test/must"
	"sallyport/policy/regotest"
)

// TestPolicyExamples holds that every example passes its checks and its tests,
// and that nearly all of it is tested.
func TestPolicyExamples(t *testing.T) {
	files, err := filepath.Glob("../../../examples/policies/*/sallyport.yaml")
	must.OK(t, err)
	if len(files) < 4 {
		t.Fatalf("found only %v", files)
	}
	for _, file := range files {
		t.Run(filepath.Base(filepath.Dir(file)), func(t *testing.T) {
			if out, status, err := run(t, "", "policy", "check", "--fail-on", "warning", file); status != 0 {
				t.Errorf("check: %v: %s", err, out)
			}
			if out, status, err := run(t, "", "policy", "test", "--config", file, "--threshold", "90"); status != 0 {
				t.Errorf("test: %v: %s", err, out)
			}
		})
	}
}

func TestPolicyTestStatus(t *testing.T) {
	policies(t, map[string]string{
		"sallyport.yaml":      "policy: {dir: good.d}\n",
		"none.yaml":           "dataDir: /nowhere\n",
		"bad.yaml":            "egres: []\n",
		"good.d/x.rego":       "package sallyport.team.x\n\ndeny contains \"a\" if input.request.size > 1\n\ndeny contains \"b\" if input.request.size > 2\n",
		"good.d/x_test.rego":  "package sallyport.team.x_test\n\nimport data.sallyport.team.x\nimport data.sallyport.testing\n\ntest_a if x.deny == {\"a\"} with input as testing.post(\"https://h.example.com/\", {\"size\": 2})\n",
		"fail.d/y_test.rego":  "package sallyport.team.y_test\n\ntest_a if false\n",
		"error.d/y_test.rego": "package sallyport.team.y_test\n\ntest_a if to_number(\"x\") == 1\n",
		"wrong.d/y_test.rego": "package sallyport.team.y_test\n\ntest_a if\n",
		"empty.d/y.rego":      "package sallyport.team.y\n",
	})
	for _, tt := range []struct {
		args   string
		status int
		says   string
	}{
		{"--config sallyport.yaml", 0, "1 passed, 0 failed"},
		{"--config sallyport.yaml good.d fail.d", 1, "1 passed, 1 failed"},
		{"--config sallyport.yaml fail.d", 1, "fail.d/y_test.rego:3:"},
		{"--config sallyport.yaml error.d", 1, "ERROR"},
		{"--config sallyport.yaml --threshold 90", 1, "66.7%"},
		{"--config sallyport.yaml --threshold 50", 0, "not line 5"},
		{"--config sallyport.yaml --run nothing", 2, ""},
		{"--config sallyport.yaml --run (", 2, ""},
		{"--config sallyport.yaml --threshold 101", 2, ""},
		{"--config sallyport.yaml wrong.d", 2, ""},
		{"--config sallyport.yaml nowhere.d", 2, ""},
		{"--config sallyport.yaml empty.d", 2, ""},
		{"--config none.yaml", 2, ""},
		{"--config bad.yaml good.d", 2, ""},
	} {
		t.Run(tt.args, func(t *testing.T) {
			out, status, err := run(t, "", append([]string{"policy", "test"}, strings.Fields(tt.args)...)...)
			if status != tt.status || !strings.Contains(out, tt.says) {
				t.Errorf("got %d, %v, want %d and %q:\n%s", status, err, tt.status, tt.says, out)
			}
		})
	}
	out, status, _ := run(t, "", "policy", "test", "--config", "sallyport.yaml", "--coverage", "-o", "json", "good.d", "fail.d")
	var report regotest.Report
	if err := json.Unmarshal([]byte(out), &report); err != nil || status != 1 {
		t.Fatalf("%d %v in %s", status, err, out)
	}
	if report.Passed != 1 || report.Failed != 1 || report.Coverage.Missed != 1 || report.Results[0].Failure == nil {
		t.Errorf("got %+v", report)
	}
}
