package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// A full disk would be a trap: to start on it, the kernel has to make folders
// and files there (ovl_workdir_create in fs/overlayfs/super.c), and only who runs
// on it can remove anything. So a little of it is kept out of the sandbox's sight,
// given up for a start, and taken again before anything of the sandbox's runs.
const (
	spare      = "spare"
	spareFiles = 32
	spareBytes = 256 << 10
)

// Yield makes room for a start on a disk that is attached. It may be called again.
func Yield(folder string) error {
	if !Exists(folder) {
		return nil
	}
	at := filepath.Join(folder, point, spare)
	if err := os.RemoveAll(at); err != nil {
		return fmt.Errorf("making room on the sandbox's disk: %w", err)
	}
	// A removed file's room is free once the journal has it (jbd2).
	f, err := os.Open(filepath.Dir(at))
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(f.Fd())), f.Close())
}

// Settle takes again what Yield gave up. It may be called again.
func Settle(folder string) error {
	if !Exists(folder) {
		return nil
	}
	at := filepath.Join(folder, point, spare)
	if err := os.Mkdir(at, 0o700); errors.Is(err, fs.ErrExist) {
		return nil
	} else if err != nil {
		return err
	}
	for i := range spareFiles {
		if err := os.WriteFile(filepath.Join(at, strconv.Itoa(i)), nil, 0o600); err != nil {
			return err
		}
	}
	f, err := os.Create(filepath.Join(at, "bytes"))
	if err != nil {
		return err
	}
	return errors.Join(unix.Fallocate(int(f.Fd()), 0, 0, spareBytes), f.Close())
}
