// Package env sets up what the end-to-end tests play on: the programs, built
// from this tree, and one daemon with its command line. It is for tests and for
// the bench only.
package env

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"sallyport/internal/test/must"
)

// Programs are the built binaries in one folder, with runsc and the base image
// beside them, where sallyport looks for them.
type Programs struct {
	Dir          string
	Runsc, Image string    // "" when `make setup` has not run
	Templates    Templates // "" when `make test` has not made them

	built bool // by this process, in a folder of its own
}

// prebuilt names a folder of programs that Build takes instead of building its own.
const prebuilt = "SALLYPORT_TEST_PROGRAMS"

// Build compiles the daemon and the agent, and further packages, whose last parts are the
// names of the programs. It leaves them in dir, where those are not linked again that are
// what they would be; "": in a folder of their own. root is the repository's, all paths are
// relative to the working directory.
func Build(dir, root string, also ...string) (*Programs, error) {
	p := &Programs{Dir: dir}
	if shared := os.Getenv(prebuilt); shared != "" {
		p.Dir = shared
		p.find(root)
		return p, nil
	}
	if dir == "" {
		var err error
		if p.Dir, err = os.MkdirTemp("", "sallyport-e2e-"); err != nil {
			return nil, err
		}
		p.built = true
	}
	if err := p.build(root, also); err != nil {
		return nil, errors.Join(err, p.Remove())
	}
	return p, nil
}

func (p *Programs) build(root string, also []string) error {
	args := []string{"build", "-buildvcs=false", "-ldflags=-w", "-o", p.Dir + "/", root + "/cmd/sallyport", root + "/cmd/sallyport-agent"}
	c := exec.Command("go", append(args, also...)...)
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", c, err, out)
	}
	p.find(root)
	for name, target := range map[string]string{"runsc": p.Runsc, "base.tar": p.Image} {
		link := filepath.Join(p.Dir, name)
		if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if target == "" {
			continue // the tests that need it say so
		}
		if err := os.Symlink(target, link); err != nil {
			return err
		}
	}
	return nil
}

// find looks for what setup.sh has made and the Makefile has linked into bin.
func (p *Programs) find(root string) {
	p.Runsc, _ = filepath.EvalSymlinks(root + "/bin/runsc")
	p.Image, _ = filepath.EvalSymlinks(root + "/bin/base.tar")
	templates, _ := filepath.EvalSymlinks(root + "/bin/engine")
	p.Templates = Templates(templates)
}

// Existing are those that make setup and make build have left in a folder.
func Existing(dir string) (*Programs, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	p := &Programs{Dir: dir}
	if p.Runsc, err = filepath.EvalSymlinks(filepath.Join(dir, "runsc")); err != nil {
		return nil, err
	}
	p.Image, err = filepath.EvalSymlinks(filepath.Join(dir, "base.tar"))
	return p, err
}

// Share has the processes that this one starts take these programs.
func (p *Programs) Share() error { return os.Setenv(prebuilt, p.Dir) }

// Remove deletes the folder that Build made.
func (p *Programs) Remove() error {
	if !p.built {
		return nil
	}
	return os.RemoveAll(p.Dir)
}

// Need skips a test where `make setup` has not run; where CI is true that is a
// failure.
func (p *Programs) Need(t testing.TB) {
	t.Helper()
	if p != nil && p.Runsc != "" && p.Image != "" {
		return
	}
	const reason = "bin/runsc or bin/base.tar is missing: run make setup"
	must.Lack(t, reason)
}
