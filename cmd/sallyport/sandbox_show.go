package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"sallyport/internal/size"
	"sallyport/internal/terminal"
	"sallyport/policy"
	"sallyport/sandbox"
)

// show writes what a sandbox is: a line for each thing that is said of it.
func show(w io.Writer, i sandbox.Info) {
	var rows []string
	say := func(what, text string) {
		if text != "" {
			rows = append(rows, what+":\t"+terminal.Escape(text))
		}
	}
	say("memory", i.Memory)
	if s := i.Storage; s.Total() > 0 {
		parts := []string{size.About(s.Disk) + " of disk"}
		if s.Snapshots > 0 {
			parts = append(parts, size.About(s.Snapshots)+" of snapshots")
		}
		if s.Memory > 0 {
			parts = append(parts, size.About(s.Memory)+" of memory")
		}
		say("on the host's disk", strings.Join(parts, ", "))
	}
	say("its disk takes no more", i.Capped)
	told(say, i.Spec)
	if l := time.Duration(i.Spec.Lifetime); l != 0 {
		say("lifetime", fmt.Sprintf("%v, until %s", l, i.Created.Add(l).Local().Format(time.DateTime)))
	}
	if l := i.Lineage; l != nil {
		of := l.Name
		if l.Snapshot != "" {
			of += ", snapshot " + l.Snapshot
		}
		say("fork of", fmt.Sprintf("%s (%s), of the lineage of %s", of, l.Parent, l.Root))
	}
	if i.Next != nil {
		next := func(what, text string) { say("next session's "+what, text) }
		told(next, unlike(i.Spec, *i.Next))
		gone(next, i.Spec, *i.Next)
	}
	if len(rows) > 0 {
		table(w, rows[0], rows[1:]...)
	}
	lost(w, i)
}

// told says what of a spec is set.
func told(say func(what, text string), s sandbox.Spec) {
	var limits []string
	if s.CPUs != 0 {
		limits = append(limits, many(int64(s.CPUs), "CPU", "CPUs"))
		if s.CPUs != float64(int64(s.CPUs)) {
			limits[0] = fmt.Sprintf("%g CPUs", s.CPUs)
		}
	}
	if s.Memory != 0 {
		limits = append(limits, policy.Size(s.Memory).String()+" of memory")
	}
	if s.Pids != 0 {
		limits = append(limits, many(s.Pids, "process", "processes"))
	}
	if s.Disk != 0 {
		limits = append(limits, policy.Size(s.Disk).String()+" of disk")
	}
	say("limits", strings.Join(limits, ", "))
	say("user", s.User)
	say("workdir", s.Workdir)
	say("owner", s.Owner)
	say("tags", listed(s.Tags))
	say("labels", listed(s.Labels))
	say("environment", listed(s.Env))
	if s.Idle != 0 {
		say("idle", fmt.Sprintf("%v, then %s", time.Duration(s.Idle), s.OnIdle))
	}
	if s.Ephemeral {
		say("ephemeral", "removed when its session ends")
	}
	if s.Offline {
		say("offline", "no network")
	}
}

// unlike is what of next is another than in now.
func unlike(now, next sandbox.Spec) (d sandbox.Spec) {
	if next.CPUs != now.CPUs {
		d.CPUs = next.CPUs
	}
	if next.Memory != now.Memory {
		d.Memory = next.Memory
	}
	if next.Pids != now.Pids {
		d.Pids = next.Pids
	}
	if next.User != now.User {
		d.User = next.User
	}
	if next.Workdir != now.Workdir {
		d.Workdir = next.Workdir
	}
	if !maps.Equal(next.Env, now.Env) {
		d.Env = next.Env
	}
	d.Offline = next.Offline && !now.Offline
	return d
}

// gone says what of now there is no more in next.
func gone(say func(what, text string), now, next sandbox.Spec) {
	if now.User != "" && next.User == "" {
		say("user", "the image's")
	}
	if now.Workdir != "" && next.Workdir == "" {
		say("workdir", "the image's")
	}
	if len(now.Env) > 0 && len(next.Env) == 0 {
		say("environment", "none")
	}
	if now.Offline && !next.Offline {
		say("offline", "no more")
	}
}

// listed is name=value of each, sorted.
func listed(m map[string]string) string {
	var all []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		all = append(all, k+"="+m[k])
	}
	return strings.Join(all, " ")
}
