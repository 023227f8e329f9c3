package auditcmd

import (
	"errors"
	"time"

	"github.com/spf13/cobra"

	"sallyport/audit/index"
	"sallyport/cmd/sallyport/cli"
	"sallyport/internal/config"
)

func newTimeline(g *cli.Globals) *cobra.Command {
	var from, to string
	c := &cobra.Command{
		Use:   "timeline SANDBOX",
		Short: "Show all that a sandbox did and that was done to it, in order",
		Long: "Timeline shows requests with their outcomes, commands, approvals, snapshots, restores, forks and changes of state of\n" +
			"a sandbox and versions of its memory, by its name or ID, in the order of the log. `sallyport memory history` shows\n" +
			"which files a version is about.",
		Example: "  sallyport audit timeline demo --from before-deploy --to after-deploy\n" +
			"  sallyport audit timeline demo --from 2h -o csv",
		Args: cli.Exactly("SANDBOX"),
	}
	c.Flags().StringVar(&from, "from", "", "a snapshot's name, how long ago, or a time as 2026-12-01T00:00:00Z")
	c.Flags().StringVar(&to, "to", "", "likewise")
	return reads(g, c, func(cmd *cobra.Command, cfg *config.Config, args []string) error {
		if err := exists(cfg); err != nil {
			return err
		}
		q := index.Query{Sandbox: args[0]}
		begin, err := bound(cmd, cfg, args[0], "from", from, &q.From, &q.Since)
		if err != nil {
			return err
		}
		end, err := bound(cmd, cfg, args[0], "to", to, &q.To, &q.Until)
		if err != nil {
			return err
		}
		if !end.IsZero() && end.Before(begin) || q.To != 0 && q.From > q.To {
			return cli.Usagef("--from %q is after --to %q", from, to)
		}
		return show(g, cmd, index.Timeline(cmd.Context(), cfg.AuditDir(), cfg.AuditIndex(), q))
	})
}

// bound sets the number of the event that a snapshot was made, or else a time, and returns
// the time in either case; zero for no text.
func bound(cmd *cobra.Command, cfg *config.Config, sandbox, flag, text string, number *uint64, since *time.Time) (at time.Time, err error) {
	if text == "" {
		return at, nil
	}
	if at, ok := cli.Time(text); ok {
		*since = at
		return at, nil
	}
	e, err := index.Snapshot(cmd.Context(), cfg.AuditDir(), cfg.AuditIndex(), sandbox, text)
	if errors.Is(err, index.ErrNoSnapshot) {
		return at, cli.Usagef("--%s: %w: write the name of one, 24h, or a time as 2026-12-01T00:00:00Z", flag, err)
	} else if err != nil {
		return at, err
	}
	*number = e.Number
	return time.UnixMilli(e.Event.Time), nil
}
