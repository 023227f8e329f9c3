package engine

import (
	"path/filepath"
	"testing"

	"sallyport/policy"
)

func exported(t *testing.T, doc policy.Document, dir, folder string) {
	t.Helper()
	b, err := NewTestbed(t.Context(), doc, []string{dir})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Export(folder); err != nil {
		t.Fatal(err)
	}
}

// TestExport holds that OPA's own runner sees with an export what tests run with.
func TestExport(t *testing.T) {
	for _, name := range []string{"registries", "git", "llm", "storage"} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join("..", "..", "examples", "policies", name, "policy.d")
			export := filepath.Join(t.TempDir(), "opa")
			exported(t, policy.Document{}, dir, export)
			if passed, _ := runRego(t, dir, filepath.Join(export, "testing.rego"), filepath.Join(export, "builders.rego"), filepath.Join(export, "floor.rego"), filepath.Join(export, name+".rego")); passed < 4 {
				t.Errorf("without the document, %d tests passed", passed)
			}
		})
	}
	for _, tt := range []struct {
		name, action string
		doc          policy.Document
	}{
		{"nothing", "deny", policy.Document{}},
		{"a rule", "allow", policy.Document{Egress: []policy.EgressRule{{Name: "a", Destination: "a.example.com", Sandboxes: policy.Selector{Names: []string{"test"}}}}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := folder(t, map[string]string{"x_test.rego": `package sallyport.team.x_test

import data.sallyport.testing

test_decide if testing.decide(testing.get("https://a.example.com/")).action == "` + tt.action + `"
`, "x.rego": "package sallyport.team.x\n\nallow contains {\"rule\": input.destination.host} if input.sandbox.name == \"x\"\n"})
			export := t.TempDir()
			exported(t, tt.doc, dir, export)
			if passed, _ := runRego(t, dir, export); passed != 1 {
				t.Errorf("%d tests ran", passed)
			}
		})
	}
}

// TestExportOfABundle holds that an export has the bundle's Rego, data and tests, and
// that the next one, without, has nothing of it.
func TestExportOfABundle(t *testing.T) {
	dir := folder(t, map[string]string{"x_test.rego": `package sallyport.team.x_test

import data.sallyport.testing

test_both if testing.decide(testing.get("https://a.example.com/")).reason == "bundled"
`})
	doc := policy.Document{
		Egress: []policy.EgressRule{{Destination: "a.example.com"}},
		Policy: policy.Source{Dir: dir, Verified: &policy.Bundle{Files: []policy.BundleFile{
			{Name: "/team/b.rego", Text: []byte("package sallyport.team.b\n\ndeny contains data.words.why if input.request\n")},
			{Name: "/team/b_test.rego", Text: []byte("package sallyport.team.b_test\n\ntest_b if data.words.why\n")},
			{Name: "data.json", Text: []byte(`{"words": {"why": "bundled"}}`)},
		}}},
	}
	export := t.TempDir()
	exported(t, doc, dir, export)
	if passed, _ := runRego(t, dir, export); passed != 2 {
		t.Errorf("%d tests ran", passed)
	}
	doc.Policy.Verified = nil
	exported(t, doc, dir, export)
	if left, _ := filepath.Glob(filepath.Join(export, "bundle-*")); len(left) > 0 {
		t.Errorf("%q are of the bundle", left)
	}
}
