package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"sallyport/audit/auditlog"
	"sallyport/internal/config"
	"sallyport/internal/terminal"
	"sallyport/sandbox/client"
)

// Asks makes c a command that asks the daemon.
func (g *Globals) Asks(c *cobra.Command, do func(cmd *cobra.Command, d *client.Client, args []string) error) *cobra.Command {
	return Needs(c, g.Daemon, do)
}

// Needs makes c a command that needs what get returns.
func Needs[T any](c *cobra.Command, get func() (T, error), do func(*cobra.Command, T, []string) error) *cobra.Command {
	c.RunE = func(cmd *cobra.Command, args []string) error {
		v, err := get()
		if err != nil {
			return err
		}
		return do(cmd, v, args)
	}
	return c
}

// Reads makes c a command that needs the configuration, and no daemon.
func (g *Globals) Reads(c *cobra.Command, do func(cmd *cobra.Command, cfg *config.Config, args []string) error) *cobra.Command {
	return Needs(c, g.Config, do)
}

// Shows makes c a command that asks the daemon for one thing and prints it.
func Shows[T any](g *Globals, c *cobra.Command, do func(ctx context.Context, d *client.Client, args []string) (T, error), text func(io.Writer, T)) *cobra.Command {
	return g.Asks(c, func(cmd *cobra.Command, d *client.Client, args []string) error {
		v, err := do(cmd.Context(), d, args)
		if err != nil {
			return err
		}
		return g.Print(cmd, v, func(w io.Writer) { text(w, v) })
	})
}

// Lists makes c a command that asks the daemon for a list and prints it as a table.
func Lists[T any](g *Globals, c *cobra.Command, do func(ctx context.Context, d *client.Client, args []string) ([]T, error), head string, row func(T) string) *cobra.Command {
	return Shows(g, c, do, func(w io.Writer, list []T) { Table(w, head, Rows(list, row)...) })
}

// All is the argument of Lists for a list that is asked for by nothing else.
func All[T any](list client.List[T]) func(context.Context, *client.Client, []string) ([]T, error) {
	return func(ctx context.Context, d *client.Client, _ []string) ([]T, error) { return list.Do(ctx, d) }
}

// Removes makes c a command that removes each of the things that its arguments name.
func (g *Globals) Removes(c *cobra.Command, do func(ctx context.Context, d *client.Client, name string) error) *cobra.Command {
	return g.Asks(c, func(cmd *cobra.Command, d *client.Client, args []string) error {
		return Each(cmd, args, func(name string) error {
			if err := do(cmd.Context(), d, name); err != nil {
				return err
			}
			return g.Done(cmd, "removed", name)
		})
	})
}

// Removing is the argument of Removes for an action that needs a name alone.
func Removing(a client.Action[client.None]) func(context.Context, *client.Client, string) error {
	return func(ctx context.Context, d *client.Client, name string) error {
		return a.Do(ctx, d, client.None{}, name)
	}
}

// Done says what has become of a thing.
func (g *Globals) Done(cmd *cobra.Command, what, name string) error {
	return g.Print(cmd, map[string]string{what: name}, func(w io.Writer) { fmt.Fprintln(w, name, "is", what) })
}

// Exactly is cobra.ExactArgs with our exit status, and a line to go by. Of names
// those in brackets may be left out, and one that ends in dots stands for any more.
func Exactly(names ...string) cobra.PositionalArgs {
	least, most := len(names), len(names)
	for _, n := range names {
		if strings.HasPrefix(n, "[") {
			least--
		}
		if strings.HasSuffix(n, "...]") {
			most = math.MaxInt
		}
	}
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) >= least && len(args) <= most:
			return nil
		case most == 0:
			return Usagef("%s takes no argument: %q", cmd.CommandPath(), args)
		}
		what := "something is missing"
		if len(args) > most {
			what = fmt.Sprintf("%q is too much", args[most])
		}
		return Usagef("%s: write %s %s, or see `%[2]s --help`", what, cmd.CommandPath(), strings.Join(names, " "))
	}
}

// Each does one thing with each of several names. All are tried: what fails is
// said, and then the status is 1.
func Each(cmd *cobra.Command, names []string, do func(name string) error) error {
	if len(names) == 1 {
		return do(names[0])
	}
	failed := false
	for _, name := range names {
		err := do(name)
		if cmd.Context().Err() != nil {
			return err
		}
		if err != nil {
			fmt.Fprintln(cmd.ErrOrStderr(), "sallyport:", terminal.Text(err.Error()))
			failed = true
		}
	}
	if failed {
		return ExitCode(1)
	}
	return nil
}

// Group is a command that only holds others.
func Group(use, short string, sub ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short}
	refuseUnknown(c)
	c.AddCommand(sub...)
	return c
}

// refuseUnknown makes a wrong word below a group of commands a usage error.
func refuseUnknown(c *cobra.Command) {
	c.Args = cobra.ArbitraryArgs
	c.SuggestionsMinimumDistance = 2
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		meant := elsewhere(cmd.Root(), args[0])
		near := cmd.SuggestionsFor(args[0])
		switch {
		case meant != "":
			return Usagef("unknown command %q: did you mean `%s`?", args[0], meant)
		case len(near) > 0:
			return Usagef("unknown command %q: did you mean %q?", args[0], near[0])
		}
		return Usagef("unknown command %q: see `%s --help`", args[0], cmd.CommandPath())
	}
}

// elsewhere is the command of a name, wherever it is: whoever forgot the word before
// it meant that one, rather than another that looks like it. A command of root's own
// comes first, then what is done to sandboxes.
func elsewhere(root *cobra.Command, name string) string {
	groups := []*cobra.Command{root}
	for _, c := range root.Commands() {
		if c.Name() == "sandbox" {
			groups = slices.Insert(groups, 1, c)
		} else if c.HasSubCommands() {
			groups = append(groups, c)
		}
	}
	for _, group := range groups {
		for _, c := range group.Commands() {
			if c.Name() == name && c.IsAvailableCommand() {
				return c.CommandPath()
			}
		}
	}
	return ""
}

// Undamaged yields what of a log can be read, and warns of what cannot.
func Undamaged[T any](cmd *cobra.Command, list iter.Seq2[T, error]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for v, err := range list {
			var damage *auditlog.DamageError
			if errors.As(err, &damage) {
				fmt.Fprintln(cmd.ErrOrStderr(), "sallyport: warning:", damage)
				continue
			}
			if !yield(v, err) {
				return
			}
		}
	}
}
