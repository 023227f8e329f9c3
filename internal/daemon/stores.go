package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"sallyport/memory"
	"sallyport/sandbox"
	"sallyport/sandbox/disk"
)

const storeSize = 1 << 30

// openStores attaches the disks of the stores that sandboxes share, and makes those that
// are new. They stay attached while a sandbox uses them.
func (d *daemon) openStores(context.Context) error {
	if d.cfg.Engine.Kind == "none" {
		return nil
	}
	for _, s := range d.cfg.Memory.Stores {
		dir := filepath.Join(d.cfg.StoresDir(), s.Name)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		err := disk.Attach(dir)
		if !disk.Exists(dir) {
			size := int64(s.Size)
			if size == 0 {
				size = storeSize
			}
			if err = disk.Make(dir, size); err == nil {
				err = os.Chmod(memory.Dir(dir), 0o777) // for all users of the sandboxes
			}
		}
		if err != nil {
			return fmt.Errorf("store %s: %w", s.Name, err)
		}
		d.onClose(func() error {
			if err := disk.Detach(dir); !errors.Is(err, unix.EBUSY) {
				return err
			}
			return nil
		})
	}
	return nil
}

// stores are the mounts of the stores that a sandbox has.
func (d *daemon) stores(name string, tags map[string]string) (mounts []sandbox.Mount) {
	for _, s := range d.cfg.Memory.Stores {
		if has, writes := s.For(name, tags); has {
			mounts = append(mounts, sandbox.Mount{Source: memory.Dir(filepath.Join(d.cfg.StoresDir(), s.Name)), Target: "/stores/" + s.Name, ReadOnly: !writes})
		}
	}
	return mounts
}
