package e2e

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sallyport/internal/test/must"
)

func testSSHFiles(t *testing.T, r *rig, alice, bob *operator) {
	const size = 100 << 20
	big := make([]byte, size)
	if _, err := rand.Read(big); err != nil {
		t.Fatal(err)
	}
	sum := fmt.Sprintf("%x", sha256.Sum256(big))
	r.write("big", string(big))
	big = nil
	at := filepath.Join(r.dir, "big")
	pid, _ := r.sshProcess()
	if res := alice.run("", "scp", at, "demo@127.0.0.1:big"); res.code != 0 {
		t.Fatalf("up: %s", res)
	}
	if got := r.inside("demo", "sha256sum /root/big; stat -c %s /root/big"); !strings.HasPrefix(got.stdout, sum) {
		t.Errorf("what has come: %s, want %s", got, sum)
	}
	if res := alice.run("", "scp", "demo@127.0.0.1:/root/big", at+".back"); res.code != 0 {
		t.Fatalf("down: %s", res)
	}
	back, err := os.ReadFile(at + ".back")
	if err != nil || fmt.Sprintf("%x", sha256.Sum256(back)) != sum {
		t.Errorf("what has come back has %d bytes (%v)", len(back), err)
	}
	peak := memoryPeak(t, pid)
	t.Logf("the process took %d MiB for %d MiB each way", peak>>20, size>>20)
	if peak > 80<<20 {
		t.Errorf("the process took %d MiB", peak>>20)
	}

	// Folders, and what sftp knows.
	must.OK(t, os.MkdirAll(filepath.Join(r.dir, "tree", "below"), 0o755))
	r.write("tree/one", "1")
	r.write("tree/below/two", "22")
	if res := alice.run("", "scp", "-r", filepath.Join(r.dir, "tree"), "demo@127.0.0.1:/root/"); res.code != 0 {
		t.Errorf("a folder up: %s", res)
	}
	if got := r.inside("demo", "cat /root/tree/one /root/tree/below/two"); got.stdout != "122" {
		t.Errorf("a folder: %s", got)
	}
	res := alice.run("ls tree\nrename tree/one tree/first\nrm tree/below/two\nrmdir tree/below\nmkdir new\n-symlink a b\nchmod 640 tree/first\npwd\n", "sftp", "-b", "-", "demo@127.0.0.1")
	if res.code != 0 || !strings.Contains(res.stdout, "tree/one") || !strings.Contains(res.stdout, "Remote working directory: /root") {
		t.Errorf("sftp: %s", res)
	}
	if got := r.inside("demo", "ls /root/tree; ls -d /root/new"); got.stdout != "first\n/root/new\n" {
		t.Errorf("after sftp: %s", got)
	}
	testSSHAttributes(t, r, alice)
	for what, args := range map[string][]string{
		"no such folder":  {at, "demo@127.0.0.1:/no/such/folder/x"},
		"no such file":    {"demo@127.0.0.1:/root/nothing", at + ".x"},
		"a broken upload": {"/proc/self/mem", "demo@127.0.0.1:/root/mem"},
	} {
		if res := alice.run("", "scp", args...); res.code == 0 {
			t.Errorf("%s: %s", what, res)
		}
	}
	// A download that begins in the middle.
	must.OK(t, os.WriteFile(filepath.Join(r.dir, "part"), back[:1<<20], 0o600))
	if res := alice.run("reget /root/big "+filepath.Join(r.dir, "part")+"\n", "sftp", "-b", "-", "demo@127.0.0.1"); res.code != 0 {
		t.Errorf("reget: %s", res)
	}
	if part, _ := os.ReadFile(filepath.Join(r.dir, "part")); !bytes.Equal(part, back) {
		t.Errorf("reget has %d bytes", len(part))
	}

	// Off for who is not allowed it, with a word that says where.
	for _, args := range [][]string{{"scp", at, "demo@127.0.0.1:x"}, {"sftp", "-b", "-", "demo@127.0.0.1"}} {
		res := bob.run("ls\n", args[0], args[1:]...)
		if res.code == 0 || !strings.Contains(res.stderr, "files over SSH are off for this key: an operator can write allow: [sftp] beside it under ssh.keys in sallyport.yaml") {
			t.Errorf("%s of bob's: %s", args[0], res)
		}
	}
}

// testSSHAttributes keeps modes and times, goes on with an upload that broke off, and
// says what scp's old protocol needs.
func testSSHAttributes(t *testing.T, r *rig, alice *operator) {
	if got := r.inside("demo", "stat -c %a /root/tree/first"); got.stdout != "640\n" {
		t.Errorf("chmod: %s", got)
	}
	script := filepath.Join(r.dir, "script")
	r.write("script", "#!/bin/sh\necho ran\n")
	then := time.Unix(1_000_000_000, 0)
	must.OK(t, errors.Join(os.Chmod(script, 0o750), os.Chtimes(script, then, then)))
	for _, args := range [][]string{{script, "demo@127.0.0.1:plain"}, {"-p", script, "demo@127.0.0.1:kept"}, {"-p", "demo@127.0.0.1:kept", script + ".back"}} {
		if res := alice.run("", "scp", args...); res.code != 0 {
			t.Errorf("scp %q: %s", args, res)
		}
	}
	if got := r.inside("demo", "cd; stat -c %a plain; stat -c '%a %Y' kept; ./plain"); got.stdout != "750\n750 1000000000\nran\n" {
		t.Errorf("modes and times: %s", got)
	}
	if i, err := os.Stat(script + ".back"); err != nil || i.Mode() != 0o750 || !i.ModTime().Equal(then) {
		t.Errorf("and back: %v, %v", i, err)
	}
	// Over what is there, longer and shorter.
	for _, text := range []string{"#!/bin/sh\necho ran for longer\n", "short\n"} {
		r.write("again", text)
		if res := alice.run("", "scp", filepath.Join(r.dir, "again"), "demo@127.0.0.1:plain"); res.code != 0 {
			t.Errorf("scp again: %s", res)
		}
		if got := r.inside("demo", "cd; cat plain; stat -c %a plain"); got.stdout != text+"750\n" {
			t.Errorf("what was there: %s", got)
		}
	}
	// The rest of an upload, and what only some of the image's files are for.
	half := strings.Repeat("half", 1<<20)
	r.write("whole", half+half)
	r.ok("run", "demo", "--", "sh", "-c", "cd; yes half | tr -d '\\n' | head -c 4194304 > whole")
	if res := alice.run("put -a "+filepath.Join(r.dir, "whole")+" whole\n", "sftp", "-b", "-", "demo@127.0.0.1"); res.code != 0 {
		t.Errorf("put -a: %s", res)
	}
	if got := r.inside("demo", "cd; yes half | tr -d '\\n' | head -c 8388608 | cmp - whole && stat -c %s whole"); got.stdout != "8388608\n" {
		t.Errorf("what was there and the rest: %s", got)
	}
	if res := alice.run("", "scp", "-O", script, "demo@127.0.0.1:old"); res.code == 0 || !strings.Contains(res.stderr, "scp: command not found") {
		t.Errorf("scp's old protocol without scp in the image: %s", res)
	}
	program, err := exec.LookPath("scp")
	must.OK(t, err)
	if res := alice.run("", "scp", program, "demo@127.0.0.1:/usr/local/bin/scp"); res.code != 0 {
		t.Fatalf("scp itself: %s", res)
	}
	if got := r.inside("demo", "scp"); !strings.Contains(got.stderr, "usage: scp") {
		t.Logf("this machine's scp is none in the image: %s", got)
		return
	}
	for _, args := range [][]string{{"-O", "-p", script, "demo@127.0.0.1:old"}, {"-O", "-p", "demo@127.0.0.1:old", script + ".old"}} {
		if res := alice.run("", "scp", args...); res.code != 0 {
			t.Errorf("scp %q: %s", args, res)
		}
	}
	if i, err := os.Stat(script + ".old"); err != nil || i.Mode() != 0o750 || !i.ModTime().Equal(then) {
		t.Errorf("by the old protocol, and back: %v, %v", i, err)
	}
}

// memoryPeak is how much a process has had in RAM, in bytes.
func memoryPeak(t *testing.T, pid int) (n int64) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	must.OK(t, err)
	for line := range strings.Lines(string(text)) {
		if _, err := fmt.Sscanf(line, "VmHWM: %d kB", &n); err == nil {
			return n << 10
		}
	}
	t.Fatal("no VmHWM")
	return 0
}
