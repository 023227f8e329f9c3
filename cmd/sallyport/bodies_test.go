package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestPolicyBodiesDocument runs the commands that docs/policy-bodies.md shows,
// under the configuration before each, with the document's Rego where that names
// the folder of it.
func TestPolicyBodiesDocument(t *testing.T) {
	text, err := os.ReadFile("../../docs/policy-bodies.md")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, b := range regexp.MustCompile("(?ms)^```rego\npackage sallyport.team.(\\w+)\n.*?^```$").FindAllStringSubmatch(string(text), -1) {
		files["policy.d/"+b[1]+".rego"] = strings.TrimSuffix(strings.TrimPrefix(b[0], "```rego\n"), "```")
	}
	ran := 0
	for _, b := range blocks.FindAllStringSubmatch(string(text), -1) {
		if b[1] == "yaml" {
			files["sallyport.yaml"] = b[2]
			policies(t, files)
			continue
		}
		command, want, _ := strings.Cut(b[2], "\n")
		got, _, err := run(t, "", strings.Fields(strings.TrimPrefix(command, "$ sallyport "))...)
		if diff := cmp.Diff(got, want); diff != "" {
			t.Errorf("%s (%v): %s", command, err, diff)
		}
		ran++
	}
	if ran != 2 || len(files) != 4 {
		t.Errorf("%d commands under %d files", ran, len(files))
	}
}
