package jail

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/internal/test/must"
	"sallyport/internal/test/testnet"
)

// scene is what there is to be had on a host.
type scene struct {
	t    *testing.T
	view *View
	env  []string
}

func newScene(t *testing.T) *scene {
	t.Helper()
	testnet.Privileged(t)
	if errors.Is(onAllThreads(unix.SYS_GETPID), errCgo) {
		must.Lack(t, "%v", errCgo)
	}
	dir := t.TempDir()
	must.OK(t, os.WriteFile(filepath.Join(dir, "root.pem"), []byte("key"), 0o644))
	// Everybody may, so that it is not the file's mode that stands in the way.
	for _, d := range []string{dir, filepath.Dir(dir)} {
		must.OK(t, os.Chmod(d, 0o777))
	}
	view, err := OpenView(filepath.Join(t.TempDir(), "view"), slog.New(slog.DiscardHandler))
	must.OK(t, err)
	must.OK(t, view.Write("/etc/resolv.conf", []byte("nameserver 198.51.100.53\n")))
	docker, err := net.Listen("unix", filepath.Join(dir, "docker.sock"))
	must.OK(t, err)
	must.OK(t, os.Chmod(docker.Addr().String(), 0o777))
	peer, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	go func() {
		for {
			c, err := peer.Accept()
			if err != nil {
				return
			}
			_, _ = io.CopyN(c, c, 5)
			_ = c.Close()
		}
	}()
	victim := exec.Command("sleep", "300")
	must.OK(t, victim.Start())
	t.Cleanup(func() {
		_ = victim.Process.Kill()
		_ = victim.Wait()
		_ = docker.Close()
		_ = peer.Close()
	})
	return &scene{t, view, append(runtimeEnv,
		envSecrets+"="+dir, envSocket+"="+docker.Addr().String(), envVictim+"="+fmt.Sprint(victim.Process.Pid),
		envPeer+"="+peer.Addr().String(),
	)}
}

// ending is how an attempt went.
type ending struct {
	code   int
	signal syscall.Signal
	said   string
}

func (e ending) String() string {
	return fmt.Sprintf("exit %d, signal %v: %s", e.code, e.signal, e.said)
}

func end(err error, said string) ending {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return ending{0, 0, said}
	case !errors.As(err, &exit):
		return ending{exitBroken, 0, err.Error()}
	}
	w := exit.Sys().(syscall.WaitStatus)
	if w.Signaled() {
		return ending{-1, w.Signal(), said}
	}
	return ending{w.ExitStatus(), 0, said}
}

// inside makes an attempt in a jail.
func (s *scene) inside(name string) ending { s.t.Helper(); return s.started(name, Spec{}) }

// started makes an attempt in a jail of some kind.
func (s *scene) started(name string, spec Spec) ending {
	s.t.Helper()
	r, w, err := os.Pipe()
	must.OK(s.t, err)
	defer r.Close()
	spec.Args, spec.Env = []string{"attempt"}, append(s.env, role+"="+name, "SALLYPORT_TEST_CONFINE=1")
	spec.Stderr, spec.Root, spec.IDs = w, s.view.Dir(), IDs{Nobody, Nobody}
	p, err := Start(spec)
	_ = w.Close()
	must.OK(s.t, err)
	defer time.AfterFunc(2*time.Minute, p.Kill).Stop()
	said, _ := io.ReadAll(r)
	return end(p.Wait(), string(said))
}

// An offline process has nothing of the host's network but what it was given.
func TestOffline(t *testing.T) {
	s := newScene(t)
	for offline, want := range map[bool]int{false: exitDone, true: exitRefused} {
		if got := s.started("connect", Spec{Offline: offline}); got.code != want {
			t.Errorf("connecting to the host's loopback, offline %v: %v", offline, got)
		}
	}
}

// outside makes it as root, unconfined.
func (s *scene) outside(name string) ending {
	s.t.Helper()
	c := exec.Command("/proc/self/exe")
	c.Env = append(s.env, role+"="+name)
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Unshareflags: syscall.CLONE_NEWNS}
	var said bytes.Buffer
	c.Stderr = &said
	return end(c.Run(), said.String())
}

func TestAttempts(t *testing.T) {
	s := newScene(t)
	for name := range attempts() {
		t.Run(name, func(t *testing.T) {
			if got := s.outside(name); got.code != exitDone {
				t.Errorf("outside: %s: the attempt proves nothing", got)
			}
			switch got := s.inside(name); {
			case got.code == exitRefused, got.signal == syscall.SIGSYS:
				t.Logf("refused: %s", got)
			default:
				t.Errorf("inside: %s", got)
			}
		})
	}
}

// Without root there is no other user and no root of its own. The rest is no less than
// Landlock and the filter.
func TestWithoutRoot(t *testing.T) {
	s := newScene(t)
	if Landlock() == 0 {
		must.Lack(t, "this kernel has no Landlock")
	}
	ordinary := func(name string) ending {
		c := exec.Command("/proc/self/exe")
		c.Env = append(s.env, role+"="+name)
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: Nobody, Gid: Nobody}}
		var said bytes.Buffer
		c.Stderr = &said
		return end(c.Run(), said.String())
	}
	for _, name := range []string{
		"read the data directory", "read the CA's key", "read its own maps", "read the password file", "connect to Docker",
		"write to the temporary folder", "make a folder", "listen", "bind UDP", "execute", "fork", "make memory executable",
		"open a netlink socket", "open a unix socket", "make a file in memory", "become dumpable",
	} {
		t.Run(name, func(t *testing.T) {
			if got := ordinary(name); got.code != exitDone {
				t.Errorf("outside: %s: the attempt proves nothing", got)
			}
			if got := ordinary("started: " + name); got.code != exitRefused {
				t.Errorf("inside: %s", got)
			}
		})
	}
	for name := range chores() {
		if got := ordinary("started: " + name); got.code != exitDone {
			t.Errorf("%s: %s", name, got)
		}
	}
}

func TestChores(t *testing.T) {
	s := newScene(t)
	for name := range chores() {
		t.Run(name, func(t *testing.T) {
			if got := s.inside(name); got.code != exitDone {
				t.Errorf("inside: %s", got)
			}
		})
	}
}

// fileSize is how large TestFileSize lets a file be, in bytes.
const fileSize = 1 << 20

// A file that was given can be made as large as it may, and no larger.
func TestFileSize(t *testing.T) {
	s := newScene(t)
	f, err := os.CreateTemp(t.TempDir(), "")
	must.OK(t, err)
	defer f.Close()
	p, err := Start(Spec{
		Args: []string{"attempt"}, Env: append(s.env, role+"=grow", "SALLYPORT_TEST_CONFINE=1"),
		Files: []*os.File{f}, Root: s.view.Dir(), IDs: IDs{Nobody, Nobody}, FileSize: fileSize,
	})
	must.OK(t, err)
	defer time.AfterFunc(2*time.Minute, p.Kill).Stop()
	if got := end(p.Wait(), ""); got.code == exitDone || got.code == exitBroken {
		t.Errorf("it ended with %s", got)
	}
	if i, err := f.Stat(); err != nil || i.Size() != fileSize {
		t.Errorf("the file has %d bytes, %v, want %d", i.Size(), err, fileSize)
	}
}

// A process does not take the disk by what it holds of it for the file that it was given.
func TestRoom(t *testing.T) {
	s := newScene(t)
	f, err := os.CreateTemp(t.TempDir(), "")
	must.OK(t, err)
	defer f.Close()
	if err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, fileSize); errors.Is(err, unix.EOPNOTSUPP) {
		must.Lack(t, "this file system cannot hold room")
	}
	must.OK(t, f.Truncate(0))
	p, err := Start(Spec{
		Args: []string{"attempt"}, Env: append(s.env, role+"=hold", "SALLYPORT_TEST_CONFINE=1"),
		Files: []*os.File{f}, Stderr: os.Stderr, Root: s.view.Dir(), IDs: IDs{Nobody, Nobody}, FileSize: fileSize,
	})
	must.OK(t, err)
	defer time.AfterFunc(2*time.Minute, p.Kill).Stop()
	if got := end(p.Wait(), ""); got.code != exitRefused {
		t.Errorf("it ended with %s", got)
	}
	if i, err := f.Stat(); err != nil || i.Sys().(*syscall.Stat_t).Blocks*512 > fileSize {
		t.Errorf("the file takes %d blocks, %v", i.Sys().(*syscall.Stat_t).Blocks, err)
	}
}

// memory is what TestMemory lets a process have, in bytes.
const memory = 256 << 20

// A process gets the memory that it may have, and is the first to be ended for more
// than the host has.
func TestMemory(t *testing.T) {
	s := newScene(t)
	for _, most := range []uint64{memory, 3 * memory} {
		p, err := Start(Spec{
			Args: []string{"attempt"}, Env: append(s.env, role+"=hoard", "SALLYPORT_TEST_CONFINE=1"),
			Root: s.view.Dir(), IDs: IDs{Nobody, Nobody}, Memory: most,
		})
		must.OK(t, err)
		defer time.AfterFunc(2*time.Minute, p.Kill).Stop()
		if got := end(p.Wait(), ""); got.code == exitBroken || (got.code == exitDone) != (most > 2*memory) {
			t.Errorf("with %d bytes it ended with %s", most, got)
		}
	}
	p, err := Start(Spec{
		Args: []string{"attempt"}, Env: append(s.env, role+"=stay", "SALLYPORT_TEST_CONFINE=1"),
		Root: s.view.Dir(), IDs: IDs{Nobody, Nobody}, Spare: true,
	})
	must.OK(t, err)
	defer func() { p.Kill(); _ = p.Wait() }()
	got := ""
	for deadline := time.Now().Add(time.Minute); got != "1000" && time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", p.PID()))
		got = strings.TrimSpace(string(text))
	}
	if got != "1000" {
		t.Errorf("oom_score_adj is %q", got)
	}
}

// The kernel's account of a confined process.
func TestStatus(t *testing.T) {
	s := newScene(t)
	// One that does not close by itself, as the daemon may have been given.
	stray, err := unix.Open(s.view.Dir(), unix.O_RDONLY, 0)
	must.OK(t, err)
	defer unix.Close(stray)
	for _, open := range []func() (int, error){ // and some that have no name
		func() (int, error) { return unix.EpollCreate1(0) },
		func() (int, error) { return unix.Eventfd(0, 0) },
		func() (int, error) { return unix.InotifyInit1(0) },
	} {
		fd, err := open()
		must.OK(t, err)
		defer unix.Close(fd)
	}
	r, w, err := os.Pipe()
	must.OK(t, err)
	defer r.Close()
	p, err := Start(Spec{
		Args: []string{"attempt"}, Env: append(s.env, role+"=stay", "SALLYPORT_TEST_CONFINE=1"),
		Stderr: w, Root: s.view.Dir(), IDs: IDs{Nobody, Nobody},
	})
	_ = w.Close()
	must.OK(t, err)
	defer func() { p.Kill(); <-p.Done() }()
	line := make([]byte, 256)
	n, _ := r.Read(line)
	if !strings.HasPrefix(string(line[:n]), "state: ") {
		t.Fatalf("it says %q", line[:n])
	}
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
	must.OK(t, err)
	got := map[string]string{}
	for l := range strings.Lines(string(raw)) {
		k, v, _ := strings.Cut(l, ":")
		got[k] = strings.Join(strings.Fields(v), " ")
	}
	id := strings.TrimSuffix(strings.Repeat(fmt.Sprint(Nobody)+" ", 4), " ")
	for k, want := range map[string]string{
		"Uid": id, "Gid": id, "Groups": "", "NoNewPrivs": "1", "Seccomp": "2", "NSpid": fmt.Sprint(p.PID()) + " 1",
		"CapInh": "0000000000000000", "CapPrm": "0000000000000000", "CapEff": "0000000000000000",
		"CapBnd": "0000000000000000", "CapAmb": "0000000000000000",
	} {
		if got[k] != want {
			t.Errorf("%s is %q, want %q", k, got[k], want)
		}
	}
	// Every thread, not only the first.
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", p.PID()))
	if err != nil || len(tasks) < 2 {
		t.Fatalf("%d threads, %v", len(tasks), err)
	}
	for _, task := range tasks {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/status", p.PID(), task.Name()))
		if err != nil || !strings.Contains(string(raw), "Seccomp:\t2") || !strings.Contains(string(raw), "NoNewPrivs:\t1") {
			t.Errorf("thread %s: %v %s", task.Name(), err, raw)
		}
	}
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.PID()))
	must.OK(t, err)
	own := map[string]int{"anon_inode:[eventpoll]": 1, "anon_inode:[eventfd]": 1} // the runtime's
	for _, fd := range fds {
		to, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", p.PID(), fd.Name()))
		if own[to]--; strings.HasPrefix(to, "anon_inode:") && own[to] < 0 {
			t.Errorf("descriptor %s is %s, which it was not given", fd.Name(), to)
		}
		if strings.HasPrefix(to, "/") && to != "/dev/null" || strings.HasPrefix(to, "socket:") {
			t.Errorf("descriptor %s is %s", fd.Name(), to)
		}
	}
	root, err := os.ReadDir(fmt.Sprintf("/proc/%d/root", p.PID()))
	if err != nil || len(root) != 1 || root[0].Name() != "etc" {
		t.Errorf("its root holds %v, %v", root, err)
	}
}

// It dies with the thread that started it, whatever it does itself.
func TestOrphan(t *testing.T) {
	s := newScene(t)
	c := exec.Command("/proc/self/exe")
	c.Env = append(s.env, role+"=keep", "SALLYPORT_TEST_VIEW="+s.view.Dir())
	out, err := c.StdoutPipe()
	must.OK(t, err)
	must.OK(t, c.Start())
	var pid int
	if _, err := fmt.Fscan(out, &pid); err != nil || pid == 0 {
		t.Fatal(pid, err)
	}
	if err := syscall.Kill(pid, 0); err != nil {
		t.Fatalf("before: %v", err)
	}
	_ = c.Process.Kill()
	_ = c.Wait()
	for deadline := time.Now().Add(time.Minute); syscall.Kill(pid, 0) == nil; time.Sleep(10 * time.Millisecond) {
		if raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); strings.Contains(string(raw), ") Z ") {
			break // nobody here waits for orphans
		}
		if time.Now().After(deadline) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
			t.Fatal("it goes on without its parent")
		}
	}
}
