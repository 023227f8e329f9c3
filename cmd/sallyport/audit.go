package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/spf13/cobra"

	"sallyport/audit"
	"sallyport/cmd/sallyport/cli"
	"sallyport/internal/config"
	"sallyport/internal/terminal"
	"sallyport/sandbox/client"
)

func newAudit(g *cli.Globals) *cobra.Command {
	return cli.Group("audit", "Read decisions and their outcomes, and check them",
		newAuditTail(g), newAuditQuery(g), newAuditVerify(g), newAuditProve(g), newAuditKey(g))
}

// pairWait is how long a decision waits for its outcome before it is shown alone.
const pairWait = 2 * time.Second

func newAuditTail(g *cli.Globals) *cobra.Command {
	var q audit.Query
	c := &cobra.Command{Use: "tail", Short: "Show the last records, a decision and its outcome on one line", Args: cli.Exactly()}
	c.Flags().IntVarP(&q.Last, "lines", "n", 20, "how many events to go back")
	c.Flags().BoolVarP(&q.Follow, "follow", "f", false, "follow new records")
	c.Flags().StringVar(&q.Sandbox, "sandbox", "", "of this sandbox only")
	c.Flags().BoolVar(&q.Denied, "denied", false, "refusals only")
	return g.Reads(c, func(cmd *cobra.Command, cfg *config.Config, _ []string) error { return records(g, cmd, cfg, q) })
}

func newAuditQuery(g *cli.Globals) *cobra.Command {
	var q audit.Query
	var since time.Duration
	var kind string
	c := &cobra.Command{
		Use:     "query",
		Short:   "Show the records that fit",
		Example: "  sallyport audit query --sandbox demo --denied --since 1h -o json",
		Args:    cli.Exactly(),
	}
	c.Flags().StringVar(&q.Sandbox, "sandbox", "", "of this sandbox only")
	c.Flags().BoolVar(&q.Denied, "denied", false, "refusals only")
	c.Flags().DurationVar(&since, "since", 0, "not older than this: 90s, 15m, 24h")
	c.Flags().Uint64Var(&q.From, "from", 0, "the first sequence number")
	c.Flags().StringVar(&kind, "kind", "", "decision, completion, drop or lifecycle")
	return g.Reads(c, func(cmd *cobra.Command, cfg *config.Config, _ []string) error {
		switch q.Kind = audit.Kind(kind); q.Kind {
		case "", audit.KindDecision, audit.KindCompletion, audit.KindDrop, audit.KindLifecycle:
		default:
			return cli.Usagef("--kind %q: use decision, completion, drop or lifecycle", kind)
		}
		if since > 0 {
			q.Since = time.Now().Add(-since)
		}
		return records(g, cmd, cfg, q)
	})
}

// records prints one line for each record, or one JSON object.
func records(g *cli.Globals, cmd *cobra.Command, cfg *config.Config, q audit.Query) error {
	if _, err := os.Stat(cfg.AuditDir()); errors.Is(err, fs.ErrNotExist) && !q.Follow {
		return fmt.Errorf("there is no log in %s: has `sallyport up` run with this configuration?", cfg.AuditDir())
	}
	for r, err := range audit.Pair(cmd.Context(), cfg.AuditDir(), q, pairWait) {
		var damage *audit.DamageError
		switch {
		case errors.As(err, &damage):
			fmt.Fprintln(cmd.ErrOrStderr(), "sallyport: warning:", damage)
			continue
		case err != nil:
			return err
		}
		if err := g.PrintLine(cmd, r, func() string { return audit.Line(r) }); err != nil {
			return err
		}
	}
	return nil
}

func newEvents(g *cli.Globals) *cobra.Command {
	var after uint64
	c := &cobra.Command{Use: "events", Short: "Follow events as they happen", Args: cli.Exactly()}
	c.Flags().Uint64Var(&after, "after", 0, "begin after this position (default now)")
	return g.Asks(c, func(cmd *cobra.Command, d *client.Client, _ []string) error {
		err := d.Events(cmd.Context(), after, func(e client.Event) error {
			return g.Print(cmd, e, func(w io.Writer) {
				fmt.Fprintf(w, "%d %s %s", e.Position, e.Time.Local().Format(time.TimeOnly), terminal.Escape(e.Message))
				if e.Operator != "" {
					fmt.Fprintf(w, " by %s", terminal.Escape(e.Operator))
				}
				fmt.Fprintln(w)
			})
		})
		if errors.Is(err, context.Canceled) {
			return nil
		}
		return err
	})
}
