package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sallyport/internal/test/must"
	"sallyport/internal/test/testnet"
	"sallyport/sandbox/disk"
)

// The demo that the README promises plays to its end, twice, and comes down.
func TestDemo(t *testing.T) {
	testnet.Privileged(t)
	tools.Need(t)
	dir := t.TempDir()
	demo := func(verb string) string {
		ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
		defer cancel()
		out, err := exec.CommandContext(ctx, filepath.Join(tools.Dir, "demo"), "-bin", tools.Dir, "-dir", dir, verb).CombinedOutput()
		if err != nil {
			t.Errorf("demo %s: %v\n%s", verb, err, out)
		}
		return string(out)
	}
	t.Cleanup(func() { demo("down") }) // also after a failure; twice does no harm
	for range 2 {
		if out := demo("up"); !strings.Contains(out, "Everything held.") {
			t.Fatalf("the demo did not hold:\n%s", out)
		}
	}
	demo("down")
	if left, err := filepath.Glob("/sys/class/net/sallyport-demo"); err != nil || len(left) != 0 {
		t.Errorf("the bridge is left: %v, %v", left, err)
	}
	for _, p := range processes() {
		if strings.Contains(p.cmdline, dir) {
			t.Errorf("a process is left: %d %q", p.pid, p.cmdline)
		}
	}
	folder := filepath.Join(dir, "data/sandboxes/demo")
	release, err := disk.Hold(folder)
	must.OK(t, err)
	if _, err := os.Stat(filepath.Join(folder, "memory/memories.md")); err != nil {
		t.Errorf("what the agent remembers is gone: %v", err)
	}
	if err := release(); err != nil {
		t.Error(err)
	}
}
