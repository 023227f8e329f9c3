package e2e

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"sallyport/internal/test/must"
)

// mirror is an index of Python packages (PEP 503), as companies run one beside
// their repositories: one version of each, in wheels (PEP 427).
type mirror struct {
	names  []string
	wheels map[string][]byte // by path
	paths  map[string]string // by name
}

// newMirror has a package that needs all of the others.
func newMirror(t testing.TB, name string, needs ...string) *mirror {
	t.Helper()
	m := &mirror{names: append([]string{name}, needs...), wheels: map[string][]byte{}, paths: map[string]string{}}
	for _, n := range m.names {
		var wants []string
		if n == name {
			wants = needs
		}
		file, data := wheel(t, n, wants)
		sum := sha256.Sum256(data)
		digest := hex.EncodeToString(sum[:])
		// As on PyPI: a digest, and then the file's name.
		m.paths[n] = fmt.Sprintf("/packages/%s/%s/%s/%s", digest[:2], digest[2:4], digest[4:], file)
		m.wheels[m.paths[n]] = data
	}
	return m
}

// wheel is a package that imports as its own name.
func wheel(t testing.TB, name string, needs []string) (file string, data []byte) {
	t.Helper()
	info := name + "-1.0.dist-info/"
	metadata := "Metadata-Version: 2.1\nName: " + name + "\nVersion: 1.0\n"
	for _, n := range needs {
		metadata += "Requires-Dist: " + n + "\n"
	}
	files := [][2]string{
		{name + ".py", "print('" + name + " is here')\n"},
		{info + "METADATA", metadata},
		{info + "WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"},
	}
	record := info + "RECORD,,\n"
	for _, f := range files {
		record += f[0] + ",,\n"
	}
	var out bytes.Buffer
	z := zip.NewWriter(&out)
	for _, f := range append(files, [2]string{info + "RECORD", record}) {
		w, err := z.Create(f[0])
		must.OK(t, err)
		if _, err := w.Write([]byte(f[1])); err != nil {
			t.Fatal(err)
		}
	}
	must.OK(t, z.Close())
	return name + "-1.0-py3-none-any.whl", out.Bytes()
}

func (m *mirror) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if data, ok := m.wheels[r.URL.Path]; ok {
		http.ServeContent(w, r, r.URL.Path, time.Time{}, bytes.NewReader(data))
		return
	}
	name, ok := strings.CutPrefix(strings.TrimSuffix(r.URL.Path, "/"), "/simple/")
	if !ok || !slices.Contains(m.names, name) || r.Method != http.MethodGet {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "text/html")
	path := m.paths[name]
	fmt.Fprintf(w, "<!DOCTYPE html><html><body><a href=\"%s\">%s</a></body></html>\n", path, path[strings.LastIndex(path, "/")+1:])
}
