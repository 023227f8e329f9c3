package memorycmd

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sallyport/cmd/sallyport/cli"
	"sallyport/internal/test/must"
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

// A search among scripts brings the index up to date first, of which it says how far that is.
// A list of all of them needs no index.
func TestScriptsAreIndexedFirst(t *testing.T) {
	dir := t.TempDir()
	must.OK(t, os.WriteFile(filepath.Join(dir, "sallyport.yaml"), []byte(fmt.Sprintf("dataDir: %s\nrunDir: %s\n", dir, dir)), 0o600))
	l, err := net.Listen("unix", filepath.Join(dir, "sallyport.sock"))
	must.OK(t, err)
	var asked []string
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, path.Base(r.URL.Path))
		if path.Base(r.URL.Path) == "index" {
			_, _ = io.WriteString(w, `{"index": {}}`+"\n")
			return
		}
		_, _ = io.WriteString(w, "[]")
	})}
	t.Cleanup(func() { s.Close() })
	go s.Serve(l) //nolint:errcheck // it is closed
	for _, tt := range []struct{ args, want []string }{
		{[]string{"demo"}, []string{"find_scripts"}},
		{[]string{"demo", "deploy"}, []string{"index", "find_scripts"}},
	} {
		asked = nil
		c := cli.Root("", New)
		c.SetArgs(append([]string{"--config", filepath.Join(dir, "sallyport.yaml"), "memory", "find_scripts"}, tt.args...))
		c.SetOut(io.Discard)
		must.OK(t, c.Execute())
		if !slices.Equal(asked, tt.want) {
			t.Errorf("%q: the daemon was asked for %q, want %q", tt.args, asked, tt.want)
		}
	}
}
