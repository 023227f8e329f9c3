package manager

import (
	"bytes"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"sallyport/internal/test/must"
)

// A tree that is nested deeper than files can be open is removed all the same, and
// the daemon has its files for others meanwhile.
func TestDeepTree(t *testing.T) {
	const deep = 1000
	dir := t.TempDir()
	nest(t, dir, deep)
	var had unix.Rlimit
	must.OK(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &had))
	few := had
	few.Cur = 200
	must.OK(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &few))
	err := emptyTree(t.Context(), dir)
	if rerr := unix.Setrlimit(unix.RLIMIT_NOFILE, &had); rerr != nil {
		t.Fatal(rerr)
	}
	if err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	nest(t, dir, deep)
	if err := removeTree(t.Context(), dir); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(dir); !os.IsNotExist(err) {
		t.Errorf("it is there: %v", err)
	}
}

func nest(t *testing.T, dir string, deep int) {
	t.Helper()
	at, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_RDONLY, 0)
	for range deep {
		if err == nil {
			err = unix.Mkdirat(at, "d", 0o700)
		}
		was := at
		if err == nil {
			at, err = unix.Openat(was, "d", unix.O_DIRECTORY|unix.O_RDONLY, 0)
		}
		unix.Close(was)
	}
	must.OK(t, err)
	unix.Close(at)
}

// The process that reads a sandbox's files has bounds of its own, whatever there is to read
// and to say.
func TestRunBounds(t *testing.T) {
	must.OK(t, run(t.Context(), nil, "sh", "-c", "ulimit -v"))
	var out bytes.Buffer
	if err := run(t.Context(), &out, "sh", "-c", "ulimit -v"); err != nil || out.String() != "1048576\n" {
		t.Errorf("its memory: %q, %v", out.String(), err)
	}
	err := run(t.Context(), nil, "sh", "-c", `printf 'first\n\033[31m' >&2; head -c 10000000 /dev/zero | tr '\0' x >&2; printf 'last\n' >&2; exit 3`)
	if err == nil || len(err.Error()) > 400 || !bytes.Contains([]byte(err.Error()), []byte("last")) || bytes.Contains([]byte(err.Error()), []byte("\x1b")) {
		t.Errorf("what it says: %q", err)
	}
}
