package archive_test

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"sallyport/internal/test/must"
	"sallyport/sandbox/agent/archive"
)

// A sandbox's modes open nothing to others on the host: they may read what it says that they
// may, and write nothing.
func TestForeignModes(t *testing.T) {
	for mode, want := range map[int64]os.FileMode{0o777: 0o755, 0o666: 0o644, 0o7777: 0o755, 0o640: 0o640, 0o600: 0o600, 0o772: 0o750} {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		must.OK(t, w.WriteHeader(&tar.Header{Name: "d/", Typeflag: tar.TypeDir, Mode: mode | 0o700}))
		must.OK(t, w.WriteHeader(&tar.Header{Name: "d/f", Typeflag: tar.TypeReg, Mode: mode}))
		must.OK(t, w.Close())
		dir := t.TempDir()
		again := bytes.NewReader(b.Bytes())
		_, err := archive.Unpack(t.Context(), dir, &b, archive.Options{Foreign: true})
		must.OK(t, err)
		for name, want := range map[string]os.FileMode{"d": want | 0o700, "d/f": want} {
			if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode()&^os.ModeDir != want {
				t.Errorf("%s of mode %o: %v, %v, want %v", name, mode, info.Mode(), err, want)
			}
		}
		own := filepath.Join(t.TempDir(), "own")
		must.OK(t, os.MkdirAll(filepath.Join(own, "d"), 0o700))
		_, err = archive.Unpack(t.Context(), own, again, archive.Options{Foreign: true})
		must.OK(t, err)
		if info, err := os.Stat(filepath.Join(own, "d")); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("a folder that was there: %v, %v", info.Mode(), err)
		}
	}
}
