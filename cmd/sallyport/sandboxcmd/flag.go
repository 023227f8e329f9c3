package sandboxcmd

import (
	"errors"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"sallyport/cmd/sallyport/cli"
	"sallyport/internal/size"
	"sallyport/policy"
	"sallyport/sandbox"
)

// specFlags are the flags that say what a new sandbox shall be.
type specFlags struct {
	spec   sandbox.Spec
	env    []string
	tags   []string
	labels []string
}

func (f *specFlags) register(c *cobra.Command) {
	c.Flags().StringVar(&f.spec.Image, "image", "", "image of a new sandbox (default the configuration's)")
	c.Flags().StringVar(&f.spec.Runtime, "runtime", "", "runsc (default), or runc, which shares the host's kernel")
	c.Flags().StringArrayVarP(&f.env, "env", "e", nil, "NAME=VALUE in a new sandbox's environment; never a secret")
	c.Flags().StringArrayVar(&f.tags, "tag", nil, "NAME=VALUE that policies can select by")
	c.Flags().Float64Var(&f.spec.CPUs, "cpus", 0, "limit of processors (default none)")
	c.Flags().Var(sizeFlag{&f.spec.Memory}, "memory", "limit of memory, as 4GiB (default the configuration's)")
	c.Flags().Var(sizeFlag{&f.spec.Disk}, "disk", "limit of all that it writes, as 10GiB (default the configuration's)")
	c.Flags().StringArrayVar(&f.labels, "label", nil, "NAME=VALUE of your own, which means nothing to policies")
	lastsVar(c.Flags(), &f.spec.Lifetime, "lifetime", "stop it this long after its creation, as 24h, or remove it if it is ephemeral (default never)")
	c.Flags().BoolVar(&f.spec.Ephemeral, "ephemeral", false, "remove it when its session ends")
	c.Flags().BoolVar(&f.spec.Offline, "offline", false, "give it no network at all")
	c.Flags().Int64Var(&f.spec.Pids, "pids", 0, "limit of processes (default the configuration's)")
	lastsVar(c.Flags(), &f.spec.Idle, "idle", "put it to sleep when nothing has gone on for as long (default never)")
	c.Flags().StringVar(&f.spec.OnIdle, "on-idle", "", "pause, hibernate (default) or stop")
}

func (f *specFlags) read() (sandbox.Spec, error) {
	var errs [3]error
	f.spec.Env, errs[0] = cli.Pairs(f.env, "env")
	f.spec.Tags, errs[1] = cli.Pairs(f.tags, "tag")
	f.spec.Labels, errs[2] = cli.Pairs(f.labels, "label")
	return f.spec, errors.Join(errs[:]...)
}

// sizeFlag is a flag of so many bytes.
type sizeFlag struct{ bytes *int64 }

func (s sizeFlag) Type() string { return "size" }

func (s sizeFlag) String() string {
	if s.bytes == nil || *s.bytes == 0 {
		return ""
	}
	return size.Text(*s.bytes)
}

func (s sizeFlag) Set(text string) error { return (*policy.Size)(s.bytes).UnmarshalText([]byte(text)) }

// lastsVar is a flag of a time, whose usage says what none comes to.
func lastsVar(f *pflag.FlagSet, d *sandbox.Duration, name, usage string) {
	f.Var(d, name, usage)
	f.Lookup(name).DefValue = "" // not 0s
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
	m, err := cli.Pairs(slices.DeleteFunc(values, func(v string) bool { return v == "" }), flag)
	if m == nil && err == nil {
		m = map[string]string{}
	}
	return m, err
}
