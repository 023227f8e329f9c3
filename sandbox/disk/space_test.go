package disk_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/internal/test/must"
	"sallyport/internal/test/testnet"
	"sallyport/sandbox/disk"
)

// A sandbox's writes count at once, and once, whether the kernel has written them back to the
// host's disk or not.
func TestSpaceCountsWhatIsNotWrittenBack(t *testing.T) {
	testnet.Privileged(t)
	// A file system of the test's own: others write to the machine's.
	host := t.TempDir()
	must.OK(t, disk.Make(host, 512<<20))
	t.Cleanup(func() {
		// The kernel lets go of the other's file when nobody looks at its device any
		// more, which who watches devices may do for a moment.
		err := disk.Detach(host)
		for range 600 {
			if !errors.Is(err, unix.EBUSY) {
				break
			}
			time.Sleep(100 * time.Millisecond)
			err = disk.Detach(host)
		}
		if err != nil {
			t.Error(err)
		}
	})
	s := disk.Space{Dir: disk.Layer(host)}
	folder := filepath.Join(s.Dir, "a")
	must.OK(t, os.Mkdir(folder, 0o700))
	must.OK(t, disk.Make(folder, 128<<20))
	t.Cleanup(func() {
		if err := disk.Detach(folder); err != nil {
			t.Error(err)
		}
	})
	look := func() (free, used int64) {
		t.Helper()
		free, err := s.Free()
		if err == nil {
			used, err = s.Used(folder)
		}
		must.OK(t, err)
		return free, used
	}
	const size, slack = 64 << 20, 8 << 20
	free, used := look()
	file := filepath.Join(folder, "memory/file")
	must.OK(t, os.WriteFile(file, make([]byte, size), 0o600))
	for _, when := range []string{"at once", "when it has been synced"} {
		f, u := look()
		if took := free - f; took < size-slack || took > size+slack {
			t.Errorf("%s: the host has %d MiB less, want 64", when, took>>20)
		}
		if grew := u - used; grew < size-slack || grew > size+slack {
			t.Errorf("%s: the disk has grown by %d MiB, want 64", when, grew>>20)
		}
		if w, err := os.Open(file); err != nil {
			t.Fatal(err)
		} else if err := w.Sync(); err != nil {
			t.Fatal(err)
		} else {
			w.Close()
		}
	}
}
