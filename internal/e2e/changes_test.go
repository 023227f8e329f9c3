package e2e

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// changed are the lines that tell what has changed since a snapshot.
func (r *rig) changed(name, since string) []string {
	r.t.Helper()
	lines := strings.FieldsFunc(r.ok("sandbox", "changes", name, since), func(c rune) bool { return c == '\n' })
	for i, line := range lines {
		lines[i] = strings.Join(strings.Fields(line), " ")
	}
	slices.Sort(lines)
	return lines
}

const (
	prepare = `mkdir -p /opt/a/b && cd /opt/a && echo 1 >written && echo 1 >appended && echo 1 >gone && echo 1 >old && echo 1 >mode && echo 1 >same &&
		touch -d 2001-01-01 same && ln -s old link && echo 1 >b/deep && ln same second && truncate -s 64M holes && rm -r /etc/logrotate.d /etc/issue; echo 1 >/memory/note; echo 1 >/memory/kept`
	work = `cd /opt/a; sleep 0.1; echo 2 >written; echo 2 >>appended; rm gone; mv old new; chmod 600 mode; ln -sf /etc/shadow link; printf x >"$(printf 'esc\033[31m')"
		touch -r same /tmp/time; echo 2 >same; touch -r /tmp/time same; rm /tmp/time; cat b/deep appended >/dev/null; mv b/deep b/x; mv b/x b/deep
		printf x | dd of=holes bs=1 seek=1000000 conv=notrunc 2>/dev/null
		echo x >>/etc/passwd; rm /etc/issue.net; rm -r /etc/cron.daily; mkdir /etc/cron.daily; mkdir /etc/logrotate.d; echo 2 >/memory/note; echo 2 >/memory/fresh`
)

// what work changes. That it makes a folder anew is told by what is in it no more.
var worked = []string{
	"added /etc/logrotate.d", `added /opt/a/esc\x1b[31m`, "added /memory/fresh", "added /opt/a/new",
	"modified /etc/passwd", "modified /memory/note", "modified /opt/a/appended", "modified /opt/a/holes", "modified /opt/a/link",
	"modified /opt/a/mode", "modified /opt/a/same", "modified /opt/a/second", "modified /opt/a/written",
	"removed /etc/issue.net", "removed /opt/a/gone", "removed /opt/a/old",
}

// The changes since a snapshot are told to the file: of a sandbox that ran, stood, slept or
// was stopped as it was made, after a restore, and in a fork.
func testChangesSince(t *testing.T, r *rig) {
	for _, state := range []string{"running", "pause", "hibernate", "stop"} {
		t.Run(state, func(t *testing.T) {
			name := "since-" + state
			r.ok("run", name, "--", "sh", "-c", prepare)
			daily := strings.Fields(r.ok("run", name, "--", "sh", "-c", "cd /etc/cron.daily && ls -A"))
			if len(daily) == 0 {
				t.Fatal("the image has nothing to remove")
			}
			if state != "running" {
				r.ok("sandbox", state, name)
			}
			r.ok("sandbox", "snapshot", name, "s")
			if got := r.changed(name, "s"); len(got) > 0 {
				t.Errorf("at once: %q", got)
			}
			r.ok("run", name, "--", "sh", "-c", work)
			want := slices.Clone(worked)
			for _, f := range daily {
				want = append(want, "removed /etc/cron.daily/"+f)
			}
			slices.Sort(want)
			if diff := cmp.Diff(want, r.changed(name, "s")); diff != "" {
				t.Errorf("later: -want +got\n%s", diff)
			}
			r.ok("sandbox", "snapshot", name, "t")
			r.ok("sandbox", "fork", name, name+"-child", "--snapshot", "s")
			if got := r.changed(name+"-child", "s"); len(got) > 0 {
				t.Errorf("in a fork: %q", got)
			}
			r.ok("run", name+"-child", "--", "sh", "-c", "echo 3 >/opt/a/written")
			if got := r.changed(name+"-child", "s"); !slices.Equal(got, []string{"modified /opt/a/written"}) {
				t.Errorf("later in a fork: %q", got)
			}
			r.ok("sandbox", "restore", name, "s")
			if got := r.changed(name, "s"); len(got) > 0 {
				t.Errorf("after a restore: %q", got)
			}
			r.ok("sandbox", "restore", name, "t")
			if diff := cmp.Diff(want, r.changed(name, "s")); diff != "" {
				t.Errorf("forth again: -want +got\n%s", diff)
			}
			if got := r.changed(name, "t"); len(got) > 0 {
				t.Errorf("since the other: %q", got)
			}
			r.ok("sandbox", "rm", name+"-child")
			r.ok("sandbox", "rm", name)
		})
	}
}
