package manifest_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"sallyport/sandbox/manifest"
)

// Names without number are refused before they are all in memory, and many are not.
func TestNamesWithoutNumber(t *testing.T) {
	if testing.Short() {
		t.Skip("makes 300,000 names")
	}
	dir := t.TempDir()
	long := strings.Repeat("x", 240)
	file := ""
	add := func(folder string, n int) {
		must(t, os.Mkdir(filepath.Join(dir, folder), 0o700))
		for i := range n {
			at := filepath.Join(dir, folder, fmt.Sprintf("%s%06d", long, i))
			if i%60000 != 0 { // what an inode of ext4 can have
				must(t, os.Link(file, at))
				continue
			}
			must(t, os.WriteFile(at, nil, 0o600))
			file = at
		}
	}
	root := manifest.Root{At: "/", Folder: dir}
	add("a", 150000)
	add("b", 150000) // beside each other they are not held together
	if err := manifest.Compare(t.Context(), []manifest.Root{root}, func(manifest.Change) error { return nil }); err != nil {
		if errors.Is(err, syscall.EMLINK) {
			t.Skip(err)
		}
		t.Fatal(err)
	}
	must(t, os.Rename(filepath.Join(dir, "b"), filepath.Join(dir, "a", long+"075000b")))
	err := manifest.Compare(t.Context(), []manifest.Root{root}, func(manifest.Change) error { return nil })
	if err == nil || !strings.Contains(err.Error(), "more files than can be listed") {
		t.Errorf("got %v", err)
	}
}
