package regotest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sallyport/internal/test/must"
	"sallyport/policy"
	"sallyport/policy/finding"
)

// folder writes files below a new one.
func folder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	return dir
}

// tried are a team's files: tests that pass, fail, cannot be evaluated and are
// put off.
func tried(t *testing.T) (dir string, doc policy.Document) {
	dir = folder(t, map[string]string{
		"uploads.rego": `package sallyport.team.uploads

deny contains "too large" if input.request.size > data.most

deny contains "never" if input.sandbox.tags.team == "x"
`,
		"most.yaml": "most: 100\n",
		"uploads_test.rego": `package sallyport.team.uploads_test

import data.sallyport.team.uploads
import data.sallyport.testing

test_small if {
	count(uploads.deny) == 0 with input as testing.post("https://api.example.com/v1", {"size": 100})
}

test_wrong if {
	given := testing.post("https://api.example.com/v1", {"size": 101})
	most := 7
	count(uploads.deny) == most with input as given
}

test_every if {
	every path in ["/v1/a", "/v2/a"] {
		testing.decide(testing.get(concat("", ["https://api.example.com", path]))).action == "allow"
	}
}

test_cases[name] if {
	some name, path in {"in": "/v1/a", "out": "/v2/a"}
	print("trying", path)
	testing.decide(testing.get(concat("", ["https://api.example.com", path]))).action == "allow"
}

test_broken if to_number("x") == 1

todo_test_later if false
`,
	})
	return dir, policy.Document{
		EgressAuth:  []policy.EgressAuthRule{{Name: "api", Destination: "api.example.com", Paths: []string{"/v1/**"}, AuthRef: "key"}},
		Egress:      []policy.EgressRule{{Name: "mine", Destination: "10.1.0.0/16", Ports: []uint16{443}, Sandboxes: policy.Selector{Tags: map[string]string{"team": "a"}}}},
		Credentials: []policy.Credential{{Name: "key"}},
		Policy:      policy.Source{Dir: dir},
	}
}

func TestRun(t *testing.T) {
	dir, doc := tried(t)
	report, err := Run(t.Context(), doc, Options{Coverage: true, Trace: true})
	must.OK(t, err)
	if report.Passed != 1 || report.Failed != 4 || report.Skipped != 1 {
		t.Errorf("got %d passed, %d failed, %d skipped", report.Passed, report.Failed, report.Skipped)
	}
	got := map[string]Outcome{}
	results := map[string]Result{}
	var order []int
	for _, r := range report.Results {
		name := strings.TrimPrefix(r.Name, "sallyport.team.uploads_test.")
		got[name], results[name] = r.Outcome, r
		order = append(order, r.Position.Line)
	}
	want := map[string]Outcome{
		"test_small": Passed, "test_wrong": Failed, "test_every": Failed, "test_cases": Failed, "test_broken": Errored, "todo_test_later": Skipped,
	}
	if diff := cmp.Diff(got, want); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(order, []int{6, 10, 16, 22, 28, 30}); diff != "" {
		t.Error(diff)
	}
	wrong := results["test_wrong"].Failure
	if wrong == nil {
		t.Fatal("a test that fails does not say where")
	}
	if want := (finding.Position{File: filepath.Join(dir, "uploads_test.rego"), Line: 13, Column: 2}); wrong.Position != want {
		t.Errorf("got %v, want %v", wrong.Position, want)
	}
	for _, part := range []string{"count(uploads.deny) == most", "7", "too large"} {
		if !strings.Contains(wrong.Expression, part) {
			t.Errorf("%q is not in\n%s", part, wrong.Expression)
		}
	}
	input, _ := wrong.Input.(map[string]any)
	if size, _ := input["request"].(map[string]any); size == nil || len(wrong.Locals) != 2 || len(wrong.Trace) < 5 {
		t.Errorf("got input %v, locals %v and a trace of %d", wrong.Input, wrong.Locals, len(wrong.Trace))
	}
	// In an every, it is the round that failed; the input is the decision's.
	every := results["test_every"].Failure
	if every == nil || every.Position.Line != 18 || !strings.Contains(every.Expression, "deny") {
		t.Fatalf("got %+v", every)
	}
	if request := every.Input.(map[string]any)["request"].(map[string]any); request["path"] != "/v2/a" {
		t.Errorf("got %v", every.Input)
	}
	if _, derived := every.Input.(map[string]any)["rules"]; derived {
		t.Error("what Sallyport derives is shown as input")
	}
	cases := results["test_cases"]
	if diff := cmp.Diff(cases.Cases, []string{"out"}); diff != "" || !strings.Contains(cases.Printed, "trying /v1/a") {
		t.Errorf("%s %q", diff, cases.Printed)
	}
	if broken := results["test_broken"]; !strings.Contains(broken.Error, "to_number") {
		t.Errorf("got %+v", broken)
	}
	coverage := report.Coverage
	if len(coverage.Files) != 1 || coverage.Percent != 50 {
		t.Fatalf("got %+v", coverage)
	}
	if diff := cmp.Diff(coverage.Files[0].Missed, []int{5}); diff != "" {
		t.Error(diff)
	}
}

func TestRunSome(t *testing.T) {
	_, doc := tried(t)
	report, err := Run(t.Context(), doc, Options{Run: "test_small$"})
	if err != nil || len(report.Results) != 1 || report.Coverage != nil {
		t.Errorf("got %+v, %v", report, err)
	}
	if _, err := Run(t.Context(), doc, Options{Run: "("}); err == nil {
		t.Error("( is taken for a regular expression")
	}
	// Folders that are named take the place of the document's.
	other := folder(t, map[string]string{"y_test.rego": `package sallyport.team.y_test

import data.sallyport.testing

test_document if {
	given := testing.from("a", {"team": "a"}, testing.get("https://10.1.2.3/"))
	testing.decide(given).rule == "mine"
	testing.decide(testing.from("a", {"team": "b"}, given)).action == "deny"
}
`})
	report, err = Run(t.Context(), doc, Options{Dirs: []string{other}})
	if err != nil || report.Passed != 1 || report.Failed != 0 {
		t.Errorf("got %+v, %v", report, err)
	}
}

// TestRunRefuses holds that what would not be loaded is not tested.
func TestRunRefuses(t *testing.T) {
	for _, tt := range []struct{ name, file, text, says string }{
		{"withheld", "x.rego", "package sallyport.team.x\n\ndeny contains \"x\" if http.send({}).status_code == 200\n", "http.send"},
		{"withheld in a test", "x_test.rego", "package sallyport.team.x_test\n\ntest_x if http.send({}).status_code == 200\n", "http.send"},
		{"helpers of tests in a policy", "x.rego", "package sallyport.team.x\n\nimport data.sallyport.testing\n\ndeny contains \"x\" if testing.get(\"https://h/\") == 1\n", "testing"},
		{"another package", "x_test.rego", "package sallyport\n\ntest_x if true\n", "sallyport.team"},
		{"strict", "x_test.rego", "package sallyport.team.x_test\n\ntest_x if {\n\ty := 1\n}\n", "unused"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := folder(t, map[string]string{tt.file: tt.text})
			report, err := Run(t.Context(), policy.Document{}, Options{Dirs: []string{dir}})
			if err == nil || !strings.Contains(err.Error(), tt.says) || !strings.Contains(err.Error(), tt.file) {
				t.Errorf("got %+v, %v, want an error about %s", report, err, tt.says)
			}
		})
	}
	if _, err := Run(t.Context(), policy.Document{Egress: []policy.EgressRule{{Destination: "*"}}}, Options{Dirs: []string{t.TempDir()}}); err == nil {
		t.Error("a document that cannot be used is tested")
	}
}

// TestRunWithABundle holds that a bundle is tested with the rest, its tests included.
func TestRunWithABundle(t *testing.T) {
	dir := folder(t, map[string]string{"x_test.rego": `package sallyport.team.x_test

import data.sallyport.testing

test_both if testing.decide(testing.get("https://a.example.com/")).reason == "bundled"
`})
	doc := policy.Document{
		Egress: []policy.EgressRule{{Destination: "a.example.com"}},
		Policy: policy.Source{Dir: dir, Verified: &policy.Bundle{Files: []policy.BundleFile{
			{Name: "b.rego", Text: []byte("package sallyport.team.b\n\ndeny contains \"bundled\" if input.request\n")},
			{Name: "b_test.rego", Text: []byte("package sallyport.team.b_test\n\ntest_b if true\n")},
		}}},
	}
	report, err := Run(t.Context(), doc, Options{Coverage: true})
	if err != nil || report.Passed != 2 || report.Failed != 0 || report.Coverage.Percent != 100 {
		t.Errorf("got %+v, %v", report, err)
	}
}
