package tmpfs_test

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"sallyport/internal/test/must"
	"sallyport/internal/test/testnet"
	"sallyport/internal/tmpfs"
)

func TestMount(t *testing.T) {
	testnet.Privileged(t)
	dir := filepath.Join(t.TempDir(), "a folder")
	t.Cleanup(func() { _ = tmpfs.Unmount(dir) })
	for range 2 { // the second finds what is there
		must.OK(t, tmpfs.Mount(dir))
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil || st.Type != unix.TMPFS_MAGIC {
		t.Fatalf("file system %x, %v, want tmpfs", st.Type, err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	file := filepath.Join(dir, "kept")
	must.OK(t, os.WriteFile(file, nil, 0o600))
	must.OK(t, tmpfs.Mount(dir))
	if _, err := os.Stat(file); err != nil {
		t.Errorf("mounting again hides what was there: %v", err)
	}
	for range 2 {
		must.OK(t, tmpfs.Unmount(dir))
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("what was in memory is there after Unmount")
	}
}
