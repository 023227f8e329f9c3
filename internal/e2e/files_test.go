package e2e

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sallyport/internal/test/must"
)

// look is what a tree is, by name: type and mode, contents or target.
func look(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		i, err := d.Info()
		if err != nil {
			return err
		}
		st := i.Sys().(*syscall.Stat_t)
		text := fmt.Sprintf("%o", st.Mode)
		switch {
		case i.Mode().IsRegular():
			b, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			text += fmt.Sprintf(" %d links, of %d: %q", st.Nlink, i.ModTime().Unix(), b)
		case i.Mode()&fs.ModeSymlink != 0:
			to, _ := os.Readlink(p)
			text += " -> " + to
		}
		name, _ := filepath.Rel(dir, p)
		out[name] = text
		return nil
	})
	must.OK(t, err)
	return out
}

// Files go in and come out as they are, and what a root inside makes of them
// stays in the folder that they come to.
func TestFiles(t *testing.T) {
	r := newRig(t, "")
	r.serve()
	r.up()
	r.ok("run", "agent", "--", "true")
	dir := t.TempDir()
	t.Chdir(dir)
	t.Run("tree", func(t *testing.T) { testTree(t, r) })
	t.Run("single", func(t *testing.T) { testSingle(t, r) })
	t.Run("move", func(t *testing.T) { testMove(t, r) })
	t.Run("user", func(t *testing.T) { testFilesOfUser(t, r) })
	t.Run("hostile", func(t *testing.T) { testHostileFiles(t, r) })
	t.Run("changes", func(t *testing.T) { testChanges(t, r) })
	t.Run("since", func(t *testing.T) { testChangesSince(t, r) })
	t.Run("watch", func(t *testing.T) { testWatchInside(t, r) })
}

// A move inside takes nothing's place unless it is to, on files that gVisor
// shares with the host too.
func testMove(t *testing.T, r *rig) {
	r.ok("run", "agent", "--", "sh", "-c", "mkdir -p /root/mv/folder/in /root/mv/empty; cd /root/mv; echo 1 > file; echo 2 > other; ln -s none link")
	for _, names := range [][2]string{{"file", "moved"}, {"folder", "away"}, {"link", "led"}} {
		r.ok("sandbox", "files", "mv", "agent", "/root/mv/"+names[0], "/root/mv/"+names[1])
	}
	for _, names := range [][2]string{{"moved", "other"}, {"away", "empty"}} {
		if res := r.sallyport("sandbox", "files", "mv", "agent", "/root/mv/"+names[0], "/root/mv/"+names[1]); res.code != 1 || !strings.Contains(res.stderr, "exists") {
			t.Errorf("%s over %s: got %d, %q", names[0], names[1], res.code, res.stderr)
		}
	}
	r.ok("sandbox", "files", "mv", "agent", "-f", "/root/mv/moved", "/root/mv/other")
	if got := r.ok("run", "agent", "--", "sh", "-c", "cd /root/mv; echo *; cat other"); got != "away empty led other\n1\n" {
		t.Errorf("there is %q", got)
	}
}

func testTree(t *testing.T, r *rig) {
	must.OK(t, os.MkdirAll("src/deep/"+strings.Repeat("n", 200), 0o755))
	for name, mode := range map[string]os.FileMode{
		"plain": 0o644, "script": 0o755, "secret": 0o600, "new\nline": 0o644, "esc\x1b[31m": 0o644, "not\xff\xfeutf8": 0o644,
		" space ": 0o644, "-rf": 0o644, "ünï": 0o644, "deep/" + strings.Repeat("n", 200) + "/f": 0o444,
	} {
		must.OK(t, os.WriteFile("src/"+name, []byte("in "+name), 0o600))
		must.OK(t, os.Chmod("src/"+name, mode))
		must.OK(t, os.Chtimes("src/"+name, time.Unix(1e9, 0), time.Unix(1e9, 0)))
	}
	must.OK(t, os.Link("src/plain", "src/second"))
	must.OK(t, os.Symlink("../plain", "src/deep/link"))
	must.OK(t, os.Mkdir("src/empty", 0o711))
	want := look(t, "src")
	if res := r.sallyport("sandbox", "cp", "src", "agent:/root"); res.code != 2 || !strings.Contains(res.stderr, "-r") {
		t.Errorf("without -r: %s", res)
	}
	r.ok("sandbox", "cp", "-r", "src", "agent:/root")             // into a folder that is there
	r.ok("sandbox", "cp", "-r", "agent:/root/src", "there")       // as one that is not
	r.ok("sandbox", "cp", "-r", "src/.", "agent:root/new")        // what is in it
	r.ok("sandbox", "cp", "-r", "agent:/root/new/.", "./newcopy") // and back
	for _, got := range []string{"there", "newcopy"} {
		if diff := cmp.Diff(want, look(t, got)); diff != "" {
			t.Errorf("%s: -want +got\n%s", got, diff)
		}
	}
	if res := r.inside("agent", "ls -A /root/new | wc -l; cat /root/src/deep/link"); res.stdout != fmt.Sprintf("%d\nin plain", 13) {
		t.Errorf("inside: %s", res)
	}
	list := r.ok("sandbox", "files", "ls", "agent", "/root/src")
	if strings.ContainsAny(list, "\x1b") || !strings.Contains(list, `esc`) || strings.Count(list, "\n") != 13 {
		t.Errorf("listed:\n%q", list)
	}
}

func testSingle(t *testing.T, r *rig) {
	if res := r.feed("one\n", "sandbox", "files", "put", "agent", "/tmp/a/b/one", "-p", "--mode", "0640"); res.code != 0 || !strings.Contains(res.stdout, "-0640") {
		t.Errorf("put: %s", res)
	}
	r.ok("sandbox", "files", "mv", "agent", "/tmp/a/b/one", "/tmp/two")
	if got := r.ok("sandbox", "files", "cat", "agent", "/tmp/two"); got != "one\n" {
		t.Errorf("cat: %q", got)
	}
	r.ok("sandbox", "cp", "agent:/tmp/two", ".")
	r.ok("sandbox", "cp", "two", "agent:/root/three")
	if got := r.ok("sandbox", "files", "stat", "agent", "/root/three"); !strings.Contains(got, "-0640") {
		t.Errorf("stat: %s", got)
	}
	r.ok("sandbox", "files", "mkdir", "agent", "/tmp/d", "--mode", "0700")
	if res := r.sallyport("sandbox", "files", "rm", "agent", "/tmp/a"); res.code != 1 || !strings.Contains(res.stderr, "not empty") {
		t.Errorf("rm of what is not empty: %s", res)
	}
	r.ok("sandbox", "files", "rm", "-r", "agent", "/tmp/a")
	if res := r.sallyport("sandbox", "files", "cat", "agent", "/tmp/a"); res.code != 1 || !strings.Contains(res.stderr, "no such file") {
		t.Errorf("cat of what is not there: %s", res)
	}
	// Any use starts it.
	r.ok("sandbox", "stop", "agent")
	if got := r.ok("sandbox", "files", "cat", "agent", "/root/three"); got != "one\n" {
		t.Errorf("cat of a sandbox that was stopped: %q", got)
	}
}

func testFilesOfUser(t *testing.T, r *rig) {
	r.inside("agent", "umask 077; echo secret >/root/secret; chmod 700 /root; mkdir -m 700 /tmp/theirs; chown nobody:nogroup /tmp/theirs")
	for _, args := range [][]string{
		{"sandbox", "files", "cat", "-u", "nobody", "agent", "/root/secret"},
		{"sandbox", "files", "rm", "-u", "nobody", "agent", "/etc/passwd"},
		{"sandbox", "files", "mkdir", "-u", "nobody", "agent", "/etc/mine"},
		{"sandbox", "cp", "-u", "nobody", "two", "agent:/etc/two"},
		{"sandbox", "cp", "-u", "nobody", "-r", "src", "agent:/etc"},
		{"sandbox", "cp", "-u", "nobody", "-r", "agent:/root", "stolen"},
	} {
		if res := r.sallyport(args...); res.code != 1 || !strings.Contains(res.stderr, "permission denied") {
			t.Errorf("%q: %s", args, res)
		}
	}
	r.ok("sandbox", "cp", "-u", "nobody", "-r", "src", "agent:/tmp/theirs")
	if res := r.inside("agent", "stat -c %U:%G /tmp/theirs/src/plain; cat /root/secret"); res.stdout != "nobody:nogroup\nsecret\n" {
		t.Errorf("inside: %s", res)
	}
}

func testHostileFiles(t *testing.T, r *rig) {
	r.inside("agent", `mkdir -p /tmp/evil/sub && cd /tmp/evil && ln -s /etc/shadow shadow && ln -s ../../.. up && mkfifo pipe &&
		mknod null c 1 3; cp /bin/true setuid && chmod 6755 setuid && printf x >"$(printf 'esc\033]0;owned\007')"`)
	res := r.sallyport("sandbox", "cp", "-r", "agent:/tmp/evil", ".")
	if res.code != 1 || strings.Contains(res.stderr, "\x1b") || !strings.Contains(res.stderr, "evil/shadow: a link that leads out") {
		t.Errorf("got %s", res)
	}
	for _, name := range []string{"shadow", "up", "pipe", "null"} {
		if _, err := os.Lstat("evil/" + name); !os.IsNotExist(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if i, err := os.Stat("evil/setuid"); err != nil || i.Mode() != 0o755 {
		t.Errorf("setuid: %v, %v", i, err)
	}
	if res := r.sallyport("sandbox", "cp", "-r", "--max-bytes", "1000", "agent:/tmp/evil", "less"); res.code != 1 || !strings.Contains(res.stderr, "more than 1000 bytes") {
		t.Errorf("beyond the bound: %s", res)
	}
}

func testWatchInside(t *testing.T, r *rig) {
	c := exec.Command(filepath.Join(tools.Dir, "sallyport"), "--config", r.config, "sandbox", "files", "watch", "-r", "agent", "/tmp")
	out, err := c.StdoutPipe()
	must.OK(t, err)
	must.OK(t, c.Start())
	defer func() { c.Process.Kill(); c.Wait() }()
	lines := make(chan string, 100)
	go func() {
		defer close(lines)
		buf := make([]byte, 4096)
		for {
			n, err := out.Read(buf)
			if err != nil {
				return
			}
			lines <- string(buf[:n])
		}
	}()
	got := ""
	await := func(want string) {
		t.Helper()
		for deadline := time.After(time.Minute); !strings.Contains(got, want); {
			select {
			case more := <-lines:
				got += more
			case <-deadline:
				t.Fatalf("no %q in %q", want, got)
			}
		}
	}
	await("ready")
	r.inside("agent", "mkdir -p /tmp/w/x")
	await("created   w/\n")
	await("created   w/x/\n") // then it is watched too
	r.inside("agent", "echo 1 >/tmp/w/x/f && rm /tmp/w/x/f")
	await("w/x/f\n")
	await("removed   w/x/f\n")
}

// Changes of files by a root inside are told, whatever it makes of their times.
func testChanges(t *testing.T, r *rig) {
	r.ok("run", "fresh", "--", "sh", "-c", `rm /etc/motd 2>/dev/null; touch -r /etc/passwd /tmp/ref; echo x >>/etc/passwd; touch -r /tmp/ref /etc/passwd
		rm /etc/issue; mkdir -p /opt/new; ln -s /etc/shadow /opt/new/link; printf x >"$(printf '/opt/new/esc\033[31m')"`)
	got := r.ok("sandbox", "changes", "fresh")
	for _, want := range []string{
		"modified  /etc/passwd\n", "removed   /etc/issue\n", "added     /opt/new\n", "added     /opt/new/link\n", "added     /opt/new/esc\\x1b[31m\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if strings.Contains(got, "shadow") || strings.Contains(got, "/etc\n") || strings.Contains(got, "\x1b") {
		t.Errorf("got\n%s", got)
	}
	if res := r.sallyport("sandbox", "changes", "fresh", "none"); res.code != 1 || !strings.Contains(res.stderr, "no such snapshot") {
		t.Errorf("since nothing: %s", res)
	}
}
