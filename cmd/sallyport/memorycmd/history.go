package memorycmd

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"sallyport/cmd/sallyport/cli"
	"sallyport/internal/terminal"
	"sallyport/memory"
	memclient "sallyport/memory/client"
	"sallyport/memory/history"
	"sallyport/memory/keeper"
	"sallyport/memory/layer"
	"sallyport/sandbox/client"
)

func newHistory(g *cli.Globals) *cobra.Command {
	var r keeper.HistoryRequest
	var since, until string
	c := &cobra.Command{
		Use: "history NAME [PATH]", Short: "Show what has changed in a memory, when and by what", Args: cli.Exactly("NAME", "[PATH]"),
		Example: "  sallyport memory history demo memories.md\n  sallyport memory history demo --destination evil.example   # versions after contact with it",
	}
	c.Flags().IntVarP(&r.Limit, "number", "n", 100, "how many versions, the newest")
	c.Flags().StringVar(&r.Destination, "destination", "", "only versions before which the sandbox contacted it")
	c.Flags().StringVar(&since, "since", "", "not older than this time")
	c.Flags().StringVar(&until, "until", "", "older than this time")
	return cli.Shows(g, c, of(memclient.History, func(args []string) (_ keeper.HistoryRequest, err error) {
		if len(args) > 1 {
			r.Path = args[1]
		}
		if r.Since, err = parseTime(since, "since"); err == nil {
			r.Until, err = parseTime(until, "until")
		}
		return r, err
	}), func(w io.Writer, list keeper.Commits) {
		for _, c := range list.Commits {
			fmt.Fprintf(w, "version %d  %s  %s\n", c.Number, when(c.Time), cause(c.Cause))
			if c.Trimmed {
				fmt.Fprintln(w, "  trimmed: the versions before it were removed to make room")
			}
			if c.Incomplete {
				fmt.Fprintln(w, "  incomplete: the memory had more than 100,000 files and folders, or too deep ones; the others are in no version")
			}
			for _, ch := range c.Changes {
				fmt.Fprintf(w, "  %s %s%s\n", ch.Op, named(ch.Path, ch.Kind), reason(ch))
			}
			if len(c.Cause.Contacted) > 0 {
				fmt.Fprintf(w, "  after contact with %s%s\n", terminal.Escape(strings.Join(c.Cause.Contacted, ", ")), more(c.Cause.MoreContacted))
			}
			if n := len(c.Dropped); n > 0 {
				fmt.Fprintf(w, "  dropped: %d contents of earlier versions: -o json has their digests\n", n)
			}
		}
		marks(w, list.Marks)
		nothing(w, len(list.Commits), "was found")
	})
}

func more(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(" and %d more", n)
}

// named is a path, with a slash after that of a folder.
func named(path string, kind memory.Kind) string {
	if kind == memory.KindFolder {
		path += "/"
	}
	return terminal.Escape(path)
}

func reason(c history.Change) string {
	if c.Reason == "" {
		return ""
	}
	return ": " + terminal.Escape(c.Reason)
}

// cause says in words what made a version.
func cause(c history.Cause) string {
	text := string(c.Operation)
	if c.From != "" {
		text += " " + terminal.Escape(c.From)
	}
	if c.Command != "" {
		if c.Operation != memory.ByCommand {
			text += ", command"
		}
		text += " " + terminal.Escape(c.Command)
	}
	if c.Caller != "" {
		text += " by " + terminal.Escape(c.Caller)
	}
	if c.Session != "" {
		text += ", session " + terminal.Escape(c.Session)
	}
	return text
}

func version(text string) (uint64, error) {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, cli.Usagef("%q is not the number of a version: `sallyport memory history` shows them", text)
	}
	return n, nil
}

func newDiff(g *cli.Globals) *cobra.Command {
	var path string
	c := &cobra.Command{Use: "diff NAME FROM [TO]", Short: "Show how two versions differ; without TO the present one", Args: cli.Exactly("NAME", "FROM", "[TO]")}
	c.Flags().StringVar(&path, "path", "", "only this file or folder")
	return cli.Shows(g, c, of(memclient.Diff, func(args []string) (r keeper.DiffRequest, err error) {
		r.Path = path
		if r.From, err = version(args[1]); err == nil && len(args) > 2 {
			r.To, err = version(args[2])
		}
		return r, err
	}), func(w io.Writer, list []keeper.FileDiff) {
		for _, d := range list {
			fmt.Fprintf(w, "%s %s\n", d.Op, named(d.Path, cmp.Or(d.To, d.From, new(history.Version)).Kind))
			marks(w, d.Marks)
			if d.Note != "" {
				fmt.Fprintln(w, "  "+terminal.Escape(d.Note))
			}
			printText(w, d.Text)
		}
		nothing(w, len(list), "differs")
	})
}

func newRollback(g *cli.Globals) *cobra.Command {
	var r keeper.RollbackRequest
	var at string
	c := &cobra.Command{
		Use: "rollback NAME [PATH...]", Short: "Make files what they were; what they are now stays in the history", Args: cobra.MinimumNArgs(1),
		Example: "  sallyport memory rollback demo --to 12\n  sallyport memory rollback demo memories.md --time \"2026-11-26 18:00:00\"\n  sallyport memory rollback demo --snapshot before-upgrade\n  sallyport memory rollback demo --destination evil.example   # to before the sandbox first talked to it",
	}
	c.Flags().Uint64Var(&r.To, "to", 0, "the version")
	c.Flags().StringVar(&at, "time", "", "the version that was there at this time")
	c.Flags().StringVar(&r.Snapshot, "snapshot", "", "the version that was there at this snapshot of the sandbox")
	c.Flags().StringVar(&r.Destination, "destination", "", "the last version before the sandbox had contacted this destination")
	c.Flags().BoolVar(&r.LeaveOut, "leave-out", false, "leave files as they are whose contents then are not kept")
	c.MarkFlagsMutuallyExclusive("to", "time", "snapshot", "destination")
	return cli.Shows(g, c, of(memclient.Rollback, func(args []string) (_ keeper.RollbackRequest, err error) {
		r.Paths = args[1:]
		if r.To == 0 && at == "" && r.Snapshot == "" && r.Destination == "" {
			return r, cli.Usagef("say to what: --to VERSION, --time TIME, --snapshot NAME or --destination HOST")
		}
		r.Time, err = parseTime(at, "time")
		return r, err
	}), printCommit)
}

func printCommit(w io.Writer, c history.Commit) {
	if c.Number == 0 {
		nothing(w, 0, "differs")
		return
	}
	fmt.Fprintf(w, "version %d, %s\n", c.Number, cli.Many(len(c.Changes), "change", "changes"))
}

func newCheckpoint(g *cli.Globals) *cobra.Command {
	c := &cobra.Command{Use: "checkpoint_state NAME", Short: "Make a version, and list the files that have changed since the last checkpoint", Args: cli.Exactly("NAME")}
	return cli.Shows(g, c, of(memclient.CheckpointState, none), func(w io.Writer, p keeper.Checkpoint) {
		fmt.Fprintf(w, "version %d, %s\n", p.Version, cli.Many(len(p.Files), "file changed", "files changed"))
		for _, f := range p.Files {
			fmt.Fprintln(w, "  "+terminal.Escape(f))
		}
	})
}

func newVerify(g *cli.Globals) *cobra.Command {
	c := &cobra.Command{Use: "verify NAME", Short: "Compare the history of a memory with the audit log", Args: cli.Exactly("NAME")}
	return g.Asks(c, func(cmd *cobra.Command, d *client.Client, args []string) error {
		v, err := memclient.Verify.Do(cmd.Context(), d, client.None{}, args[0])
		if err != nil {
			return err
		}
		if err := g.Print(cmd, v, func(w io.Writer) {
			for _, p := range v.Problems {
				fmt.Fprintln(w, terminal.Escape(p))
			}
			if len(v.Problems) == 0 {
				fmt.Fprintf(w, "%s, as they were recorded; the audit log has %d of them\n", cli.Many(v.Versions, "version", "versions"), v.Recorded)
			}
		}); err != nil {
			return err
		}
		if len(v.Problems) > 0 {
			return cli.ExitCode(1)
		}
		return nil
	})
}

func newCompact(g *cli.Globals) *cobra.Command {
	var r keeper.CompactRequest
	c := &cobra.Command{
		Use: "compact NAME", Short: "Make old entries summaries; their originals stay in the history", Args: cli.Exactly("NAME"),
		Long: `Make summaries of old entries, one for each type and month. Preferences and standing
instructions stay as they are, and so do facts that have an id or a number in the
summaries. Ctrl-C breaks it off: each entry is then there, or in a summary.`,
	}
	c.Flags().StringVar(&r.OlderThan, "older-than", "720h", "entries of before this")
	c.Flags().BoolVar(&r.DryRun, "dry-run", false, "only say what would be done")
	return g.Asks(c, func(cmd *cobra.Command, d *client.Client, args []string) error {
		p := newProgress(g, cmd)
		plan, err := memclient.Compact(cmd.Context(), d, args[0], r, p.step)
		p.end()
		if err != nil {
			return err
		}
		return g.Print(cmd, plan, func(w io.Writer) { printPlan(w, plan, r.DryRun) })
	})
}

func printPlan(w io.Writer, p layer.Plan, dry bool) {
	verb := "is written, in place of"
	if dry {
		verb = "would be written, in place of"
	}
	for _, s := range p.Summaries {
		fmt.Fprintf(w, "%s %s %s\n", terminal.Escape(s.Path), verb, cli.Many(len(s.Sources), "entry", "entries"))
		marks(w, s.Marks)
	}
	nothing(w, len(p.Summaries), "is old enough")
}
