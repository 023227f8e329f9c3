package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"sallyport/cmd/sallyport/cli"
	"sallyport/internal/size"
	"sallyport/internal/terminal"
	"sallyport/policy"
	"sallyport/sandbox"
	"sallyport/sandbox/client"
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
	var err error
	if f.spec.Env, err = cli.Pairs(f.env, "env"); err != nil {
		return sandbox.Spec{}, err
	}
	if f.spec.Tags, err = cli.Pairs(f.tags, "tag"); err != nil {
		return sandbox.Spec{}, err
	}
	if f.spec.Labels, err = cli.Pairs(f.labels, "label"); err != nil {
		return sandbox.Spec{}, err
	}
	return f.spec, nil
}

// piped says whether something other than a terminal feeds a file.
func piped(f *os.File) bool {
	i, err := f.Stat()
	return err == nil && i.Mode()&os.ModeCharDevice == 0
}

func newSandbox(g *cli.Globals) *cobra.Command {
	return cli.Group("sandbox", "Create, use, suspend, snapshot, fork and remove sandboxes",
		newSandboxCreate(g), newSandboxList(g), newSandboxGet(g), newSandboxExec(g),
		one(g, "start", "Start stopped sandboxes", (*client.Client).Start),
		one(g, "stop", "Stop sandboxes; their files stay", (*client.Client).Stop),
		newSandboxRemove(g),
		newSandboxShell(g), newSandboxCommands(g), newSandboxOutput(g), newSandboxKill(g),
		one(g, "pause", "Freeze sandboxes in memory; any use wakes them", (*client.Client).Pause),
		one(g, "resume", "Wake sandboxes that are paused or hibernated", (*client.Client).Resume),
		one(g, "hibernate", "Write sandboxes' memory to disk and free their RAM; any use wakes them", (*client.Client).Hibernate),
		one(g, "recover", "Take sandboxes out of the state error; they are stopped afterwards", (*client.Client).Recover),
		one(g, "wake", "Wake sandboxes that are hibernated or paused", (*client.Client).Wake),
		newSandboxCopy(g), newSandboxFiles(g), newSandboxChanges(g),
		newSandboxExpose(g), newSandboxUnexpose(g), newSandboxExposures(g),
		newSnapshot(g), newSnapshots(g), newSandboxRestore(g), newFork(g),
		newSandboxSet(g),
	)
}

func newSandboxCreate(g *cli.Globals) *cobra.Command {
	var f specFlags
	c := &cobra.Command{Use: "create NAME", Short: "Create a sandbox; one that exists with the same spec is left as it is", Args: cli.Exactly("NAME")}
	f.register(c)
	c.Flags().StringVarP(&f.spec.Workdir, "workdir", "w", "", "working directory of commands that name none")
	c.Flags().StringVarP(&f.spec.User, "user", "u", "", "user, or user:group, of commands that name none (default the image's)")
	return cli.Shows(g, c, func(ctx context.Context, d *client.Client, args []string) (i sandbox.Info, err error) {
		spec, err := f.read()
		if err != nil {
			return i, err
		}
		return d.Create(ctx, args[0], spec)
	}, func(w io.Writer, i sandbox.Info) { fmt.Fprintf(w, "%s is %s\n", i.FullName(), i.State) })
}

const sandboxHead = "NAME\tSTATE\tIMAGE\tRUNTIME\tADDRESS\tAGE\tON DISK"

func sandboxRow(i sandbox.Info) string {
	state := string(i.State)
	if i.Reason != "" {
		state += ": " + terminal.Escape(i.Reason)
	}
	if i.Lost != "" {
		state += " (memory lost)"
	}
	if i.Capped != "" {
		state += " (disk capped)"
	}
	return fmt.Sprintf("%s\t%s\t%s\t%s\t%s\t%s\t%s", i.FullName(), state, i.Spec.Image, i.Spec.Runtime, i.Address,
		time.Since(i.Created).Round(time.Second), size.About(i.Storage.Total()))
}

func newSandboxList(g *cli.Globals) *cobra.Command {
	c := &cobra.Command{Use: "ls", Short: "List the sandboxes", Args: cli.Exactly()}
	return cli.Lists(g, c, func(ctx context.Context, d *client.Client, _ []string) ([]sandbox.Info, error) {
		g.Banner(c, d)
		return d.Sandboxes(ctx)
	}, sandboxHead, sandboxRow)
}

func newSandboxGet(g *cli.Globals) *cobra.Command {
	c := &cobra.Command{Use: "get NAME", Short: "Show one sandbox", Args: cli.Exactly("NAME")}
	return cli.Shows(g, c, func(ctx context.Context, d *client.Client, args []string) (sandbox.Info, error) {
		g.Banner(c, d)
		return d.Sandbox(ctx, args[0])
	}, func(w io.Writer, i sandbox.Info) {
		cli.Table(w, sandboxHead, sandboxRow(i))
		show(w, i)
	})
}

func newSandboxRemove(g *cli.Globals) *cobra.Command {
	var force bool
	c := &cobra.Command{
		Use: "rm NAME [NAME ...]", Short: "Remove sandboxes with their files and their memory", Args: cli.Exactly("NAME", "[NAME ...]"),
		Example: `  sallyport sandbox rm demo demo-1 demo-2`,
	}
	c.Flags().BoolVarP(&force, "force", "f", false, "ignore names that no sandbox has")
	return g.Asks(c, func(cmd *cobra.Command, d *client.Client, args []string) error {
		return cli.Each(cmd, args, func(name string) error {
			var p *client.Problem
			err := d.Remove(cmd.Context(), name)
			if force && errors.As(err, &p) && p.Status == http.StatusNotFound {
				return nil
			}
			if err != nil {
				return err
			}
			return g.Done(cmd, "removed", name)
		})
	})
}

// one is a command that does one thing to each of some sandboxes and says what it
// is then.
func one(g *cli.Globals, verb, short string, do func(*client.Client, context.Context, string) (sandbox.Info, error)) *cobra.Command {
	c := &cobra.Command{Use: verb + " NAME [NAME ...]", Short: short, Args: cli.Exactly("NAME", "[NAME ...]")}
	return g.Asks(c, func(cmd *cobra.Command, d *client.Client, args []string) error {
		return cli.Each(cmd, args, func(name string) error {
			i, err := do(d, cmd.Context(), name)
			if err != nil {
				return err
			}
			return g.Print(cmd, i, func(w io.Writer) {
				fmt.Fprintf(w, "%s is %s\n", i.FullName(), i.State)
				lost(w, i)
			})
		})
	})
}

// lost says that a sandbox could not have the memory that it slept with.
func lost(w io.Writer, i sandbox.Info) {
	if i.Lost != "" {
		fmt.Fprintf(w, "%s began anew from its disk: %s\n", i.Name, terminal.Escape(i.Lost))
	}
}

func newSandboxExpose(g *cli.Globals) *cobra.Command {
	var lasts time.Duration
	c := &cobra.Command{
		Use: "expose NAME PORT", Short: "Let requests from this host reach a port of a sandbox", Args: cli.Exactly("NAME", "PORT"),
		Long: "Print a URL that reaches a port of a sandbox from this host, for as long as --for\n" +
			"says, where an expose rule of the policy allows it. Its token is shown this once.",
		Example: "  sallyport sandbox expose demo 8000 --for 2h",
	}
	c.Flags().DurationVar(&lasts, "for", time.Hour, "how long, at most 24h")
	return cli.Shows(g, c, func(ctx context.Context, d *client.Client, args []string) (made client.Exposed, err error) {
		port, err := portOf(args[1])
		if err == nil && lasts <= 0 {
			err = cli.Usagef("--for %v: use 1s to 24h", lasts)
		}
		if err != nil {
			return made, err
		}
		return d.Expose(ctx, args[0], port, lasts)
	}, func(w io.Writer, made client.Exposed) {
		fmt.Fprintln(w, made.Visit)
		fmt.Fprintf(c.ErrOrStderr(), "Whoever has this URL reaches port %d of %s from this host until %s.\n", made.Port, made.Sandbox, cli.Day(made.Expires, ""))
	})
}

func newSandboxUnexpose(g *cli.Globals) *cobra.Command {
	c := &cobra.Command{Use: "unexpose NAME PORT", Short: "End an exposure and its connections", Args: cli.Exactly("NAME", "PORT")}
	return g.Asks(c, func(cmd *cobra.Command, d *client.Client, args []string) error {
		port, err := portOf(args[1])
		if err == nil {
			err = d.Unexpose(cmd.Context(), args[0], port)
		}
		if err != nil {
			return err
		}
		return g.Print(cmd, map[string]any{"unexposed": args[0], "port": port}, func(w io.Writer) { fmt.Fprintf(w, "port %d of %s is not exposed any more\n", port, args[0]) })
	})
}

func newSandboxExposures(g *cli.Globals) *cobra.Command {
	c := &cobra.Command{Use: "exposures NAME", Short: "List the exposed ports of a sandbox", Args: cli.Exactly("NAME")}
	return cli.Lists(g, c, func(ctx context.Context, d *client.Client, args []string) ([]client.Exposure, error) {
		return d.Exposures(ctx, args[0])
	},
		"PORT\tURL\tEXPIRES", func(e client.Exposure) string {
			return fmt.Sprintf("%d\t%s\t%s", e.Port, e.URL, cli.Day(e.Expires, "never"))
		})
}

func portOf(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 {
		return 0, cli.Usagef("%q is not a port: write one from 1 to 65535", s)
	}
	return uint16(n), nil
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
