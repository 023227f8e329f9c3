// Package sandboxcmd is `sallyport sandbox`, a file for a few verbs each, and what is done to
// sandboxes without that word: `sallyport run` and `sallyport cp`.
package sandboxcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"sallyport/cmd/sallyport/cli"
	"sallyport/internal/size"
	"sallyport/internal/terminal"
	"sallyport/sandbox"
	"sallyport/sandbox/client"
)

// Command is `sallyport sandbox`.
func Command(g *cli.Globals) *cobra.Command {
	return cli.Group("sandbox", "Create, use, suspend, snapshot, fork and remove sandboxes",
		newCreate(g), newList(g), newGet(g), newExec(g),
		one(g, "start", "Start stopped sandboxes", (*client.Client).Start),
		one(g, "stop", "Stop sandboxes; their files stay", (*client.Client).Stop),
		newRemove(g),
		newShell(g), newCommands(g), newOutput(g), newKill(g),
		one(g, "pause", "Freeze sandboxes in memory; any use wakes them", (*client.Client).Pause),
		one(g, "resume", "Wake sandboxes that are paused or hibernated", (*client.Client).Resume),
		one(g, "hibernate", "Write sandboxes' memory to disk and free their RAM; any use wakes them", (*client.Client).Hibernate),
		one(g, "recover", "Take sandboxes out of the state error; they are stopped afterwards", (*client.Client).Recover),
		one(g, "wake", "Wake sandboxes that are hibernated or paused", (*client.Client).Wake),
		Copy(g), newFiles(g), newChanges(g),
		newExpose(g), newUnexpose(g), newExposures(g),
		newSnapshot(g), newSnapshots(g), newRestore(g), newFork(g),
		newSet(g),
	)
}

func newCreate(g *cli.Globals) *cobra.Command {
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

func newList(g *cli.Globals) *cobra.Command {
	c := &cobra.Command{Use: "ls", Short: "List the sandboxes", Args: cli.Exactly()}
	return cli.Lists(g, c, func(ctx context.Context, d *client.Client, _ []string) ([]sandbox.Info, error) {
		g.Banner(c, d)
		return d.Sandboxes(ctx)
	}, sandboxHead, sandboxRow)
}

func newGet(g *cli.Globals) *cobra.Command {
	c := &cobra.Command{Use: "get NAME", Short: "Show one sandbox", Args: cli.Exactly("NAME")}
	return cli.Shows(g, c, func(ctx context.Context, d *client.Client, args []string) (sandbox.Info, error) {
		g.Banner(c, d)
		return d.Sandbox(ctx, args[0])
	}, func(w io.Writer, i sandbox.Info) {
		cli.Table(w, sandboxHead, sandboxRow(i))
		show(w, i)
	})
}

func newRemove(g *cli.Globals) *cobra.Command {
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

func newExpose(g *cli.Globals) *cobra.Command {
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

func newUnexpose(g *cli.Globals) *cobra.Command {
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

func newExposures(g *cli.Globals) *cobra.Command {
	c := &cobra.Command{Use: "exposures NAME", Short: "List the exposed ports of a sandbox", Args: cli.Exactly("NAME")}
	return cli.Lists(g, c, named((*client.Client).Exposures), "PORT\tURL\tEXPIRES", func(e client.Exposure) string {
		return fmt.Sprintf("%d\t%s\t%s", e.Port, e.URL, cli.Day(e.Expires, "never"))
	})
}

// named is what a command asks about the sandbox that its argument names.
func named[T any](ask func(*client.Client, context.Context, string) (T, error)) func(context.Context, *client.Client, []string) (T, error) {
	return func(ctx context.Context, d *client.Client, args []string) (T, error) { return ask(d, ctx, args[0]) }
}

func portOf(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 {
		return 0, cli.Usagef("%q is not a port: write one from 1 to 65535", s)
	}
	return uint16(n), nil
}
