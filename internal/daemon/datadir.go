package daemon

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"sallyport/internal/config"
	"sallyport/internal/durable"
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
