package must

import (
	"os"
	"os/exec"
	"testing"
)

// Lack skips a test on a machine that lacks something. Where CI is true it fails the test
// instead: nobody runs a test that CI skips.
func Lack(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

// Root is [Lack] for an ordinary user.
func Root(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		Lack(t, "needs root")
	}
}

// Program returns the path of a program. It is [Lack] where there is none.
func Program(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		Lack(t, "%v: internal/setup/setup.sh test installs it", err)
	}
	return path
}
