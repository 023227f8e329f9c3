package env

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// The engine keeps its images in these folders of dataDir/engine/docker (moby,
// layer and daemon/graphdriver/overlay2).
const (
	engineRoot = "engine/docker"
	imageNotes = "image"    // small files that describe them
	layers     = "overlay2" // a folder for each layer, with its files in diff
)

// Template is a folder with the images of an engine, in which the base image has
// been imported. Engines that begin with Copy share the files of its layers.
type Template string

// MakeTemplate has a daemon import the base image and keeps what its engine made
// in a new folder. Each daemon of a network namespace needs one of its own.
func MakeTemplate(p *Programs, to string) (err error) {
	dir, err := os.MkdirTemp("", "sallyport-template-")
	if err != nil {
		return err
	}
	d := NewDaemon(p, dir)
	const config = `
dataDir: %[1]s/data
runDir: %[1]s/run
keyFile: %[1]s/key/key
network: {bridge: sptemplate0, subnet: 10.232.0.0/24}
engine: {runsc: %[2]s}
sandbox: {tarball: %[3]s}
`
	if err := d.Write("sallyport.yaml", fmt.Sprintf(config, dir, p.Runsc, p.Image)); err != nil {
		return err
	}
	err = d.Start()
	if err = errors.Join(err, d.Down()); err != nil {
		return fmt.Errorf("%w\n%s", err, d.Log())
	}
	if err := os.Mkdir(to, 0o755); err != nil {
		return err
	}
	for _, name := range []string{imageNotes, layers} {
		if err := os.Rename(filepath.Join(dir, "data", engineRoot, name), filepath.Join(to, name)); err != nil {
			return err
		}
	}
	return os.RemoveAll(dir)
}

// Copy gives the images to an engine that has not run yet. It copies what the
// engine writes to and links the files of layers, which it only reads.
func (t Template) Copy(dataDir string) error {
	to := filepath.Join(dataDir, engineRoot)
	if t == "" {
		return nil // the daemon imports the image itself
	}
	if err := os.MkdirAll(to, 0o700); err != nil {
		return err
	}
	if err := os.CopyFS(filepath.Join(to, imageNotes), os.DirFS(filepath.Join(string(t), imageNotes))); err != nil {
		return err
	}
	from := filepath.Join(string(t), layers)
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
