package auditlog_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"sallyport/audit/auditlog"
	"sallyport/internal/test/must"
	"sallyport/internal/test/testnet"
)

// TestDiskFull fills a real file system. The log refuses, goes on by itself
// when there is room, and has all that it acknowledged.
func TestDiskFull(t *testing.T) {
	testnet.Privileged(t)
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	// Not in the log's own folder: something else fills the disk.
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 100<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	trail := filepath.Join(dir, "audit")
	l, err := auditlog.Open(trail, auditlog.Options{SegmentSize: 16 << 10})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	text := strings.Repeat("x", 500)
	acknowledged := 0
	for err == nil {
		if err = l.Append(t.Context(), event(text)); err == nil {
			acknowledged++
		}
	}
	if !errors.Is(err, auditlog.ErrUnwritable) || !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("after %d events: %v", acknowledged, err)
	}
	for range 5 {
		if err := l.Append(t.Context(), event(text)); !errors.Is(err, auditlog.ErrUnwritable) {
			t.Fatalf("while full: %v", err)
		}
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if err := l.Append(t.Context(), event("again")); err != nil {
			t.Fatal(err)
		}
		acknowledged++
	}
	refusals := 0
	for _, e := range readAll(t, trail) {
		if e.Unmapped.Sallyport.State == "audit-refused" {
			refusals += e.Count
			continue
		}
		acknowledged--
	}
	if acknowledged != 0 || refusals != 6 {
		t.Errorf("%d acknowledged events are missing; %d refusals recorded, want 6", acknowledged, refusals)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// TestReadOnly has the kernel find an error of a real file system, which is read-only from
// then on. The log refuses at once, and goes on by itself when the file system is mounted
// anew.
func TestReadOnly(t *testing.T) {
	testnet.Privileged(t)
	image, dir := ext4(t), t.TempDir()
	mount := func() (device string) {
		t.Helper()
		out, err := exec.Command("losetup", "--find", "--show", image).Output()
		if err != nil {
			t.Fatal(err)
		}
		device = strings.TrimSpace(string(out))
		if err := unix.Mount(device, dir, "ext4", 0, "errors=remount-ro"); err != nil {
			t.Fatal(err)
		}
		// It goes when nothing uses it any more.
		if out, err := exec.Command("losetup", "--detach", device).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return filepath.Base(device)
	}
	device := mount()
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	trail := filepath.Join(dir, "audit")
	l, err := auditlog.Open(trail, auditlog.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	appendAll(t, l, "a", "b")
	if err := os.WriteFile(filepath.Join("/sys/fs/ext4", device, "trigger_fs_error"), []byte("error"), 0); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if err := l.Append(t.Context(), event("refused")); !errors.Is(err, auditlog.ErrUnwritable) || i == 0 && !errors.Is(err, syscall.EROFS) {
			t.Fatalf("Append = %v, want ErrUnwritable for %v", err, syscall.EROFS)
		}
	}
	if got := messages(readAll(t, trail)); got != "a b" {
		t.Errorf("messages = %q", got)
	}
	if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	mount()
	appendAll(t, l, "c")
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	got := readAll(t, trail)
	if len(got) != 4 || got[2].Unmapped.Sallyport.State != "audit-refused" || got[2].Count != 3 || got[3].Message != "c" {
		t.Errorf("messages = %q", messages(got))
	}
}

// TestKernelSaysEIO has the kernel fail data syncs of a real process: what the
// log then holds is exactly what it acknowledged.
func TestKernelSaysEIO(t *testing.T) {
	if dir := os.Getenv("AUDIT_TEST_EIO"); dir != "" {
		l := open(t, dir, auditlog.Options{})
		for i := range 30 {
			m := fmt.Sprint(i)
			switch err := l.Append(t.Context(), event(m)); {
			case err == nil:
				fmt.Println("acknowledged", m)
			case !errors.Is(err, auditlog.ErrUnwritable) || !errors.Is(err, syscall.EIO):
				t.Errorf("Append = %v, want EIO", err)
			}
		}
		return
	}
	strace := must.Program(t, "strace")
	dir := t.TempDir()
	cmd := exec.Command(strace, "-f", "-o", os.DevNull, "-e", "trace=fdatasync", "-e", "inject=fdatasync:error=EIO:when=2+3",
		os.Args[0], "-test.run=^TestKernelSaysEIO$")
	cmd.Env = append(os.Environ(), "AUDIT_TEST_EIO="+dir)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var want, got []string
	for line := range strings.Lines(string(out)) {
		if m, ok := strings.CutPrefix(line, "acknowledged "); ok {
			want = append(want, strings.TrimSpace(m))
		}
	}
	for _, e := range readAll(t, dir) {
		if e.Unmapped.Sallyport.State == "" {
			got = append(got, e.Message)
		}
	}
	if len(want) == 0 || len(want) == 30 {
		t.Fatalf("%d of 30 were acknowledged: no sync failed, or all", len(want))
	}
	if g, w := strings.Join(got, " "), strings.Join(want, " "); g != w {
		t.Errorf("in the log: %q, acknowledged: %q", g, w)
	}
}
