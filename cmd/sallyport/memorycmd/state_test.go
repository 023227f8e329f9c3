package memorycmd

import (
	"slices"
	"strings"
	"testing"

	"sallyport/memory"
	"sallyport/memory/layer"
)

// A list of scripts says which are not trusted, and which have changed.
func TestScriptsHaveTheirMarks(t *testing.T) {
	var b strings.Builder
	printScripts(&b, []layer.Script{
		{Name: "plain.sh", Description: "Deploy."},
		{Name: "odd.sh", Description: "Clean.", Changed: true, Marks: memory.Marks{Untrusted: "learned after contact with evil.example"}},
	})
	want := `SCRIPT    DESCRIPTION  LAST SUCCESS  MARKS
plain.sh  Deploy.      -             -
odd.sh    Clean.       -             changed: differs from what was registered; untrusted: learned after contact with evil.example
`
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
}

// A search among scripts brings the index up to date first, of which it says how far that is.
// A list of all of them needs no index.
func TestScriptsAreIndexedFirst(t *testing.T) {
	var asked []string
	config := daemonOf(t, func(operation string) string {
		if asked = append(asked, operation); operation == "index" {
			return `{"index": {}}`
		}
		return "[]"
	})
	for _, tt := range []struct{ args, want []string }{
		{[]string{"demo"}, []string{"find_scripts"}},
		{[]string{"demo", "deploy"}, []string{"index", "find_scripts"}},
	} {
		asked = nil
		run(t, config, append([]string{"find_scripts"}, tt.args...)...)
		if !slices.Equal(asked, tt.want) {
			t.Errorf("%q: the daemon was asked for %q, want %q", tt.args, asked, tt.want)
		}
	}
}
