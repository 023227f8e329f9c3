package cli

import (
	"errors"
	"path/filepath"

	"sallyport/internal/config"
	"sallyport/memory"
	"sallyport/sandbox"
	"sallyport/sandbox/disk"
)

// InMemory reads in the folder of a sandbox's memory, which is held in sight
// meanwhile: the disk of one that sleeps is not.
func InMemory[T any](cfg *config.Config, name string, read func(*memory.Folder) (T, error)) (v T, err error) {
	if err := sandbox.CheckName(name); err != nil {
		return v, err
	}
	folder := filepath.Join(cfg.SandboxesDir(), name)
	release, err := disk.Hold(folder)
	if err != nil {
		return v, err
	}
	f, err := memory.Open(memory.Dir(folder))
	if err == nil {
		v, err = read(f)
		err = errors.Join(err, f.Close())
	}
	return v, errors.Join(err, release())
}
