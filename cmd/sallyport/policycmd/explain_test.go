package policycmd

import (
	"os"
	"testing"
)

// TestPolicyPathsDocument runs what docs/policy/paths.md shows.
func TestPolicyPathsDocument(t *testing.T) {
	text, err := os.ReadFile("../../../docs/policy/paths.md")
	if err != nil {
		t.Fatal(err)
	}
	policies(t, nil)
	prompt{t: t}.follow(string(text), 4)
}
