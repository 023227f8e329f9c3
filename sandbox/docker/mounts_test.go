package docker

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/container"

	"sallyport/internal/test/must"
	"sallyport/sandbox"
	"sallyport/sandbox/disk"
)

// unaccounted lists what is mounted writable in a sandbox and is neither of its disk nor
// of its memory: each such file system is as large as the root folder's, or has no size.
const unaccounted = `
disk=$(stat -f -c '%b' /)
while read -r what at type options rest; do
	case $type,$options in
	*,ro,* | *,ro | proc,* | devpts,* | dev,* | mqueue,* | cgroup,* | tmpfs,*) ;;
	*) [ "$(stat -f -c '%b' "$at")" = "$disk" ] || echo "$what $at $type $options" ;;
	esac
done </proc/mounts
grep -c . /proc/mounts`

// diskful is a sandbox with a disk of its own, as small as it can be.
func (l *testEngine) diskful(t *testing.T, image, runtime string) sandbox.Container {
	t.Helper()
	folder := t.TempDir()
	must.OK(t, disk.Make(folder, disk.Min))
	t.Cleanup(func() {
		if err := disk.Detach(folder); err != nil {
			t.Error(err)
		}
	})
	c := l.container(t, image)
	c.Spec.Runtime, c.Layer = runtime, disk.Layer(folder)
	c.Mounts = []sandbox.Mount{{Source: filepath.Join(folder, "memory"), Target: "/memory"}}
	return c
}

// taken is what the engine's own folders take of the host's disk, in bytes; what is
// mounted in them does not count.
func (l *testEngine) taken(t *testing.T) (n int64) {
	t.Helper()
	out, err := exec.Command("du", "-sx", "--block-size=1", filepath.Join(l.cfg.DataDir, "engine")).Output()
	must.OK(t, err)
	if _, err := fmt.Sscan(string(out), &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// Whatever a sandbox writes lies on its disk, or in its memory: the engine's files and
// the volumes that an image declares are no ways to the host's disk. They can be written
// all the same, and volumes begin with what the image has there.
func TestMounts(t *testing.T) {
	l := need(t)
	volumes := l.derive(t, "volumes", `
		mkdir -p /srv/data/below && echo of the image >/srv/data/below/file && chown -R 33:33 /srv/data && chmod 750 /srv/data
		ln -s /srv/data /srv/link`,
		`VOLUME /srv/data`, `VOLUME ["/var/lib/new/", "srv/relative"]`, "ENV KEPT=yes")
	small := l.derive(t, "small", "rm -rf /mnt /opt", "VOLUME /mnt")
	for _, c := range []struct {
		name, image, runtime string
		fill                 []string // beside /etc/hosts
	}{
		{"base", testImage, sandbox.GVisor, []string{"/etc/hostname", "/memory/full"}},
		{"volumes", volumes, sandbox.GVisor, []string{"/srv/data/full"}},
		{"a volume without a folder", small, sandbox.GVisor, []string{"/mnt/full"}},
		{"volumes with runc", volumes, sandbox.RunC, []string{"/var/lib/new/full"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			of := l.diskful(t, c.image, c.runtime)
			id := l.start(t, of)
			got := strings.Split(l.sh(t, id, unaccounted), "\n")
			if len(got) != 1 || len(got[0]) < 2 {
				t.Errorf("writable, and not accounted for: %q", got)
			}
			info, err := l.runtime.inspect(t.Context(), id)
			must.OK(t, err)
			for _, m := range info.Mounts {
				if m.RW && m.Destination != "/memory" {
					t.Errorf("the engine mounts %+v", m)
				}
			}
			if got := l.sh(t, id, "cat /etc/hostname; grep -c '"+of.Name+"$' /etc/hosts; echo 203.0.113.9 db >>/etc/hosts; grep db /etc/hosts"); got != of.Name+"\n1\n203.0.113.9 db" {
				t.Errorf("its name and hosts: %q", got)
			}
			if strings.HasPrefix(c.name, "volumes") {
				const want = "of the image\n33:33 750\n0:0 755\nyes"
				const look = "cat /srv/link/below/file; stat -c '%u:%g %a' /srv/data /var/lib/new; test -d /srv/relative; echo $KEPT"
				if got := l.sh(t, id, look); got != want {
					t.Errorf("the volumes hold %q, want %q", got, want)
				}
			}
			before := l.taken(t)
			for _, at := range append(c.fill, "/etc/hosts") {
				out, code := l.try(t, id, "head -c 200M /dev/zero >"+at)
				if code == 0 || !strings.Contains(out, "No space left on device") {
					t.Errorf("filling %s ended with %d: %s", at, code, out)
				}
				if now := l.taken(t); now > before+1<<20 {
					t.Errorf("writing %s has taken %d MB of the host's disk", at, (now-before)>>20)
				}
				if at != "/etc/hosts" {
					l.sh(t, id, ": >"+at)
				}
			}
			// Full, it starts again, and goes without a trace.
			must.OK(t, l.runtime.Stop(t.Context(), id, 0))
			folder := filepath.Dir(filepath.Dir(of.Layer))
			must.OK(t, disk.Yield(folder))
			if _, err := l.runtime.Start(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			if got := l.sh(t, id, "cat /etc/hostname"); got != of.Name {
				t.Errorf("started again it is called %q", got)
			}
			if err := l.runtime.Remove(t.Context(), id); err != nil {
				t.Error(err)
			}
			if left, err := MountedBelow(filepath.Join(l.runtime.root, "containers")); err != nil || len(left) != 0 {
				t.Errorf("left mounted: %q, %v", left, err)
			}
		})
	}
}

// A sandbox of an earlier version has volumes and the engine's files: it starts as ever,
// and so does a fork of it.
func TestVolumesOfBefore(t *testing.T) {
	l := need(t)
	image := l.derive(t, "before", "mkdir /srv/data && echo of the image >/srv/data/file", "VOLUME /srv/data")
	c := l.diskful(t, image, sandbox.GVisor)
	img, err := l.engine.Images().Resolve(t.Context(), image, false) // as it is
	must.OK(t, err)
	mac, err := l.runtime.hardwareAddr(t.Context(), c)
	must.OK(t, err)
	if _, err := l.runtime.client.ContainerCreate(t.Context(), l.runtime.options(c, img, mac, nil)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.runtime.Remove(context.Background(), c.ID) })
	if _, err := l.runtime.Start(t.Context(), c.ID); err != nil {
		t.Fatal(err)
	}
	if got := l.sh(t, c.ID, "cat /srv/data/file; grep -c ' /srv/data ' /proc/mounts"); got != "of the image\n1" {
		t.Errorf("got %q", got)
	}
	child := l.container(t, "")
	child.Like = c.ID
	l.create(t, child)
	info, err := l.runtime.inspect(t.Context(), child.ID)
	must.OK(t, err)
	if !slices.ContainsFunc(info.Mounts, func(m container.MountPoint) bool { return m.Destination == "/srv/data" }) {
		t.Errorf("the fork's mounts: %+v", info.Mounts)
	}
}
