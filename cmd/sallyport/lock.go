package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"sallyport/internal/config"
)

// errDaemon says that a daemon has the data directory.
var errDaemon = errors.New("another daemon uses")

// lockData takes the data directory, which must be there: two on one would tear
// its log.
func lockData(cfg *config.Config) (release func() error, err error) {
	lock, err := os.OpenFile(filepath.Join(cfg.DataDir, "lock"), os.O_CREATE|os.O_RDWR|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = lock.Close()
		return nil, fmt.Errorf("%w %s: stop it with `sallyport down`, or choose another --data-dir", errDaemon, cfg.DataDir)
	}
	return lock.Close, nil
}
