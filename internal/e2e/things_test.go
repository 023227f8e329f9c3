package e2e

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"sallyport/internal/test/model"
	"sallyport/internal/test/must"
	"sallyport/sandbox"
)

// things are what the host has because of sandboxes: containers, images and volumes
// of the private engine, mounts, loop devices, links, pinned programs, folders.
func (r *rig) things() (list []string) {
	r.t.Helper()
	for what, args := range map[string][]string{
		"container": {"ps", "-a", "--format", "{{.Names}} {{.State}}"},
		"image":     {"images", "-a", "--format", "{{.ID}}"},
		"volume":    {"volume", "ls", "-q"},
	} {
		out, err := r.docker(args...).Output()
		if err != nil {
			r.t.Fatalf("docker %q: %v", args, err)
		}
		for line := range strings.Lines(string(out)) {
			list = append(list, what+" "+strings.TrimSpace(line))
		}
	}
	for _, at := range mountsBelow(r.dir) {
		if filepath.Base(at) == "null-netns" {
			continue // runsc's, made once for all
		}
		list = append(list, "mount "+strings.TrimPrefix(at, r.dir+"/"))
	}
	for _, file := range r.loops() {
		list = append(list, "loop "+file)
	}
	links, err := net.Interfaces()
	must.OK(r.t, err)
	has := map[int]bool{}
	for _, l := range links {
		has[l.Index] = true
		if strings.HasPrefix(l.Name, "veth") {
			list = append(list, fmt.Sprint("link ", l.Index))
		}
	}
	pins, err := os.ReadDir("/sys/fs/bpf/sallyport/spe2e0")
	must.OK(r.t, err)
	for _, p := range pins {
		hook, index, _ := strings.Cut(p.Name(), "-")
		n, err := strconv.Atoi(index)
		switch {
		case err != nil: // a map
		case !has[n]:
			list = append(list, "stale pin "+p.Name())
		case hook != "bridge":
			list = append(list, "pin "+p.Name())
		}
	}
	for _, dir := range []string{"data/sandboxes", "data/sandboxes/.pool", "data/sandboxes/.by-id", "run/sleep"} {
		files, _ := os.ReadDir(filepath.Join(r.dir, dir))
		for _, f := range files {
			if f.IsDir() && !strings.HasPrefix(f.Name(), ".") || f.Type()&os.ModeSymlink != 0 {
				list = append(list, "folder "+filepath.Join(dir, f.Name()))
			}
		}
	}
	slices.Sort(list)
	return list
}

// tally counts the things that begin so.
func tally(things []string, prefix string) (n int) {
	for _, t := range things {
		if strings.HasPrefix(t, prefix) {
			n++
		}
	}
	return n
}

// agrees checks that listing, log and host tell the same of all sandboxes, and that
// so many more wait in the pool.
func (r *rig) agrees(pool int) {
	r.t.Helper()
	list, err := r.control().Sandboxes(r.t.Context())
	must.OK(r.t, err)
	recorded, err := model.Path(r.history())
	if err != nil {
		r.t.Errorf("%v", err)
	}
	things := r.things()
	live := 0
	listed := map[string]bool{}
	for _, i := range list {
		listed[i.Name] = true
		if string(i.State) != recorded[i.Name] {
			r.t.Errorf("%s is %s (%s), and %q by what is recorded", i.Name, i.State, i.Reason, recorded[i.Name])
		}
		want, disk := "exited", 0
		switch i.State {
		case sandbox.Running:
			want, disk = "running", 1
		case sandbox.Paused:
			want, disk = "paused", 1
		}
		live += disk
		if c := "container sallyport-" + i.ID + " "; !slices.Contains(things, c+want) && (disk > 0 || !slices.Contains(things, c+"created")) {
			r.t.Errorf("%s is %s, and its container is not %s", i.Name, i.State, want)
		}
		own := "data/sandboxes/" + i.Name
		if _, err := os.Stat(filepath.Join(r.dir, own, "checkpoint")); (err == nil) != (i.State == sandbox.Hibernated) {
			r.t.Errorf("%s is %s, and its checkpoint: %v", i.Name, i.State, err)
		}
		if got := []int{tally(things, "loop "+own+"/"), tally(things, "mount "+own+"/disk"), tally(things, "mount "+own+"/memory"), tally(things, "folder "+own)}; !slices.Equal(got, []int{disk, disk, disk, 1}) {
			r.t.Errorf("%s is %s, and has %v loop devices, two mounts and folder", i.Name, i.State, got)
		}
	}
	for name, state := range recorded {
		if state != "" && !listed[name] {
			r.t.Errorf("%s is %s by what is recorded, and not listed", name, state)
		}
	}
	for what, n := range map[string]int{
		"container ": len(list) + pool, "link ": live + pool, "loop ": live + pool, "pin in-": live + pool, "pin out-": live + pool, "stale ": 0,
		"folder data/sandboxes/.pool/": pool, "folder run/": 0, "volume ": 0, "image ": 1,
	} {
		if got := tally(things, what); got != n {
			r.t.Errorf("%d of %q, want %d, for %d sandboxes of which %d are live: %v", got, what, n, len(list), live, things)
		}
	}
	// The engine has its own, and each layer is covered while it is used.
	if got := tally(things, "mount data/engine/docker/overlay2/"); got != 2*(live+pool) {
		r.t.Errorf("%d layers are mounted for %d sandboxes: %v", got, live, things)
	}
}
