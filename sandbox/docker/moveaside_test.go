package docker

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/container"
	"golang.org/x/sys/unix"

	"sallyport/internal/test/must"
)

// A file moved aside finds a name at once, however many the sandbox has taken and however long
// it is.
func TestAside(t *testing.T) {
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	must.OK(t, err)
	defer root.Close()
	long := strings.Repeat("l", 255)
	for i, p := range []string{"x", long, "x"} {
		must.OK(t, os.WriteFile(filepath.Join(dir, p), nil, 0o600))
		to, err := moveAside(root, p)
		must.OK(t, err)
		if first := strings.HasSuffix(to, ".aside-1"); first != (i < 2) || i == 2 && to == "x.aside-2" {
			t.Errorf("got %s", to)
		}
		if _, err := os.Lstat(filepath.Join(dir, p)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is there: %v", p, err)
		}
	}
}

// A folder that is removed as a whole, as an overlay that renames folders leaves it,
// keeps nothing from starting.
func TestVetAccountsWithoutEtc(t *testing.T) {
	must.Root(t)
	layer := t.TempDir()
	for _, err := range []error{
		os.Mkdir(filepath.Join(layer, "diff"), 0o700),
		unix.Mknod(filepath.Join(layer, "diff", "etc"), unix.S_IFCHR, 0),
	} {
		if err != nil {
			t.Fatal(fmt.Errorf("preparing: %w", err))
		}
	}
	r := &Runtime{cfg: Config{Log: slog.New(slog.DiscardHandler)}}
	info := container.InspectResponse{Config: &container.Config{Labels: map[string]string{labelLayer: layer}}}
	if err := r.checkAccounts(info); err != nil {
		t.Error(err)
	}
}
