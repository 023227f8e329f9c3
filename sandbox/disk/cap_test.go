package disk_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"sallyport/internal/test/must"
	"sallyport/sandbox/disk"
)

// A disk that is kept from growing takes no more, of root either, and all else: what is
// there is read, written over, and removed, which makes room for as much.
func TestCap(t *testing.T) {
	folder := made(t)
	at := func(name string) string { return filepath.Join(disk.Layer(folder), name) }
	write := func(name string, bytes int) error { return os.WriteFile(at(name), make([]byte, bytes), 0o600) }
	used := func() int64 {
		t.Helper()
		n, err := disk.Space{}.Used(folder)
		must.OK(t, err)
		return n
	}
	must.OK(t, write("there", 8<<20))
	for range 2 {
		must.OK(t, (disk.Space{}).Cap(folder))
	}
	before := used()
	if err := write("more", 4<<20); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("more: %v", err)
	}
	if n := used(); n > before+1<<20 {
		t.Errorf("it has grown by %d bytes", n-before)
	}
	f, err := os.OpenFile(at("there"), os.O_WRONLY, 0)
	if err == nil {
		_, err = f.Write([]byte("over"))
		err = errors.Join(err, f.Sync(), f.Close())
	}
	if err != nil {
		t.Errorf("written over: %v", err)
	}
	if err := os.Remove(at("there")); err != nil {
		t.Error(err)
	}
	for range 2 { // it is at what there was, not at what is left
		must.OK(t, (disk.Space{}).Cap(folder))
	}
	if err := write("again", 6<<20); err != nil {
		t.Errorf("in its place: %v", err)
	}
	for range 2 {
		must.OK(t, (disk.Space{}).Uncap(folder))
	}
	if err := write("more", 8<<20); err != nil {
		t.Errorf("afterwards: %v", err)
	}
	// One that is detached takes nothing anyway, and begins anew.
	if err := errors.Join(disk.Space{}.Cap(folder), disk.Detach(folder), disk.Space{}.Cap(folder), disk.Attach(folder), write("still more", 4<<20)); err != nil {
		t.Error(err)
	}
}
