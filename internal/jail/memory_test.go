package jail

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"sallyport/internal/test/must"
)

// A process that takes more memory than it may is ended by the kernel, and nobody else is.
func TestLimitMemory(t *testing.T) {
	must.Root(t)
	run := func(take string) error {
		c := exec.Command("sh", "-c", "read go; exec dd if=/dev/zero of=/dev/null count=1 bs="+take)
		in, err := c.StdinPipe()
		must.OK(t, err)
		must.OK(t, c.Start())
		if err := LimitMemory(c.Process.Pid, 64<<20); err != nil {
			_ = c.Process.Kill()
			t.Fatal(err)
		}
		own, err := os.ReadFile("/proc/" + strconv.Itoa(c.Process.Pid) + "/cgroup")
		if err != nil || !strings.Contains(string(own), memoryGroups+strconv.Itoa(os.Getpid())) {
			t.Errorf("it is in %s %v", own, err)
		}
		_, _ = io.WriteString(in, "go\n")
		return c.Wait()
	}
	if err := run("1M"); err != nil {
		t.Errorf("one that takes little: %v", err)
	}
	err := run("300M")
	exit, _ := err.(*exec.ExitError)
	if exit == nil || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("one that takes too much ended with %v", err)
	}
	parents, _, err := memoryParents()
	must.OK(t, err)
	for _, p := range parents {
		_ = os.Remove(filepath.Join(p, memoryGroups+strconv.Itoa(os.Getpid())))
	}
}

func TestGroups(t *testing.T) {
	const own = "4:memory:/a/b\n1:cpu,cpuacct:/c\n0::/d\n"
	for controller, want := range map[string]string{"memory": "/a/b", "cpuacct": "/c", "": "/d", "pids": "/"} {
		if got := groupOf(own, controller); got != want {
			t.Errorf("%q: %s, want %s", controller, got, want)
		}
	}
	for _, tt := range []struct{ root, group, want string }{
		{"/", "/a/b", "/m/a/b /m"}, {"/", "/", "/m"}, {"/docker/x", "/docker/x", "/m"}, {"/docker/x", "/docker/x/y", "/m/y /m"}, {"/docker/x", "/other", "/m"},
	} {
		if got := strings.Join(below("/m", tt.root, tt.group), " "); got != tt.want {
			t.Errorf("%s below %s: %s, want %s", tt.group, tt.root, got, tt.want)
		}
	}
}
