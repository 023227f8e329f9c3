package e2e

import (
	"strings"
	"testing"

	"sallyport/internal/test/must"
)

// A store is shared by the sandboxes that the configuration selects: one writes, another
// reads, a third does not have it. It outlasts them, fills no more than its own disk, and
// is there after a restart, a fork and a reload of memory.
func TestStores(t *testing.T) {
	r := newRig(t, `
memory:
  stores:
  - name: team
    sandboxes: {tags: {team: support}}
    writers: {names: [writer]}
    size: 64MiB
`)
	r.serve()
	r.up()
	for _, name := range []string{"writer", "reader"} {
		r.ok("sandbox", "create", name, "--tag", "team=support")
	}
	inside := func(name, shell, want string, code int) {
		t.Helper()
		if res := r.inside(name, shell); res.code != code || !strings.Contains(res.stdout+res.stderr, want) {
			t.Errorf("%s: %s: %s, want %d with %q", name, shell, res, code, want)
		}
	}
	inside("writer", "echo 'ask first' > /stores/team/rules.md && cat /stores/team/rules.md", "ask first", 0)
	inside("reader", "cat /stores/team/rules.md", "ask first", 0)
	inside("reader", "echo x > /stores/team/rules.md", "Read-only", 2)
	inside("reader", "mount -o remount,rw /stores/team; echo x > /stores/team/rules.md", "", 2)
	inside("other", "ls /stores", "No such file", 2)
	inside("writer", "echo 'ask twice' >> /stores/team/rules.md", "", 0)
	inside("reader", "cat /stores/team/rules.md", "ask twice", 0)
	inside("writer", "head -c 100000000 /dev/zero > /stores/team/full", "No space", 1)
	inside("writer", "rm /stores/team/full", "", 0)

	r.ok("sandbox", "fork", "reader", "child")
	inside("child", "cat /stores/team/rules.md", "ask twice", 0)
	r.ok("sandbox", "hibernate", "reader")
	inside("reader", "cat /stores/team/rules.md", "ask twice", 0)

	must.OK(t, r.daemon.Down())
	r.up()
	inside("reader", "cat /stores/team/rules.md", "ask twice", 0)
	for _, name := range []string{"writer", "reader", "child"} {
		r.ok("sandbox", "rm", name)
	}
	r.ok("sandbox", "create", "later", "--tag", "team=support")
	inside("later", "cat /stores/team/rules.md", "ask twice", 0)
}
