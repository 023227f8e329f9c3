package regotest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/cover"

	"sallyport/internal/test/must"
	"sallyport/policy"
	"sallyport/policy/engine"
	"sallyport/policy/rego"
)

// TestTesting runs the tests of data.sallyport.testing, which are in Rego.
func TestTesting(t *testing.T) {
	doc := policy.Document{
		Egress: []policy.EgressRule{
			{Name: "api", Destination: "api.example.com", Methods: []string{"GET"}, Paths: []string{"/v1/**"}},
			{Name: "body", Destination: "body.example.com", Body: &policy.BodyView{JSON: 100}},
		},
		EgressAuth:  []policy.EgressAuthRule{{Name: "key", Destination: "key.example.com", AuthRef: "key"}},
		Credentials: []policy.Credential{{Name: "key"}},
	}
	report, err := Run(t.Context(), doc, Options{Dirs: []string{"testdata"}})
	if err != nil || report.Passed < 12 {
		t.Fatalf("%d passed, %v", report.Passed, err)
	}
	for _, r := range report.Results {
		if r.Outcome != Passed {
			t.Errorf("%s: %s %s %+v", r.Name, r.Outcome, r.Error, r.Failure)
		}
	}
}

// TestLibrary runs the tests of the library, and holds that they cover it.
func TestLibrary(t *testing.T) {
	made, err := engine.NewTestbed(t.Context(), policy.Document{}, nil)
	must.OK(t, err)
	b, err := newBench(made)
	must.OK(t, err)
	files, err := filepath.Glob("../library/*.rego")
	must.OK(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		must.OK(t, err)
		if b.Modules[file], err = ast.ParseModule(file, string(text)); err != nil {
			t.Fatal(err)
		}
	}
	runner, err := b.runner("")
	must.OK(t, err)
	covered := cover.New()
	results, err := b.run(t.Context(), runner.SetCoverageQueryTracer(covered).SetCoverageRuns([]cover.Kind{}))
	must.OK(t, err)
	for _, r := range results {
		if r.Error != nil || !r.Pass() {
			t.Errorf("%s: %s.%s failed: %v", r.Location, r.Package, r.Name, r.Error)
		}
	}
	names := rego.LibraryNames()
	if len(names) != 6 || len(results) < 35 {
		t.Errorf("%d tests ran, of %v", len(results), names)
	}
	report := covered.Report(b.Modules)
	for _, name := range names {
		if f := report.Files["../library/"+name+".rego"]; f == nil || f.Coverage < 90 {
			t.Errorf("%s is not covered: %+v", name, f)
		}
	}
}
