package main

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestPolicyPathsDocument runs what docs/policy-paths.md shows. The policy's
// revision, which any change of Sallyport's own Rego changes, stands there as ….
func TestPolicyPathsDocument(t *testing.T) {
	text, err := os.ReadFile("../../docs/policy-paths.md")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, b := range fences.FindAllStringSubmatch(string(text), -1) {
		if b[2] != "" {
			files[b[2]] = b[3]
		}
	}
	policies(t, files)
	out, _, err := run(t, "", "policy", "explain", "--config", "sallyport.yaml", "--offline", "--sandbox", "demo", "GET", "https://example.com/")
	revision := regexp.MustCompile(`policy    [0-9a-f]{12}`).FindString(out)
	if revision == "" {
		t.Fatalf("no revision in %s, %v", out, err)
	}
	if ran := follow(t, strings.ReplaceAll(string(text), "policy    …", revision), ""); ran != 4 {
		t.Errorf("%d commands were run", ran)
	}
}
