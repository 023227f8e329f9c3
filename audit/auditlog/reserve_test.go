package auditlog_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/internal/test/testnet"
)

// fillDisk takes all that is left of a file system.
func fillDisk(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, n := range []int{1 << 20, 4096, 1} {
		for err = nil; err == nil; {
			if _, err = f.Write(make([]byte, n)); err == nil {
				err = f.Sync()
			}
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
	}
}

// ext4 makes a file system of 16 MB in a file.
func ext4(t *testing.T) (image string) {
	t.Helper()
	image = filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, 16<<20); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("mkfs.ext4", "-q", "-m", "0", image).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return image
}

// With no byte left on the disk, whoever took it, ends of sandboxes are recorded, beyond
// the size of a segment too, and what is denied, as long as that leaves room for ends.
func TestRoomOnAFullDisk(t *testing.T) {
	testnet.Privileged(t)
	for _, kind := range []string{"tmpfs", "ext4"} {
		t.Run(kind, func(t *testing.T) {
			dir := t.TempDir()
			mount := []string{"mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", dir}
			if kind == "ext4" {
				mount = []string{"mount", "-o", "loop", ext4(t), dir}
			}
			if out, err := exec.Command(mount[0], mount[1:]...).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			t.Cleanup(func() {
				if err := unix.Unmount(dir, 0); err != nil {
					t.Error(err)
				}
			})
			trail, ballast := filepath.Join(dir, "audit"), filepath.Join(dir, "ballast")
			l := open(t, trail, auditlog.Options{SegmentSize: 256 << 10})
			text := strings.Repeat("x", 500)
			acknowledged := 0
			put := func(kind audit.Kind, action audit.Action) error {
				e := audit.New(kind, audit.ClassHTTP, audit.ActivityOther)
				e.Action, e.Message = action, text
				err := l.Append(t.Context(), e)
				if err == nil {
					acknowledged++
				} else if !errors.Is(err, auditlog.ErrUnwritable) || !errors.Is(err, syscall.ENOSPC) {
					t.Fatal(err)
				}
				return err
			}
			until := func(kind audit.Kind, action audit.Action) (n int) {
				t.Helper()
				for ; put(kind, action) == nil; n++ {
					if n > 10_000 {
						t.Fatalf("the disk takes more and more of %s", kind)
					}
				}
				return n
			}
			for range 200 { // two segments' room is not used up
				if err := put(audit.KindDecision, audit.ActionAllowed); err != nil {
					t.Fatal(err)
				}
			}
			fillDisk(t, ballast)
			until(audit.KindDecision, audit.ActionAllowed)
			fillDisk(t, ballast)
			for i := range 20 {
				if err := put(audit.KindLifecycle, audit.ActionUnknown); err != nil {
					t.Fatalf("end %d with no byte left: %v", i, err)
				}
			}
			if n := until(audit.KindDecision, audit.ActionDenied); n < 50 {
				t.Errorf("%d denials are recorded", n)
			}
			fillDisk(t, ballast)
			for i := range 50 {
				if err := put(audit.KindLifecycle, audit.ActionUnknown); err != nil {
					t.Fatalf("end %d after many denials: %v", i, err)
				}
				if put(audit.KindDecision, audit.ActionAllowed) == nil {
					t.Fatal("what is allowed takes the room of ends")
				}
			}
			if err := os.Remove(ballast); err != nil {
				t.Fatal(err)
			}
			for range 600 {
				if err := put(audit.KindDecision, audit.ActionAllowed); err != nil {
					t.Fatal(err)
				}
			}
			if err := l.Close(); err != nil {
				t.Error(err)
			}
			found := 0
			for _, e := range readAll(t, trail) {
				if e.Message == text {
					found++
				}
			}
			if found != acknowledged {
				t.Errorf("the log has %d events, %d were acknowledged", found, acknowledged)
			}
		})
	}
}
