package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"reflect"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/pflag"

	"sallyport/internal/size"
	"sallyport/sandbox"

	"github.com/spf13/cobra"

	"sallyport/internal/api"
	"sallyport/internal/config"
	"sallyport/internal/terminal"
	"sallyport/policy"
	"sallyport/sandbox/client"
)

// globals are the flags that every command has.
type globals struct {
	source config.Source // of the configuration
	output string
	remote client.Remote // of another host's daemon
}

// config reads the configuration; flags win over it. One that is wrong comes with
// its error, as far as it could be read.
func (g *globals) config() (*config.Config, error) {
	if g.output != "text" && g.output != "json" {
		return nil, usageError{fmt.Errorf("--output %q: use text or json", g.output)}
	}
	return g.source.Load()
}

// daemon returns a client of the daemon that the configuration describes.
func (g *globals) daemon() (*client.Client, error) {
	cfg, err := g.config()
	if cfg == nil {
		return nil, err
	}
	if r := g.elsewhere(cfg); r.URL != "" {
		return client.Dial(r)
	}
	// A daemon that runs may be asked why it refuses what is written there now.
	if err != nil {
		cfg.RunDir = config.RunDir(g.source.Path())
		if _, serr := os.Stat(cfg.Socket()); serr != nil {
			return nil, err
		}
	}
	return client.Unix(cfg.Socket()), nil
}

// elsewhere is the daemon of another host, by flags, the environment or the
// configuration. A host that is named alone has no fingerprint or key of another
// one's.
func (g *globals) elsewhere(cfg *config.Config) client.Remote {
	r := client.Remote{
		URL:         cmp.Or(g.remote.URL, os.Getenv("SALLYPORT_HOST")),
		KeyFile:     cmp.Or(g.remote.KeyFile, os.Getenv("SALLYPORT_KEY_FILE")),
		Fingerprint: cmp.Or(g.remote.Fingerprint, os.Getenv("SALLYPORT_FINGERPRINT")),
	}
	if c := cfg.Remote; r.URL == "" || r.URL == c.Host {
		r.URL, r.KeyFile, r.Fingerprint = c.Host, cmp.Or(r.KeyFile, c.KeyFile), cmp.Or(r.Fingerprint, c.Fingerprint)
	}
	return r
}

// print writes v as JSON, or calls text, as the user asked.
func (g *globals) print(cmd *cobra.Command, v any, text func(io.Writer)) error {
	w := cmd.OutOrStdout()
	if g.output == "json" {
		if list := reflect.ValueOf(v); list.Kind() == reflect.Slice && list.IsNil() {
			v = []any{} // none is a list too, and not null
		}
		e := terminal.JSON(w)
		e.SetIndent("", "  ")
		return e.Encode(v)
	}
	text(w)
	return nil
}

// asks makes c a command that asks the daemon.
func (g *globals) asks(c *cobra.Command, do func(cmd *cobra.Command, d *client.Client, args []string) error) *cobra.Command {
	c.RunE = func(cmd *cobra.Command, args []string) error {
		d, err := g.daemon()
		if err != nil {
			return err
		}
		return do(cmd, d, args)
	}
	return c
}

// shows makes c a command that asks the daemon for one thing and prints it.
func shows[T any](g *globals, c *cobra.Command, do func(ctx context.Context, d *client.Client, args []string) (T, error), text func(io.Writer, T)) *cobra.Command {
	return g.asks(c, func(cmd *cobra.Command, d *client.Client, args []string) error {
		v, err := do(cmd.Context(), d, args)
		if err != nil {
			return err
		}
		return g.print(cmd, v, func(w io.Writer) { text(w, v) })
	})
}

// lists makes c a command that asks the daemon for a list and prints it as a table.
func lists[T any](g *globals, c *cobra.Command, do func(ctx context.Context, d *client.Client, args []string) ([]T, error), head string, row func(T) string) *cobra.Command {
	return shows(g, c, do, func(w io.Writer, list []T) { table(w, head, rows(list, row)...) })
}

func rows[T any](list []T, row func(T) string) (lines []string) {
	for _, v := range list {
		lines = append(lines, row(v))
	}
	return lines
}

// all is the argument of lists for a list that is asked for by nothing else.
func all[T any](list client.List[T]) func(context.Context, *client.Client, []string) ([]T, error) {
	return func(ctx context.Context, d *client.Client, _ []string) ([]T, error) { return list.Do(ctx, d) }
}

// removes makes c a command that removes each of the things that its arguments name.
func (g *globals) removes(c *cobra.Command, do func(ctx context.Context, d *client.Client, name string) error) *cobra.Command {
	return g.asks(c, func(cmd *cobra.Command, d *client.Client, args []string) error {
		return each(cmd, args, func(name string) error {
			if err := do(cmd.Context(), d, name); err != nil {
				return err
			}
			return g.done(cmd, "removed", name)
		})
	})
}

// removing is the argument of removes for an action that needs a name alone.
func removing(a client.Action[client.None]) func(context.Context, *client.Client, string) error {
	return func(ctx context.Context, d *client.Client, name string) error {
		return a.Do(ctx, d, client.None{}, name)
	}
}

// done says what has become of a thing.
func (g *globals) done(cmd *cobra.Command, what, name string) error {
	return g.print(cmd, map[string]string{what: name}, func(w io.Writer) { fmt.Fprintln(w, name, "is", what) })
}

// table aligns rows of tab-separated cells.
func table(w io.Writer, head string, rows ...string) {
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(t, head)
	for _, r := range rows {
		fmt.Fprintln(t, r)
	}
	_ = t.Flush()
}

// exactly is cobra.ExactArgs with our exit status, and a line to go by. Of names
// those in brackets may be left out, and one that ends in dots stands for any more.
func exactly(names ...string) cobra.PositionalArgs {
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
			return usageError{fmt.Errorf("%s takes no argument: %q", cmd.CommandPath(), args)}
		}
		what := "something is missing"
		if len(args) > most {
			what = fmt.Sprintf("%q is too much", args[most])
		}
		return usageError{fmt.Errorf("%s: write %s %s, or see `%[2]s --help`", what, cmd.CommandPath(), strings.Join(names, " "))}
	}
}

// each does one thing with each of several names. All are tried: what fails is
// said, and then the status is 1.
func each(cmd *cobra.Command, names []string, do func(name string) error) error {
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
		return exitCode(1)
	}
	return nil
}

// group is a command that only holds others.
func group(use, short string, sub ...*cobra.Command) *cobra.Command {
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
			return usageError{fmt.Errorf("unknown command %q: did you mean `%s`?", args[0], meant)}
		case len(near) > 0:
			return usageError{fmt.Errorf("unknown command %q: did you mean %q?", args[0], near[0])}
		}
		return usageError{fmt.Errorf("unknown command %q: see `%s --help`", args[0], cmd.CommandPath())}
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

func pairs(flags []string, what string) (map[string]string, error) {
	if len(flags) == 0 {
		return nil, nil
	}
	m := map[string]string{}
	for _, f := range flags {
		k, v, ok := strings.Cut(f, "=")
		if !ok || k == "" {
			return nil, usageError{fmt.Errorf("--%s %q: write NAME=VALUE", what, f)}
		}
		m[k] = v
	}
	return m, nil
}

// banner says above a listing what is in observe mode. It goes to the error stream,
// where it is no part of what a program reads.
func (g *globals) banner(cmd *cobra.Command, d *client.Client) {
	if s, err := api.GetStatus.Do(cmd.Context(), d, client.None{}); err == nil { // or the listing itself says why not
		observing(cmd.ErrOrStderr(), s.Observing)
	}
}

func observing(w io.Writer, list []policy.Lifting) {
	for _, l := range list {
		fmt.Fprintf(w, "OBSERVE MODE: what the policy denies is carried: %s\n", l)
	}
}

// forms are how a flag of a type is written.
var forms = map[string]string{
	"bool":     "true or false",
	"int":      "a whole number",
	"int64":    "a whole number",
	"float64":  "a number, as 2 or 1.5",
	"duration": "a time, as 90s, 15m or 24h",
	"size":     "a size, as 64KiB, 10MiB or 1GiB",
}

// flagError is what was wrong with a flag, in words rather than a parser's.
func flagError(c *cobra.Command, err error) error {
	var bad *pflag.InvalidValueError
	if errors.As(err, &bad) {
		if form, known := forms[bad.GetFlag().Value.Type()]; known {
			err = fmt.Errorf("--%s %q: write %s", bad.GetFlag().Name, bad.GetValue(), form)
		}
	}
	return usageError{fmt.Errorf("%w: see `%s --help`", err, c.CommandPath())}
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
