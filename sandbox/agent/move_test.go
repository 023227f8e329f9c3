package agent

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"sallyport/internal/test/must"
)

// With the kernel's flag and without it a move is the same: what is there stays, and
// what could not be moved is where it was, with nothing left behind.
func TestMoveNew(t *testing.T) {
	for name, by := range map[string]func(from, to string) error{
		"flag": func(from, to string) error { return move(from, to, false) }, "none": moveNew,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			at := func(name string) string { return filepath.Join(dir, name) }
			for _, n := range []string{"file", "other"} {
				must.OK(t, os.WriteFile(at(n), []byte(n), 0o640))
			}
			must.OK(t, errors.Join(os.MkdirAll(at("folder/in"), 0o751), os.Mkdir(at("empty"), 0o700), os.Symlink("nowhere", at("link"))))
			for _, tt := range []struct {
				from, to string
				want     error
			}{
				{"file", "other", fs.ErrExist},
				{"file", "folder", fs.ErrExist},
				{"file", "link", fs.ErrExist},
				{"folder", "empty", fs.ErrExist},
				{"folder", "file", fs.ErrExist},
				{"folder", "folder/in/itself", unix.EINVAL},
				{"none", "new", fs.ErrNotExist},
				{"file", "no/where", fs.ErrNotExist},
				{"file", "moved", nil},
				{"link", "led", nil},
				{"folder", "away", nil},
			} {
				if err := by(at(tt.from), at(tt.to)); !errors.Is(err, tt.want) {
					t.Errorf("%s to %s: got %v, want %v", tt.from, tt.to, err, tt.want)
				}
			}
			var got []string
			all, err := filepath.Glob(at("*"))
			must.OK(t, err)
			for _, n := range all {
				got = append(got, filepath.Base(n))
			}
			if want := []string{"away", "empty", "led", "moved", "other"}; !slices.Equal(got, want) {
				t.Errorf("there are %q, want %q", got, want)
			}
			info, err := os.Stat(at("away"))
			if to, lerr := os.Readlink(at("led")); err != nil || info.Mode().Perm() != 0o751 || to != "nowhere" || lerr != nil {
				t.Errorf("the folder is %v, %v; the link leads to %q, %v", info, err, to, lerr)
			}
		})
	}
}
