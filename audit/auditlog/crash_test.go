package auditlog_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"sallyport/audit/auditlog"
	"sallyport/internal/test/must"
)

// TestSyscalls asks the kernel: the data sync that covers an event comes after
// its write and before Append has returned.
func TestSyscalls(t *testing.T) {
	if dir := os.Getenv("AUDIT_TEST_TRACED"); dir != "" {
		l := open(t, dir, auditlog.Options{})
		for i := range 3 {
			appendAll(t, l, fmt.Sprintf("message-%d", i))
			syscall.Write(2, fmt.Appendf(nil, "returned-%d", i))
		}
		return
	}
	strace := must.Program(t, "strace")
	trace := filepath.Join(t.TempDir(), "trace")
	cmd := exec.Command(strace, "-f", "-y", "-s", "4096", "-o", trace, "-e", "trace=write,pwrite64,fdatasync",
		os.Args[0], "-test.run=^TestSyscalls$")
	cmd.Env = append(os.Environ(), "AUDIT_TEST_TRACED="+t.TempDir())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	raw, err := os.ReadFile(trace)
	if err != nil {
		t.Fatal(err)
	}
	at := 0
	for i := range 3 {
		for _, want := range []string{fmt.Sprintf("message-%d", i), "fdatasync(", "= 0", fmt.Sprintf("returned-%d", i)} {
			j := strings.Index(string(raw[at:]), want)
			if j < 0 {
				t.Fatalf("%q does not follow in\n%s", want, raw)
			}
			at += j + len(want)
		}
	}
}
