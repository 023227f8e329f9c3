package manifest_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sallyport/sandbox/manifest"
)

// Names without number are refused before they are all in memory, and many are not.
func TestNamesWithoutNumber(t *testing.T) {
	defer manifest.Names(2 << 20)()
	dir := t.TempDir()
	long := strings.Repeat("x", 240)
	for _, folder := range []string{"a", "b"} { // beside each other they are not held together
		must(t, os.Mkdir(filepath.Join(dir, folder), 0o700))
		for i := range 5000 {
			must(t, os.WriteFile(filepath.Join(dir, folder, fmt.Sprintf("%s%06d", long, i)), nil, 0o600))
		}
	}
	root := manifest.Root{At: "/", Folder: dir}
	must(t, manifest.Compare(t.Context(), []manifest.Root{root}, func(manifest.Change) error { return nil }))
	must(t, os.Rename(filepath.Join(dir, "b"), filepath.Join(dir, "a", long+"002500b")))
	err := manifest.Compare(t.Context(), []manifest.Root{root}, func(manifest.Change) error { return nil })
	if err == nil || !strings.Contains(err.Error(), "more files than can be listed") {
		t.Errorf("got %v", err)
	}
}
