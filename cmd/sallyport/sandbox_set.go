package main

import (
	"errors"
	"fmt"
	"io"
	"reflect"
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
	c.RunE = func(cmd *cobra.Command, args []string) error {
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
			return err
		}
		if reflect.ValueOf(change).IsZero() {
			return usageError{fmt.Errorf("nothing is to be set: see `%s --help`", cmd.CommandPath())}
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

// given is a flag's value, or nil without the flag.
func given[T any](f *pflag.FlagSet, flag string, value *T) *T {
	if !f.Changed(flag) {
		return nil
	}
	return value
}

// whole is given for a map, which may be emptied.
func whole(f *pflag.FlagSet, flag string, values []string) (map[string]string, error) {
	if !f.Changed(flag) {
		return nil, nil
	}
	m, err := pairs(slices.DeleteFunc(values, func(v string) bool { return v == "" }), flag)
	if m == nil && err == nil {
		m = map[string]string{}
	}
	return m, err
}
