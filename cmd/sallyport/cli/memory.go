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
func InMemory[T any](cfg *config.Config, name string, read func(dir string) (T, error)) (v T, err error) {
	if err := sandbox.CheckName(name); err != nil {
		return v, err
	}
	folder := filepath.Join(cfg.SandboxesDir(), name)
	release, err := disk.Hold(folder)
	if err != nil {
		return v, err
	}
	v, err = read(memory.Dir(folder))
	return v, errors.Join(err, release())
}
