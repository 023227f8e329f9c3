package auditcmd

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"sallyport/audit/retention"
	"sallyport/cmd/sallyport/cli"
	"sallyport/internal/api"
	"sallyport/internal/size"
	"sallyport/internal/terminal"
	"sallyport/sandbox/client"
)

func newHold(g *cli.Globals) *cobra.Command {
	return cli.Group("hold", "Legal holds: while there is one, no record is deleted", newHoldAdd(g), newHoldList(g), newHoldRemove(g))
}

func newHoldAdd(g *cli.Globals) *cobra.Command {
	var in api.HoldReason
	c := &cobra.Command{
		Use: "add NAME", Short: "Keep all records from now on; the audit log says why, and who did", Args: cli.Exactly("NAME"),
		Example: `  sallyport audit hold add case-2026-17 --reason "letter of the court of 1 December"`,
	}
	reason(c, &in)
	return cli.Shows(g, c, func(ctx context.Context, d *client.Client, args []string) (retention.Hold, error) {
		return api.AddHold.Do(ctx, d, in, args[0])
	}, func(w io.Writer, h retention.Hold) { fmt.Fprintf(w, "%s holds all records\n", h.Name) })
}

func newHoldList(g *cli.Globals) *cobra.Command {
	c := &cobra.Command{Use: "ls", Short: "List the holds", Args: cli.Exactly()}
	return cli.Lists(g, c, cli.All(api.ListHolds), "NAME\tSINCE\tBY\tREASON", func(h retention.Hold) string {
		return strings.Join([]string{h.Name, cli.Day(h.Since, "-"), terminal.Word(cli.OrDash(h.By)), terminal.Text(h.Reason)}, "\t")
	})
}

func newHoldRemove(g *cli.Globals) *cobra.Command {
	var in api.HoldReason
	c := &cobra.Command{Use: "rm NAME", Short: "End a hold; the audit log says why, and who did", Args: cli.Exactly("NAME")}
	reason(c, &in)
	return g.Asks(c, func(cmd *cobra.Command, d *client.Client, args []string) error {
		if err := api.ReleaseHold.Do(cmd.Context(), d, in, args[0]); err != nil {
			return err
		}
		return g.Done(cmd, "removed", args[0])
	})
}

func reason(c *cobra.Command, in *api.HoldReason) {
	c.Flags().StringVar(&in.Reason, "reason", "", "why (needed)")
	c.PreRunE = func(*cobra.Command, []string) error {
		if in.Reason == "" {
			return cli.Usagef("say why, with --reason")
		}
		return nil
	}
}

func newDelete(g *cli.Globals) *cobra.Command {
	var before string
	var in api.DeleteRequest
	c := &cobra.Command{
		Use: "delete --before TIME", Short: "Delete the oldest records; their hashes stay, and the audit log says what was deleted", Args: cli.Exactly(),
		Long: "Delete segments of the log that have only records from before a time. Their hashes stay in the tree: proofs and copies of the records are checked as before.\n\n" +
			"It is refused under a legal hold, and while a sink lacks some of the records unless --force is given.",
		Example: "  sallyport audit delete --before 2026-06-01T00:00:00Z\n  sallyport audit delete --before 90d",
	}
	c.Flags().StringVar(&before, "before", "", "a time as 2026-12-01T00:00:00Z, or how long ago, as 90d (needed)")
	c.Flags().BoolVar(&in.Force, "force", false, "also what a sink lacks; it gets a record that says so")
	c.PreRunE = func(*cobra.Command, []string) error {
		var ok bool
		if in.Before, ok = cli.Time(before); !ok {
			return cli.Usagef("--before %q: write a time as 2026-12-01T00:00:00Z, or how long ago, as 90d", before)
		}
		in.Before = in.Before.UTC()
		return nil
	}
	return cli.Shows(g, c, func(ctx context.Context, d *client.Client, _ []string) (retention.Plan, error) {
		return api.DeleteAudit.Do(ctx, d, in)
	}, func(w io.Writer, p retention.Plan) {
		fmt.Fprintf(w, "records %d to %d are being deleted: %s, %s\n", p.First, p.Last, cli.Many(p.Segments, "segment", "segments"), size.About(p.Bytes))
	})
}
