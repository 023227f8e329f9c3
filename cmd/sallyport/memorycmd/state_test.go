package memorycmd

import (
	"strings"
	"testing"

	"sallyport/memory/layer"
)

// A list of scripts says which are not trusted, and which have changed.
func TestScriptsHaveTheirMarks(t *testing.T) {
	var b strings.Builder
	printScripts(&b, []layer.Script{
		{Name: "plain.sh", Description: "Deploy."},
		{Name: "odd.sh", Description: "Clean.", Changed: true, Untrusted: "learned after contact with evil.example"},
	})
	want := `SCRIPT    DESCRIPTION  LAST SUCCESS  MARKS
plain.sh  Deploy.      -             -
odd.sh    Clean.       -             changed: differs from what was registered; untrusted: learned after contact with evil.example
`
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
}
