package main

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"sallyport/sandbox"
)

// newSandboxSet changes what a sandbox is. A map is given as a whole: what is not
// named again is gone, and an empty flag takes all of it away.
func newSandboxSet(g *globals) *cobra.Command {
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
		Args: exactly("NAME"),
	}
	f := c.Flags()
	f.StringArrayVar(&tags, "tag", nil, "NAME=VALUE that policies can select by; all of them")
	f.StringArrayVar(&labels, "label", nil, "NAME=VALUE of your own; all of them")
	f.Var(&spec.Lifetime, "lifetime", "stop it this long after its creation, as 24h; 0s: never")
	f.Var(&spec.Idle, "idle", "put it to sleep when nothing has gone on for as long; 0s: never")
	f.StringVar(&spec.OnIdle, "on-idle", "", "pause, hibernate or stop")
	f.Float64Var(&spec.CPUs, "cpus", 0, "limit of processors, from its next session on")
	f.Var(sizeFlag{&spec.Memory}, "memory", "limit of memory, as 4GiB, from its next session on")
	f.Int64Var(&spec.Pids, "pids", 0, "limit of processes, from its next session on")
	f.StringArrayVarP(&env, "env", "e", nil, "NAME=VALUE in the environment, all of it, from its next session on; never a secret")
	f.StringVarP(&spec.Workdir, "workdir", "w", "", "working directory of commands that name none, from its next session on")
	f.StringVarP(&spec.User, "user", "u", "", "user, or user:group, of commands that name none, from its next session on")
	f.BoolVar(&spec.Offline, "offline", false, "give it no network at all, from its next session on; --offline=false gives it back")
	f.BoolVar(&restart, "restart", false, "begin that session now, if one runs: its processes end, its files stay")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		change := sandbox.SpecChange{Restart: restart}
		var err error
		f.Visit(func(flag *pflag.Flag) {
			var e error
			switch flag.Name {
			case "tag":
				change.Tags, e = whole(tags, "tag")
			case "label":
				change.Labels, e = whole(labels, "label")
			case "env":
				change.Env, e = whole(env, "env")
			case "lifetime":
				change.Lifetime = &spec.Lifetime
			case "idle":
				change.Idle = &spec.Idle
			case "on-idle":
				change.OnIdle = &spec.OnIdle
			case "cpus":
				change.CPUs = &spec.CPUs
			case "memory":
				change.Memory = &spec.Memory
			case "pids":
				change.Pids = &spec.Pids
			case "workdir":
				change.Workdir = &spec.Workdir
			case "user":
				change.User = &spec.User
			case "offline":
				change.Offline = &spec.Offline
			}
			err = errors.Join(err, e)
		})
		if err != nil {
			return err
		}
		d, err := g.daemon()
		if err != nil {
			return err
		}
		i, err := d.Set(cmd.Context(), args[0], change)
		if err != nil {
			return err
		}
		return g.print(cmd, i, func(w io.Writer) {
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
	return c
}

// whole is pairs for a map that may be emptied.
func whole(flags []string, what string) (map[string]string, error) {
	m, err := pairs(slices.DeleteFunc(flags, func(f string) bool { return f == "" }), what)
	if m == nil && err == nil {
		m = map[string]string{}
	}
	return m, err
}
