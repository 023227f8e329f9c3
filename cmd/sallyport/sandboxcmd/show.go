package sandboxcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sallyport/cmd/sallyport/cli"
	"sallyport/internal/size"
	"sallyport/internal/terminal"
	"sallyport/policy"
	"sallyport/sandbox"
	"sallyport/sandbox/client"
)

// show writes what a sandbox is: a line for each thing that is said of it.
func show(w io.Writer, i sandbox.Info) {
	var rows []string
	say := func(what, text string) {
		if text != "" {
			rows = append(rows, what+":\t"+terminal.Escape(text))
		}
	}
	if p := i.Pod; p != nil {
		say("pod", fmt.Sprintf("%s (%s)", p.Name, p.UID))
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
		if s.History > 0 {
			parts = append(parts, size.About(s.History)+" of versions of /memory")
		}
		say("on the host's disk", strings.Join(parts, ", "))
	}
	say("its disk takes no more", i.Capped)
	told(say, i.Spec)
	if l := time.Duration(i.Spec.Lifetime); l != 0 {
		say("lifetime", fmt.Sprintf("%v, until %s", l, i.Created.Add(l).Local().Format(time.DateTime)))
	}
	for _, p := range i.Placeholders {
		if p.Of == i.ID {
			say("placeholder", p.Variable+" for credential "+p.Credential)
		}
	}
	if l := i.Lineage; l != nil {
		of := l.Name
		if l.Snapshot != "" {
			of += ", snapshot " + l.Snapshot
		}
		say("fork of", fmt.Sprintf("%s (%s), of the lineage of %s", of, l.Parent, l.Root))
	}
	if i.Next != nil {
		now, next := map[string]string{}, map[string]string{}
		told(func(what, text string) { now[what] = text }, i.Spec)
		told(func(what, text string) { next[what] = text }, *i.Next)
		for _, of := range []struct{ what, none string }{
			{"limits", "none"}, {"user", "the image's"}, {"workdir", "the image's"}, {"environment", "none"}, {"offline", "no more"},
		} {
			if next[of.what] != now[of.what] {
				say("next session's "+of.what, cmp.Or(next[of.what], of.none))
			}
		}
	}
	if len(rows) > 0 {
		cli.Table(w, rows[0], rows[1:]...)
	}
	lost(w, i)
}

// told says what of a spec is set.
func told(say func(what, text string), s sandbox.Spec) {
	var limits []string
	if s.CPUs != 0 {
		limits = append(limits, cli.Many(s.CPUs, "CPU", "CPUs"))
	}
	if s.Memory != 0 {
		limits = append(limits, policy.Size(s.Memory).String()+" of memory")
	}
	if s.Pids != 0 {
		limits = append(limits, cli.Many(s.Pids, "process", "processes"))
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

// listed is name=value of each, sorted.
func listed(m map[string]string) string {
	var all []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		all = append(all, k+"="+m[k])
	}
	return strings.Join(all, " ")
}

// newSet changes what a sandbox is. A map is given as a whole: what is not
// named again is gone, and an empty flag takes all of it away.
func newSet(g *cli.Globals) *cobra.Command {
	var (
		spec              sandbox.Spec
		env, tags, labels []string
		restart           bool
	)
	c := &cobra.Command{
		Use:   "set NAME [flags]",
		Short: "Change what a sandbox is: tags, labels, idle and lifetime at once, the rest with its next session",
		Example: `  sallyport sandbox set demo --tag team=support --tag stage=test
  sallyport sandbox set demo --memory 8GiB --restart
  sallyport sandbox set demo --env ''             # no environment of its own any more`,
		Args: cli.Exactly("NAME"),
	}
	f := c.Flags()
	f.StringArrayVar(&tags, "tag", nil, "NAME=VALUE that policies can select by; all of them")
	f.StringArrayVar(&labels, "label", nil, "NAME=VALUE of your own; all of them")
	lastsVar(f, &spec.Lifetime, "lifetime", "stop it this long after its creation, as 24h; 0s: never")
	lastsVar(f, &spec.Idle, "idle", "put it to sleep when nothing has gone on for as long; 0s: never")
	f.StringVar(&spec.OnIdle, "on-idle", "", "pause, hibernate or stop")
	f.Float64Var(&spec.CPUs, "cpus", 0, "limit of processors, from its next session on")
	f.Var(sizeFlag{&spec.Memory}, "memory", "limit of memory, as 4GiB, from its next session on")
	f.Int64Var(&spec.Pids, "pids", 0, "limit of processes, from its next session on")
	f.StringArrayVarP(&env, "env", "e", nil, "NAME=VALUE in the environment, all of it, from its next session on; never a secret")
	f.StringVarP(&spec.Workdir, "workdir", "w", "", "working directory of commands that name none, from its next session on")
	f.StringVarP(&spec.User, "user", "u", "", "user, or user:group, of commands that name none, from its next session on")
	f.BoolVar(&spec.Offline, "offline", false, "give it no network at all, from its next session on; --offline=false gives it back")
	f.BoolVar(&restart, "restart", false, "begin that session now, if one runs: its processes end, its files stay")
	return cli.Shows(g, c, func(ctx context.Context, d *client.Client, args []string) (i sandbox.Info, err error) {
		var errs [3]error
		change := sandbox.SpecChange{
			Lifetime: given(f, "lifetime", &spec.Lifetime), Idle: given(f, "idle", &spec.Idle), OnIdle: given(f, "on-idle", &spec.OnIdle),
			CPUs: given(f, "cpus", &spec.CPUs), Memory: given(f, "memory", &spec.Memory), Pids: given(f, "pids", &spec.Pids),
			Workdir: given(f, "workdir", &spec.Workdir), User: given(f, "user", &spec.User), Offline: given(f, "offline", &spec.Offline),
			Restart: restart,
		}
		change.Tags, errs[0] = whole(f, "tag", tags)
		change.Labels, errs[1] = whole(f, "label", labels)
		change.Env, errs[2] = whole(f, "env", env)
		if err := errors.Join(errs[:]...); err != nil {
			return i, err
		}
		if reflect.ValueOf(change).IsZero() {
			return i, cli.Usagef("nothing is to be set: see `%s --help`", c.CommandPath())
		}
		return d.Set(ctx, args[0], change)
	}, func(w io.Writer, i sandbox.Info) {
		if i.Next == nil {
			fmt.Fprintf(w, "%s is set\n", i.Name)
			return
		}
		how := "stop it, or add --restart"
		if i.State == sandbox.Stopped {
			how = "start it"
		}
		fmt.Fprintf(w, "%s is set; some of it waits for its next session: %s\n", i.Name, how)
	})
}
