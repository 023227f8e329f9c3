package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"sallyport/internal/config"
	"sallyport/internal/durable"
	"sallyport/memory"
	"sallyport/sandbox"
	"sallyport/sandbox/disk"
	"sallyport/sandbox/docker"
)

// ErrInUse says that a daemon has the data directory.
var ErrInUse = errors.New("another daemon uses")

// Lock takes the data directory, which must be there: two on one would tear
// its log.
func Lock(cfg *config.Config) (release func() error, err error) {
	lock, err := os.OpenFile(filepath.Join(cfg.DataDir, "lock"), os.O_CREATE|os.O_RDWR|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = lock.Close()
		return nil, fmt.Errorf("%w %s: stop it with `sallyport down`, or choose another --data-dir", ErrInUse, cfg.DataDir)
	}
	return lock.Close, nil
}

// mostReserve is kept for the host by default, in bytes, unless a twentieth of
// its file system is less.
const mostReserve = 2 << 30

// tenantsPart is the part of its file system that a tenant may have by default.
const tenantsPart = 4

// openSpace is the file system that sandboxes' disks take from, what is kept of it for
// the host, and how much of it a tenant may have, in bytes.
func openSpace(cfg *config.Config) (s disk.Space, reserve, perTenant int64, err error) {
	s = disk.Space{Dir: cfg.SandboxesDir()}
	if err := durable.MkdirAll(s.Dir, 0o700); err != nil {
		return s, 0, 0, err
	}
	size, err := s.Size()
	if err != nil {
		return s, 0, 0, err
	}
	reserve = cmp.Or(int64(cfg.Sandbox.Reserve), min(mostReserve, size/20))
	return s, reserve, cmp.Or(int64(cfg.Sandbox.StoragePerTenant), size/tenantsPart), nil
}

// InUse is what runs of the engine, and is mounted below the data directory.
func InUse(cfg *config.Config) ([]string, error) {
	left, err := docker.Leftovers(docker.EngineConfig{DataDir: cfg.DataDir, RunDir: cfg.RunDir})
	if err != nil {
		return nil, err
	}
	points, err := docker.MountedBelow(cfg.SandboxesDir())
	return append(left, points...), err
}

// storeSize is that of a store without a size, in bytes.
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
			if err = disk.Make(dir, cmp.Or(int64(s.Size), storeSize)); err == nil {
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
