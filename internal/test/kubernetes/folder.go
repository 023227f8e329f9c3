package kubernetes

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// folderName begins the names of folders of clusters, and of their cgroups.
const folderName = "sallyport-cluster-"

// locks are of the folders of this process. They go with it, so that a folder that nobody has
// locked is a leftover.
var locks struct {
	sync.Mutex
	files map[string]*os.File
}

// newFolder makes the folder of a cluster, and takes those away that are left from tests that
// were killed.
func newFolder() (string, error) {
	old, err := filepath.Glob(filepath.Join(os.TempDir(), folderName+"*"))
	if err != nil {
		return "", err
	}
	for _, dir := range old {
		if lock(dir) != nil {
			continue // its test runs, or another one is taking it away
		}
		if err := removeFolder(dir); err != nil {
			return "", err
		}
	}
	dir, err := os.MkdirTemp("", folderName)
	if err != nil {
		return "", err
	}
	return dir, lock(dir)
}

func lock(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return err
	}
	locks.Lock()
	defer locks.Unlock()
	if locks.files == nil {
		locks.files = map[string]*os.File{}
	}
	locks.files[dir] = f
	return nil
}

// removeFolder takes a folder away that this process has locked, and its cgroup. Processes that
// have been killed may take a moment to leave that.
func removeFolder(dir string) error {
	err := removeGroup(filepath.Base(dir))
	for deadline := time.Now().Add(ending); err != nil && time.Now().Before(deadline); {
		time.Sleep(50 * time.Millisecond)
		err = removeGroup(filepath.Base(dir))
	}
	err = errors.Join(err, os.RemoveAll(dir))
	locks.Lock()
	defer locks.Unlock()
	locks.files[dir].Close()
	delete(locks.files, dir)
	return err
}
