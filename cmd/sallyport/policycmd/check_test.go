package policycmd

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sallyport/internal/test/must"
	"sallyport/policy/finding"
)

// policies writes files below a new folder, which becomes the working directory.
func policies(t *testing.T, files map[string]string) {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, files)
	t.Chdir(dir)
	t.Setenv("SALLYPORT_CONFIG", "")
}

// write writes files below a folder.
func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		file := filepath.Join(dir, name)
		must.OK(t, os.MkdirAll(filepath.Dir(file), 0o700))
		must.OK(t, os.WriteFile(file, []byte(text), 0o600))
	}
}

// TestPolicyCheck holds what is checked by what is named, and the exit status.
func TestPolicyCheck(t *testing.T) {
	policies(t, map[string]string{
		"sallyport.yaml":       "policy: {dir: policy.d}\negress: [{destination: '*.github.io'}]\n",
		"policy.d/team.rego":   "package sallyport.team.x\n\ndeny contains \"x\" if input.request.method == \"PUT\"\n",
		"other.d/team.rego":    "package sallyport.team.x\n\ndenies contains \"x\" if input.request.method == \"PUT\"\n",
		"other.d/bad/bad.rego": "package sallyport.team.y\n\ndeny contains \"y\" if http.send({}).status_code == 200\n",
		"bad.yaml":             "egres: []\n",
		"note.yaml":            "egress: [{destination: a.example.com, action: tunnel}]\n",
	})
	for _, tt := range []struct {
		args   string
		status int
		kinds  string
	}{
		{"sallyport.yaml", 0, "SP0110"},
		{".", 0, "SP0110"},
		{"--config sallyport.yaml", 0, "SP0110"},
		{"sallyport.yaml --fail-on warning", 1, "SP0110"},
		{"note.yaml --fail-on warning", 0, "SP0114"},
		{"note.yaml --fail-on note", 1, "SP0114"},
		{"bad.yaml", 1, "SP0003"},
		{"policy.d", 0, ""},
		{"policy.d --fail-on note", 0, ""},
		{"other.d/team.rego", 0, "SP0306"},
		{"other.d", 1, "SP0303 SP0306"},
		{"sallyport.yaml other.d", 1, "SP0303 SP0306 SP0110"},
		{"nowhere.d", 1, "SP0001"},
		{"nowhere.yaml", 1, "SP0001"},
		{"sallyport.yaml bad.yaml", 2, ""},
		{"sallyport.yaml --fail-on everything", 2, ""},
		{"sallyport.yaml -o xml", 2, ""},
	} {
		t.Run(tt.args, func(t *testing.T) {
			args := append([]string{"policy", "check"}, strings.Fields(tt.args)...)
			if !strings.Contains(tt.args, " -o ") {
				args = append(args, "-o", "json")
			}
			out, status, err := run(t, "", args...)
			if status != tt.status {
				t.Errorf("got %d, %v, want %d", status, err, tt.status)
			}
			if status == 2 {
				return
			}
			var findings []finding.Finding
			if err := json.Unmarshal([]byte(out), &findings); err != nil {
				t.Fatalf("%v in %s", err, out)
			}
			var kinds []string
			for _, f := range findings {
				kinds = append(kinds, string(f.Kind))
			}
			if got := strings.Join(kinds, " "); got != tt.kinds {
				t.Errorf("got %s, want %s", got, tt.kinds)
			}
			var log struct{ Runs []struct{ Results []any } }
			args[len(args)-1] = "sarif"
			if out, _, _ = run(t, "", args...); json.Unmarshal([]byte(out), &log) != nil || len(log.Runs) != 1 || len(log.Runs[0].Results) != len(findings) {
				t.Errorf("SARIF: got %s", out)
			}
		})
	}
}
