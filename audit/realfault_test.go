package audit_test

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

	"sallyport/audit"
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
	l, err := audit.Open(trail, audit.Options{SegmentSize: 16 << 10})
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
	if !errors.Is(err, audit.ErrUnwritable) || !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("after %d events: %v", acknowledged, err)
	}
	for range 5 {
		if err := l.Append(t.Context(), event(text)); !errors.Is(err, audit.ErrUnwritable) {
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

// TestKernelSaysEIO has the kernel fail data syncs of a real process: what the
// log then holds is exactly what it acknowledged.
func TestKernelSaysEIO(t *testing.T) {
	if dir := os.Getenv("AUDIT_TEST_EIO"); dir != "" {
		l := open(t, dir, audit.Options{})
		for i := range 30 {
			m := fmt.Sprint(i)
			switch err := l.Append(t.Context(), event(m)); {
			case err == nil:
				fmt.Println("acknowledged", m)
			case !errors.Is(err, audit.ErrUnwritable) || !errors.Is(err, syscall.EIO):
				t.Errorf("Append = %v, want EIO", err)
			}
		}
		return
	}
	strace, err := exec.LookPath("strace")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("strace is not installed")
		}
		t.Skip("strace is not installed")
	}
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
