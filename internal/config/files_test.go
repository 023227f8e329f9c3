package config_test

import (
	"os"
	"path/filepath"
	"testing"

	"sallyport/internal/config"
	"sallyport/internal/test/must"
)

// A print changes with whatever could make a policy another, and with nothing
// else.
func TestPrint(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	write := func(name, text string) { t.Helper(); must.OK(t, os.WriteFile(path(name), []byte(text), 0o600)) }
	must.OK(t, os.MkdirAll(path("d/sub/..v1"), 0o700))
	must.OK(t, os.MkdirAll(path("d/.git"), 0o700))
	must.OK(t, os.MkdirAll(path("v2"), 0o700))
	write("file", "a")
	write("d/a.rego", "a")
	write("d/sub/..v1/b.rego", "b")
	write("d/sub/..v1/c.rego", "c")
	must.OK(t, os.Symlink("..v1/b.rego", path("d/sub/b.rego")))
	must.OK(t, os.Symlink("d", path("link")))
	last := config.NewPrint(path("file"), path("link"))
	for _, step := range []struct {
		name    string
		do      func()
		changes bool
	}{
		{"nothing", func() {}, false},
		{"a file written in place", func() { write("file", "b") }, true},
		{"a file in the place of another", func() { write("new", "b"); must.OK(t, os.Rename(path("new"), path("file"))) }, true},
		{"a hidden folder", func() { write("d/.git/x", "x") }, false},
		{"a file in the folder", func() { write("d/sub/new.rego", "x") }, true},
		{"one that leaves it", func() { must.OK(t, os.Remove(path("d/sub/new.rego"))) }, true},
		{"a link that is turned", func() {
			must.OK(t, os.Symlink("..v1/c.rego", path("d/sub/tmp")))
			must.OK(t, os.Rename(path("d/sub/tmp"), path("d/sub/b.rego")))
		}, true},
		{"what a link leads to", func() { write("d/sub/..v1/c.rego", "changed") }, true},
		{"the folder's own link", func() {
			must.OK(t, os.Symlink("v2", path("tmp")))
			must.OK(t, os.Rename(path("tmp"), path("link")))
		}, true},
		{"a file that goes", func() { must.OK(t, os.Remove(path("file"))) }, true},
		{"nothing again", func() {}, false},
	} {
		step.do()
		now := config.NewPrint(path("file"), path("link"))
		if (now != last) != step.changes {
			t.Errorf("%s: changes is %v", step.name, now != last)
		}
		last = now
	}
}
