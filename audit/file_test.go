package audit_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sallyport/audit"
	"sallyport/internal/test/testnet"
)

// direct tells whether the log writes past the page cache in dir.
func direct(t *testing.T, dir string) bool {
	t.Helper()
	f, err := os.CreateTemp(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(f.Name())
	defer f.Close()
	_, err = unix.FcntlInt(f.Fd(), unix.F_SETFL, unix.O_DIRECT)
	if err != nil && !errors.Is(err, unix.EINVAL) {
		t.Fatal(err)
	}
	return err == nil
}

// exercise does to a file what the log can do, at random, and compares it with what
// was written.
func exercise(t *testing.T, dir string) {
	t.Helper()
	path := filepath.Join(dir, "segment")
	random := rand.New(rand.NewPCG(1, 2))
	var want []byte
	f, err := audit.OpenFile(path, os.O_CREATE|os.O_EXCL)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 300 {
		switch n := random.IntN(20); n {
		case 0:
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("step %d: closed with %d bytes, want the %d that were written (%v)", i, len(got), len(want), err)
			}
			if f, err = audit.OpenFile(path, 0); err != nil {
				t.Fatal(err)
			}
		case 1:
			want = want[:len(want)-random.IntN(len(want)+1)]
			if err := f.Truncate(int64(len(want))); err != nil {
				t.Fatal(err)
			}
		default:
			b := bytes.Repeat([]byte{byte('a' + i%26)}, []int{1, 100, 4096, 20_000}[n%4]+random.IntN(3000))
			if got, err := f.Write(b); err != nil || got != len(b) {
				t.Fatalf("step %d: %d of %d bytes: %v", i, got, len(b), err)
			}
			want = append(want, b...)
		}
		if err := f.Sync(); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.HasPrefix(got, want) || len(bytes.TrimRight(got[len(want):], "\x00")) > 0 {
			t.Fatalf("step %d: the file is not the %d bytes that were written, and zeros", i, len(want))
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestFile(t *testing.T) {
	t.Run("here", func(t *testing.T) {
		dir := t.TempDir()
		t.Logf("past the page cache: %v", direct(t, dir))
		exercise(t, dir)
	})
	t.Run("through the page cache", func(t *testing.T) {
		testnet.Privileged(t)
		dir := t.TempDir()
		if err := unix.Mount("ramfs", dir, "ramfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(dir, 0); err != nil {
				t.Error(err)
			}
		})
		if direct(t, dir) {
			t.Fatal("ramfs takes direct writes now: this tests nothing")
		}
		exercise(t, dir)
	})
}

// TestNotDirectAfterAll: a file system may refuse a direct write that it let
// the file be opened for.
func TestNotDirectAfterAll(t *testing.T) {
	if dir := os.Getenv("AUDIT_TEST_EINVAL"); dir != "" {
		runtime.LockOSThread() // strace counts the calls of a thread
		exercise(t, dir)
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
	if !direct(t, dir) {
		t.Skipf("the file system of %s takes no direct writes", dir)
	}
	trace := filepath.Join(t.TempDir(), "trace")
	cmd := exec.Command(strace, "-f", "-y", "-s", "0", "-o", trace, "-e", "trace=pwrite64", "-e", "inject=pwrite64:error=EINVAL:when=5",
		os.Args[0], "-test.run=^TestNotDirectAfterAll$")
	cmd.Env = append(os.Environ(), "AUDIT_TEST_EINVAL="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	raw, err := os.ReadFile(trace)
	if err != nil {
		t.Fatal(err)
	}
	// Whole blocks were refused; what they were for goes as it is.
	m := regexp.MustCompile(`, (\d+), \d+\) += -1 EINVAL .*\n.*pwrite64\(.*, (\d+), \d+\) += (\d+)\n`).FindStringSubmatch(string(raw))
	if m == nil || strings.Count(string(raw), "EINVAL") != 1 {
		t.Fatalf("not one direct write was refused:\n%s", raw)
	}
	whole, _ := strconv.Atoi(m[1])
	bytes, _ := strconv.Atoi(m[2])
	if whole%4096 != 0 || bytes >= whole || m[2] != m[3] {
		t.Errorf("after %d bytes were refused, %s of %d were written", whole, m[3], bytes)
	}
}
