package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sallyport/internal/test/must"
	"sallyport/sandbox"
)

// An operator copies files out of a sandbox that does not start, and into it, by the
// verb for every other: nothing of the host's is read or written, and it starts again
// with what was mended.
func testUnstartable(t *testing.T, r *rig) {
	outside := filepath.Join(t.TempDir(), "outside")
	must.OK(t, os.WriteFile(outside, []byte("kept"), 0o600))
	if res := r.feed(traps, "run", "agent", "--", "python3", "-", "/root", outside, "200", "t"); res.code != 0 {
		t.Fatal(res)
	}
	if res := r.inside("agent", "echo work > /root/work; echo note > /memory/note; echo broken > /etc/profile; rm -rf /root/t/d"); res.code != 0 {
		t.Fatal(res)
	}
	r.ok("sandbox", "stop", "agent")
	// A file that the engine mounts in every sandbox is not there.
	needed := filepath.Join(r.dir, "data/runtime/resolv.conf")
	must.OK(t, os.Rename(needed, needed+".away"))
	if res := r.sallyport("sandbox", "exec", "agent", "--", "true"); res.code == 0 || !strings.Contains(res.stderr, "sallyport sandbox cp") {
		t.Errorf("it starts, or nobody says how to get at its files: %s", res)
	}
	to := t.TempDir()
	for _, c := range []struct{ from, want string }{
		{"/root/work", "work\n"}, {"/memory/note", "note\n"}, {"/etc/profile", "broken\n"}, {"/etc/debian_version", "12."},
	} {
		r.ok("sandbox", "cp", "agent:"+c.from, to)
		if got, err := os.ReadFile(filepath.Join(to, filepath.Base(c.from))); err != nil || !strings.HasPrefix(string(got), c.want) {
			t.Errorf("%s: %q, %v", c.from, got, err)
		}
	}
	for _, trap := range []string{"/root/t/secret", "/root/t/folder/outside", "/root/t/pipe", "/root/t/loop", outside, "/root/t/../../../../.." + outside} {
		if res := r.sallyport("sandbox", "cp", "agent:"+trap, to); res.code == 0 {
			t.Errorf("%s was copied: %s", trap, res)
		}
	}
	// The link up climbs above the sandbox's root, where its own /etc is.
	r.ok("sandbox", "cp", "agent:/root/t/up/shadow", filepath.Join(to, "above"))
	r.ok("sandbox", "cp", "agent:/etc/shadow", filepath.Join(to, "own"))
	above, err := os.ReadFile(filepath.Join(to, "above"))
	own, err2 := os.ReadFile(filepath.Join(to, "own"))
	if err != nil || err2 != nil || string(above) != string(own) {
		t.Errorf("by the link it reads %q, %v, its own is %q, %v", above, err, own, err2)
	}
	if res := r.sallyport("sandbox", "cp", "--max-bytes", "1MiB", "agent:/root/t/holes", to); res.code == 0 {
		t.Errorf("a terabyte of nothing: %s", res)
	}
	mended := filepath.Join(to, "mended")
	must.OK(t, os.WriteFile(mended, []byte("mended\n"), 0o644))
	r.ok("sandbox", "cp", mended, "agent:/etc/profile")
	r.ok("sandbox", "cp", "-r", to, "agent:/root/in")
	_ = r.sallyport("sandbox", "cp", mended, "agent:/root/t/secret")
	if got, err := os.ReadFile(outside); string(got) != "kept" {
		t.Errorf("what a link led to: %q, %v", got, err)
	}
	if i := r.info("agent"); i.State != sandbox.Stopped {
		t.Errorf("it is %s", i.State)
	}
	if left := mountsBelow(filepath.Join(r.dir, "data/sandboxes")); len(left) > 0 {
		t.Errorf("mounted: %v", left)
	}
	must.OK(t, os.Rename(needed+".away", needed))
	if out := r.inside("agent", "cat /etc/profile /root/in/work /root/work /memory/note"); out.stdout != "mended\nwork\nwork\nnote\n" {
		t.Errorf("it has %s", out)
	}
}
