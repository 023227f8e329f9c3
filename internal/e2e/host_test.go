package e2e

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/internal/test/must"
)

// A daemon on a host, from its start under systemd's unit to its removal without a trace: a
// small disk is not filled, a backup brings it all back.
func TestHost(t *testing.T) {
	r := newRig(t, "")
	data := filepath.Join(r.dir, "data")
	ownDisk(t, data, 3<<30)
	const reserve = 1 << 30
	r.configure(strings.Replace(baseConfig, "sandbox: {", "sandbox: {reserve: 1GiB, ", 1), "")
	// As the unit has it: what of it needs no systemd.
	r.daemon.By = confined(t)
	ready := notified(t, filepath.Join(r.dir, "notify"))
	r.up()
	if got := ready(); got != "READY=1" {
		t.Errorf("systemd was told %q", got)
	}
	r.ok("run", "agent", "--", "sh", "-c", "echo kept > /root/f && echo kept > /memory/f && sync")

	t.Run("full disk", func(t *testing.T) {
		r.ok("run", "greedy", "--", "true")
		var least atomic.Int64
		least.Store(free(t, data))
		stop := make(chan struct{})
		watched := make(chan struct{})
		go func() {
			defer close(watched)
			for {
				select {
				case <-stop:
					return
				case <-time.After(5 * time.Millisecond):
					least.Store(min(least.Load(), free(t, data)))
				}
			}
		}()
		res := r.inside("greedy", "cat /dev/zero > /root/full")
		for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline) && !strings.Contains(r.ok("sandbox", "get", "greedy"), "has most of it"); {
			time.Sleep(50 * time.Millisecond)
		}
		time.Sleep(time.Second) // nothing is on its way any more
		close(stop)
		<-watched
		t.Logf("it was refused at %d MiB, and %d MiB were left", 2*reserve>>20, least.Load()>>20)
		if left := least.Load(); left < reserve {
			t.Errorf("%d MiB were left to the host", left>>20)
		}
		if res.code == 0 || !strings.Contains(res.stderr, "No space left on device") {
			t.Errorf("it wrote all it wanted to: %s", res)
		}
		// Its writes are refused, and nobody is stopped for them.
		if out := r.ok("sandbox", "ls"); !strings.Contains(out, "running (disk capped)") {
			t.Errorf("the listing does not say so:\n%s", out)
		}
		if out := r.ok("audit", "tail"); !strings.Contains(out, "greedy capped") || strings.Contains(out, "greedy stopped") {
			t.Errorf("what has become of it is on record as:\n%s", out)
		}
		for _, call := range [][]string{{"snapshot", "greedy"}, {"fork", "greedy"}, {"hibernate", "greedy"}} {
			if res := r.sallyport(append([]string{"sandbox"}, call...)...); res.code == 0 || !strings.Contains(res.stderr, "has most of it") {
				t.Errorf("%v: %s", call, res)
			}
		}
		if res := r.inside("greedy", "echo x > /root/more"); res.code == 0 {
			t.Error("it writes on")
		}
		if out := r.ok("run", "agent", "--", "sh", "-c", "cat /root/f && head -c 8M /dev/zero > /root/more && rm /root/more"); out != "kept\n" {
			t.Errorf("its neighbour says %q", out)
		}
		// Removing a file makes room, and ends the refusal.
		if res := r.inside("greedy", "rm /root/full"); res.code != 0 {
			t.Errorf("it cannot remove anything: %s", res)
		}
		r.await("room again", func() bool {
			return r.inside("greedy", "echo x > /root/more").code == 0 && r.info("greedy").Capped == ""
		})
		r.ok("sandbox", "rm", "greedy")
		r.ok("run", "greedy", "--", "true")
	})

	// An operator can always end and remove: of what runs, what has run, and again.
	t.Run("no byte left", func(t *testing.T) {
		r.ok("run", "second", "--", "true")
		r.ok("sandbox", "stop", "second")
		brim(t, data)
		r.ok("sandbox", "rm", "second")
		brim(t, data)
		r.ok("sandbox", "stop", "greedy")
		brim(t, data)
		r.ok("sandbox", "rm", "greedy")
		if out := r.ok("audit", "tail"); !strings.Contains(out, "greedy removed") {
			t.Errorf("its removal is not on record:\n%s", out)
		}
	})

	t.Run("backup and uninstall", func(t *testing.T) {
		file := filepath.Join(r.dir, "backup")
		if res := r.sallyport("backup", file); res.code == 0 || !strings.Contains(res.stderr, "agent") {
			t.Errorf("what runs was copied: %s", res)
		}
		r.ok("backup", "--stop", "--with-key", file)
		r.up()
		r.ok("run", "agent", "--", "true") // so that something runs that has to go
		for _, name := range []string{"daemon", "sandbox", "mount", "process", "bridge", "kernel programs", "key"} {
			if out := r.ok("uninstall"); !strings.Contains(strings.Join(strings.Fields(out), " "), " goes "+name+" ") {
				t.Errorf("the list has no %s:\n%s", name, out)
			}
		}
		r.ok("uninstall", "--yes")
		// The kernel takes away what belongs to a namespace in its own time.
		var left []string
		for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
			if left = traces(t, r); len(left) == 0 {
				break
			}
		}
		for _, l := range left {
			t.Errorf("left: %s", l)
		}
		r.ok("restore", file)
		r.up()
		if out := r.ok("run", "agent", "--", "cat", "/root/f", "/memory/f"); out != "kept\nkept\n" {
			t.Errorf("restored, it says %q", out)
		}
	})
}

// traces are what is on the host of a rig that is not: mounts, links, pins, rules,
// processes, files.
func traces(t *testing.T, r *rig) (left []string) {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mounts")
	must.OK(t, err)
	for line := range strings.Lines(string(mounts)) {
		if at := strings.Fields(line)[1]; strings.HasPrefix(at, r.dir+"/") && at != filepath.Join(r.dir, "data") {
			left = append(left, "mount "+at)
		}
	}
	loops, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, l := range loops {
		if file, _ := os.ReadFile(l); strings.Contains(string(file), r.dir+"/data/") {
			left = append(left, "loop of "+string(file))
		}
	}
	links, err := net.Interfaces()
	must.OK(t, err)
	for _, l := range links {
		if l.Name == "spe2e0" || strings.HasPrefix(l.Name, "veth") {
			left = append(left, "link "+l.Name)
		}
	}
	if rules, err := exec.Command("ip", "rule").Output(); err != nil || strings.Contains(string(rules), "spe2e0") {
		left = append(left, fmt.Sprintf("rules %s %v", rules, err))
	}
	if routes, err := exec.Command("ip", "route", "show", "table", "all").Output(); err != nil || strings.Contains(string(routes), "10.232.0") {
		left = append(left, fmt.Sprintf("routes %s %v", routes, err))
	}
	if _, err := os.Stat("/sys/fs/bpf/sallyport/spe2e0"); err == nil {
		left = append(left, "pins")
	}
	processes, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, p := range processes {
		if words, _ := os.ReadFile(p); strings.Contains(string(words), r.dir+"/") {
			left = append(left, "process "+strings.ReplaceAll(string(words), "\x00", " "))
		}
	}
	for _, path := range []string{"run", "key", "data/*", "data/.*"} {
		files, _ := filepath.Glob(filepath.Join(r.dir, path))
		for _, f := range files {
			if filepath.Base(f) != "lost+found" {
				left = append(left, "file "+f)
			}
		}
	}
	return left
}

// ownDisk mounts a file system of so many bytes, of which little is taken.
func ownDisk(t *testing.T, at string, size int64) {
	t.Helper()
	image := at + ".img"
	must.OK(t, os.WriteFile(image, nil, 0o600))
	must.OK(t, os.Truncate(image, size))
	must.OK(t, os.Mkdir(at, 0o700))
	for _, words := range [][]string{{"mke2fs", "-q", "-F", "-t", "ext4", "-m", "0", image}, {"mount", "-o", "loop,discard", image, at}} {
		if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v: %s", words, err, out)
		}
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", at).CombinedOutput(); err != nil {
			t.Errorf("umount: %v: %s", err, out)
		}
	})
}

func free(t *testing.T, at string) int64 {
	var st unix.Statfs_t
	if err := unix.Statfs(at, &st); err != nil {
		t.Error(err)
	}
	return int64(st.Bavail) * st.Bsize
}

// confined is a command that holds another to the unit's capabilities.
func confined(t *testing.T) []string {
	t.Helper()
	unit, err := os.ReadFile("../../examples/systemd/sallyport.service")
	must.OK(t, err)
	set := "-all"
	for line := range strings.Lines(string(unit)) {
		if names, ok := strings.CutPrefix(line, "CapabilityBoundingSet="); ok {
			for name := range strings.FieldsSeq(names) {
				set += ",+" + strings.ToLower(strings.TrimPrefix(name, "CAP_"))
			}
		}
	}
	if !strings.Contains(string(unit), "\nNoNewPrivileges=yes\n") || !strings.Contains(set, "sys_admin") {
		t.Fatalf("the unit has changed: %s", set)
	}
	return []string{"setpriv", "--no-new-privs", "--bounding-set=" + set, "--"}
}

// notified is systemd's end of sd_notify(3).
func notified(t *testing.T, path string) (said func() string) {
	t.Helper()
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	must.OK(t, err)
	t.Cleanup(func() { _ = c.Close() })
	t.Setenv("NOTIFY_SOCKET", path)
	return func() string {
		buf := make([]byte, 1000)
		_ = c.SetReadDeadline(time.Now().Add(time.Minute))
		n, _ := c.Read(buf)
		return string(buf[:n])
	}
}

// brim fills a file system to the last block, until the test ends.
func brim(t *testing.T, at string) {
	t.Helper()
	f, err := os.CreateTemp(at, "brim")
	must.OK(t, err)
	t.Cleanup(func() {
		if err := errors.Join(f.Close(), os.Remove(f.Name())); err != nil {
			t.Error(err)
		}
	})
	// Data on its way to the disk takes blocks too, and gives some back.
	for quiet := 0; quiet < 5; quiet++ {
		for size := int64(1 << 30); size >= 4096; {
			end, err := f.Seek(0, io.SeekEnd)
			if err == nil {
				err = unix.Fallocate(int(f.Fd()), 0, end, size)
			}
			if err != nil {
				size /= 2
			} else {
				quiet = 0
			}
		}
		must.OK(t, f.Sync())
	}
	if left := free(t, at); left != 0 {
		t.Errorf("%d bytes are left", left)
	}
}
