package e2e

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"sallyport/internal/test/must"
	"sallyport/sandbox"
)

// traps fills a folder with what the host must not follow, wait for, believe, or
// get lost in.
const traps = `
import os, socket, sys
top = sys.argv[1]
os.mkdir(top + "/" + sys.argv[4])
os.chdir(top + "/" + sys.argv[4])
os.symlink(sys.argv[2], "secret")
os.symlink(os.path.dirname(sys.argv[2]), "folder")
os.symlink("../" * 40 + "etc", "up")
os.symlink("loop", "loop")
os.mkfifo("pipe")
s = socket.socket(socket.AF_UNIX); s.bind("socket")
for name in ["-rf", "--checkpoint-action=exec=touch pwned", "a\nb", "\x1b]0;owned\a", "*", "$(touch pwned)", "x" * 255]:
    open(name, "w").close()
f = open("holes", "w"); f.truncate(1 << 40); f.seek(1 << 39); f.write("here"); f.close()
open("suid", "w").close(); os.chmod("suid", 0o6777)
for i in range(1000):
    os.link("suid", "link%d" % i)
for i in range(int(sys.argv[3])):
    os.mkdir("d"); os.chdir("d")
`

// testTraps: whatever a sandbox puts into its files, a snapshot, a restore and a fork
// of them succeed, touch nothing of the host's, and bring the files back as they were.
func testTraps(t *testing.T, r *rig) {
	outside := filepath.Join(t.TempDir(), "outside")
	must.OK(t, os.WriteFile(outside, []byte("kept"), 0o600))
	r.ok("sandbox", "create", "agent")
	r.ok("sandbox", "snapshot", "agent", "clean")
	set := func(deep, in string) {
		t.Helper()
		for _, top := range []string{"/root", "/memory"} {
			if res := r.feed(traps, "sandbox", "exec", "agent", "--", "python3", "-", top, outside, deep, in); res.code != 0 {
				t.Fatal(res)
			}
		}
	}
	const list = `for d in /root/t /memory/t; do cd $d && ls -A | sort | md5sum && stat -c '%s %a %h' suid holes && readlink secret folder up loop && find . | wc -l; done`
	set("300", "t")
	before := r.inside("agent", list)
	if before.code != 0 {
		t.Fatal(before)
	}
	r.ok("sandbox", "snapshot", "agent", "trapped", "--memory")
	r.ok("sandbox", "fork", "agent", "child")
	r.ok("sandbox", "restore", "agent", "trapped")
	for _, name := range []string{"agent", "child"} {
		if after := r.inside(name, list); after.stdout != before.stdout {
			t.Errorf("%s has %s, had %s", name, after, before)
		}
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(r.dir, "data/sandboxes/agent/snapshots/trapped/disk"), &st); err != nil || st.Size > 64<<20 {
		t.Errorf("the snapshot has %d bytes of disk, %v", st.Size, err)
	}

	// Restore denied: nested so deep that tar(1) and cp(1) cannot name it, and beyond
	// what can be open.
	set("2200", "deep")
	const bottom = `python3 -c 'import os
for top in ["/root/deep", "/memory/deep"]:
    os.chdir(top); n = 0
    while os.path.exists("d"): os.chdir("d"); n += 1
    print(n)'`
	r.ok("sandbox", "snapshot", "agent", "deep", "--memory")
	r.ok("sandbox", "fork", "agent", "deep")
	r.ok("sandbox", "restore", "agent", "clean")
	r.ok("sandbox", "restore", "agent", "deep")
	r.ok("sandbox", "fork", "agent", "--snapshot", "deep", "again")
	for _, name := range []string{"agent", "deep", "again"} {
		if got := r.inside(name, bottom); got.stdout != "2200\n2200\n" {
			t.Errorf("%s is %s deep", name, got)
		}
	}
	if out := r.ok("sandbox", "changes", "agent", "deep"); out != "" {
		t.Errorf("since then there has changed %.300s", out)
	}
	if res := r.sallyport("sandbox", "restore", "agent", "clean", "--discard"); res.code != 0 {
		t.Errorf("back to what it was: %s", res)
	} else if got := r.inside("agent", "ls -d /root/t /memory/t /root/deep /memory/deep"); got.stdout != "" {
		t.Errorf("after the restore there is %s", got)
	}
	for _, name := range []string{"agent", "child", "deep", "again"} {
		if i := r.info(name); i.State == sandbox.Failed {
			t.Errorf("%+v", i)
		}
		r.ok("sandbox", "rm", name)
	}
	if text, err := os.ReadFile(outside); err != nil || string(text) != "kept" {
		t.Errorf("what a link led to: %q, %v", text, err)
	}
	for _, dir := range []string{".", r.dir, filepath.Join(r.dir, "data")} {
		if _, err := os.Lstat(filepath.Join(dir, "pwned")); err == nil {
			t.Errorf("a name was taken for a command: pwned in %s", dir)
		}
	}
}
