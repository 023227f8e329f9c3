package config_test

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"sallyport/internal/config"
	"sallyport/internal/test/must"
	"sallyport/policy/engine"
	"sallyport/policy/finding"
)

var update = flag.Bool("update", false, "write what is found into the golden files")

// unpack writes the files of an archive below a new folder, but for the findings in them.
func unpack(t *testing.T, a *txtar.Archive) string {
	t.Helper()
	dir := t.TempDir()
	for _, f := range a.Files {
		if f.Name == "want" {
			continue
		}
		file := filepath.Join(dir, f.Name)
		must.OK(t, os.MkdirAll(filepath.Dir(file), 0o700))
		must.OK(t, os.WriteFile(file, f.Data, 0o600))
	}
	return dir
}

// TestGolden holds what Check finds in testdata/check: each file is named after
// the Kind that it has an example of, with what else it is about after a dash, and each Kind has a file.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/check/*.txtar")
	must.OK(t, err)
	shown := map[finding.Kind]bool{}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			a, err := txtar.ParseFile(file)
			must.OK(t, err)
			want := &a.Files[slices.IndexFunc(a.Files, func(f txtar.File) bool { return f.Name == "want" })].Data
			dir := unpack(t, a)
			findings := config.Check(t.Context(), filepath.Join(dir, "sallyport.yaml"))
			var got strings.Builder
			name, _, _ := strings.Cut(strings.TrimSuffix(filepath.Base(file), ".txtar"), "-")
			own := finding.Kind(name)
			for _, f := range findings {
				got.WriteString(strings.ReplaceAll(f.Error(), dir+"/", "") + "\n")
				shown[own] = shown[own] || f.Kind == own
				if f.Kind == "" || f.Fix == "" {
					t.Errorf("%v has no id, or does not say what to write instead", f)
				}
				if f.Position.Line == 0 && f.Kind != finding.Unreadable && f.Kind != finding.BadData {
					t.Errorf("%v has no line", f)
				}
			}
			if own != "clean" && !shown[own] {
				t.Errorf("no %s is found", own)
			}
			if *update {
				*want = []byte(got.String())
				must.OK(t, os.WriteFile(file, txtar.Format(a), 0o644))
				return
			}
			if diff := cmp.Diff(got.String(), string(*want)); diff != "" {
				t.Errorf("with -update it would be: %s", diff)
			}
			// A daemon takes what has no errors, and nothing else.
			failed := slices.ContainsFunc(findings, func(f finding.Finding) bool { return f.Severity == finding.Error })
			c, err := config.Load(filepath.Join(dir, "sallyport.yaml"))
			if b := c.Document.Policy.Bundle; err == nil && b != nil && b.File != "" {
				c.Document.Policy.Verified, err = config.ReadBundle(*b)
			} else if b != nil {
				c.Document.Policy.Bundle = nil // a server's has to be fetched first
			}
			if err == nil {
				_, err = engine.Compile(t.Context(), c.Document, engine.Options{})
			}
			if failed != (err != nil) {
				t.Errorf("there are errors: %v, and the daemon says %v", failed, err)
			}
		})
	}
	for _, m := range finding.Meanings() {
		if !shown[m.Kind] {
			t.Errorf("no golden file shows %s %s", m.Kind, m.Name)
		}
	}
}

var heading = regexp.MustCompile(`(?m)^### (SP\d{4}) (\S+) · (error|warning|note)\n\n(.+)`)

// TestKindsAreDocumented holds docs/policy/check.md to the list of Kinds.
func TestKindsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/policy/check.md")
	must.OK(t, err)
	var got, want []string
	for _, m := range heading.FindAllStringSubmatch(string(text), -1) {
		got = append(got, strings.Join(m[1:4], " "))
		if len(m[4]) < 30 {
			t.Errorf("%s is hardly explained", m[1])
		}
	}
	for _, m := range finding.Meanings() {
		want = append(want, string(m.Kind)+" "+m.Name+" "+m.Severity.String())
	}
	if diff := cmp.Diff(got, want); diff != "" {
		t.Errorf("the headings of docs/policy/check.md: %s", diff)
	}
}
