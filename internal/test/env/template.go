package env

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
)

// The engine keeps its images in these folders of dataDir/engine/docker (moby,
// layer and daemon/graphdriver/overlay2).
const (
	engineRoot = "engine/docker"
	imageNotes = "image"    // small files that describe them
	layers     = "overlay2" // a folder for each layer, with its files in diff
)

// Templates is a folder with sets of images, each as an engine keeps it. Engines that
// begin with a copy of one share the files of its layers.
type Templates string

// MakeTemplate has an engine import the base image, and archives of file systems by
// the name of their image, and keeps what it made as a set. A network namespace has
// room for one engine at a time.
func (t Templates) MakeTemplate(p *Programs, set string, archives map[string]string) (err error) {
	// Beside the set, so that what the engine made can be moved there.
	data, err := os.MkdirTemp(string(t), "making-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(data)) }()
	dir, err := os.MkdirTemp("", "sallyport-template-") // a socket's path is short
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	const config = `
dataDir: %[2]s
runDir: %[1]s/run
keyFile: %[1]s/key/key
network: {bridge: sptemplate0, subnet: 10.232.0.0/24}
engine: {runsc: %[3]s}
sandbox: {tarball: %[4]s}
`
	d := NewDaemon(p, dir)
	if err := d.Write("sallyport.yaml", fmt.Sprintf(config, dir, data, p.Runsc, p.Image)); err != nil {
		return err
	}
	err = d.Start()
	for image, archive := range archives {
		if err == nil {
			out, failed := exec.Command("docker", "-H", "unix://"+filepath.Join(dir, "run/engine/docker.sock"), "import", archive, image).CombinedOutput()
			if failed != nil {
				err = fmt.Errorf("importing %s: %w: %s", archive, failed, out)
			}
		}
	}
	if err = errors.Join(err, d.Down()); err != nil {
		return fmt.Errorf("%w\n%s", err, d.Log())
	}
	to := filepath.Join(string(t), set)
	if err := os.Mkdir(to, 0o755); err != nil {
		return err
	}
	for _, name := range []string{imageNotes, layers} {
		if err := os.Rename(filepath.Join(data, engineRoot, name), filepath.Join(to, name)); err != nil {
			return err
		}
	}
	return nil
}

// Copy gives the images of a set to an engine that has not run yet. It copies what the
// engine writes to and links the files of layers, which it only reads. Where nothing
// has been made, engines import what they need themselves.
func (t Templates) Copy(set, dataDir string) error {
	if t == "" {
		return nil
	}
	to, template := filepath.Join(dataDir, engineRoot), filepath.Join(string(t), set)
	if err := os.MkdirAll(to, 0o700); err != nil {
		return err
	}
	if err := os.CopyFS(filepath.Join(to, imageNotes), os.DirFS(filepath.Join(template, imageNotes))); err != nil {
		return err
	}
	from := filepath.Join(template, layers)
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		below, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		at := filepath.Join(to, layers, below)
		switch {
		case entry.Type() == fs.ModeSymlink:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			return os.Symlink(target, at)
		case entry.IsDir() && entry.Name() == "diff":
			if err := os.Symlink(path, at); err != nil {
				return err
			}
			return fs.SkipDir
		case entry.IsDir():
			return os.Mkdir(at, 0o710)
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(at, content, 0o600)
	})
}
