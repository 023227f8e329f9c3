package engine_test

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sallyport/internal/test/must"
)

// opaTool is OPA's own command line at the version that decides here.
func opaTool(t *testing.T) string {
	t.Helper()
	version := regexp.MustCompile(`github.com/open-policy-agent/opa (\S+)`)
	var versions []string
	for _, file := range []string{"../../go.mod", "../../internal/setup/opa/go.mod"} {
		text, err := os.ReadFile(file)
		must.OK(t, err)
		versions = append(versions, version.FindStringSubmatch(string(text))[1])
	}
	if versions[0] != versions[1] {
		t.Fatalf("OPA decides at %s and its tool is %s: change internal/setup/opa/go.mod too", versions[0], versions[1])
	}
	out, err := exec.Command("../../internal/setup/opa/build.sh").Output()
	if err != nil {
		must.Lack(t, "OPA cannot be built here: %v", err)
	}
	return strings.TrimSpace(string(out))
}

// published lists the Rego that OPA's own tools are to accept: ours, and the
// topmost folders with a team's.
func published(t *testing.T) (files, folders []string) {
	t.Helper()
	files, err := filepath.Glob("*.rego")
	must.OK(t, err)
	for _, root := range []string{".", "..", "../../examples", "../../docs"} {
		err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case !e.IsDir() || path == root:
				return nil
			case path == "../engine", path == "../regotest":
				return fs.SkipDir
			case path == "testdata":
				return nil
			}
			if found, _ := filepath.Glob(filepath.Join(path, "*.rego")); len(found) == 0 {
				return nil
			}
			folders = append(folders, path)
			return fs.SkipDir
		})
		must.OK(t, err)
	}
	if len(files) < 2 || !slices.Contains(folders, "testdata/team") {
		t.Fatalf("found only %v and %v", files, folders)
	}
	return files, folders
}

var listing = regexp.MustCompile("(?ms)^```rego\n(.*?)^```$")

// TestOPAAccepts holds that what a security team runs on its own Rego passes on
// ours, on every example, and on what the documents show.
func TestOPAAccepts(t *testing.T) {
	opa := opaTool(t)
	files, folders := published(t)
	all := append(files, folders...)
	shown := t.TempDir()
	documents, err := filepath.Glob("../../docs/*/*.md")
	must.OK(t, err)
	var listings []string
	for _, file := range documents {
		text, err := os.ReadFile(file)
		must.OK(t, err)
		for i, b := range listing.FindAllStringSubmatch(string(text), -1) {
			name := filepath.Join(shown, filepath.Base(file)+string(rune('a'+i))+".rego")
			must.OK(t, os.WriteFile(name, []byte(b[1]), 0o600))
			listings = append(listings, name)
		}
	}
	if len(listings) == 0 {
		t.Error("no document shows Rego: are the listings still marked?")
	}
	run := func(want string, args ...string) {
		t.Helper()
		out, err := exec.Command(opa, args...).CombinedOutput()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(string(out), want)) {
			t.Errorf("opa %s: got %v, want %q:\n%s", strings.Join(args, " "), err, want, out)
		}
	}
	run("", append([]string{"fmt", "--list", "--fail", "../regotest"}, append(all, listings...)...)...)
	run("", append([]string{"check", "--strict", "--ignore", "*_test.rego", "--schema", "../schema/input.json"}, all...)...)
	for _, name := range listings { // each by itself: their packages may be the same
		if text, _ := os.ReadFile(name); !strings.Contains(string(text), "data.sallyport.testing") {
			run("", "check", "--strict", "--schema", "../schema/input.json", name)
		}
	}
	run("", "test", "decision.rego", "decision_test.rego", "testdata/team")
	// A test that asks data.sallyport.testing fails under plain OPA. It never passes unasked.
	run("undefined function data.sallyport.testing", "test", "../library")
	run("undefined function sallyport.inputs", "test", "../library", "../regotest/testing.rego")

	// And what is wrong is seen: the one file is the schema of input, and in the
	// folder each schema has its name.
	wrong := filepath.Join(shown, "wrong.rego")
	write := func(text string) {
		t.Helper()
		must.OK(t, os.WriteFile(wrong, []byte(text), 0o600))
	}
	write("package sallyport.team.x\n\ndeny contains \"x\" if input.reqest.method == \"GET\"\n")
	run("reqest", "check", "--strict", "--schema", "../schema/input.json", wrong)
	write("# METADATA\n# scope: package\n# schemas:\n# - input: schema.input\n# - data: schema.data\npackage sallyport.team.x\n\ndeny contains \"x\" if input.reqest.method == \"GET\"\n")
	run("reqest", "check", "--strict", "--schema", "../schema", wrong)
}
