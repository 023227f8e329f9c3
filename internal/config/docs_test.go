package config_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sallyport/internal/config"
	"sallyport/internal/test/must"
	"sallyport/policy/finding"
)

var block = regexp.MustCompile("(?ms)^```(yaml|rego)\n(.*?)^```$")

// Every configuration that the documents show can be used as it stands, beside
// the Rego that the same document shows.
func TestDocuments(t *testing.T) {
	documents, err := filepath.Glob("../../docs/*/*.md")
	must.OK(t, err)
	checked := 0
	for _, path := range append(documents, "../../docs/kubernetes.md", "../../README.md") {
		text, err := os.ReadFile(path)
		must.OK(t, err)
		dir := t.TempDir()
		write := func(name, text string) string {
			t.Helper()
			file := filepath.Join(dir, name)
			must.OK(t, os.MkdirAll(filepath.Dir(file), 0o700))
			must.OK(t, os.WriteFile(file, []byte(text), 0o600))
			return file
		}
		blocks := block.FindAllStringSubmatch(string(text), -1)
		for _, b := range blocks {
			if b[1] == "rego" {
				write("policy.d/team.rego", b[2])
			}
		}
		for _, b := range blocks {
			if b[1] != "yaml" {
				continue
			}
			examples := []string{b[2]}
			if strings.HasPrefix(b[2], "inject:") { // a line is a part of a rule
				examples = nil
				for line := range strings.Lines(b[2]) {
					examples = append(examples, "egressAuth:\n- destination: api.example.com\n  authRef: key\n  "+line+"credentials: [{name: key}]\n")
				}
			}
			for _, example := range examples {
				checked++
				for _, f := range config.Check(t.Context(), write("sallyport.yaml", example)) {
					if f.Severity == finding.Error {
						t.Errorf("%s: %v\n%s", filepath.Base(path), f, example)
					}
				}
			}
		}
	}
	if checked < 8 {
		t.Errorf("%d configurations were found: are they still marked as yaml?", checked)
	}
}
