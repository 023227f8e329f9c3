package memorycmd

import (
	"fmt"

	"github.com/spf13/cobra"

	"sallyport/cmd/sallyport/cli"
	"sallyport/internal/terminal"
	memclient "sallyport/memory/client"
	"sallyport/memory/history"
	"sallyport/memory/keeper"
)

const quarantineHead = "ID\tTIME\tPATH\tBYTES\tREASON"

func quarantineRow(q history.Quarantine) string {
	return fmt.Sprintf("%d\t%s\t%s\t%d\t%s", q.ID, when(q.Time), terminal.Escape(q.Path), q.Size, terminal.Escape(q.Reason))
}

func newQuarantine(g *cli.Globals) *cobra.Command {
	var r keeper.QuarantineRequest
	c := &cobra.Command{
		Use: "quarantine NAME [PATH...]", Short: "Take files out of a memory", Args: cobra.MinimumNArgs(1),
		Example: "  sallyport memory quarantine demo memories/odd.md\n  sallyport memory quarantine demo --destination evil.example   # all that was written since the sandbox first talked to it",
	}
	c.Flags().StringVar(&r.Destination, "destination", "", "all files that were written after the sandbox had contacted this destination")
	c.Flags().StringVar(&r.Reason, "reason", "", "why, for the history")
	return cli.Lists(g, c, of(memclient.Quarantine, func(args []string) (keeper.QuarantineRequest, error) {
		r.Paths = args[1:]
		if len(r.Paths) == 0 && r.Destination == "" {
			return r, cli.Usagef("say which files, or --destination")
		}
		return r, nil
	}), quarantineHead, quarantineRow)
}

func newQuarantined(g *cli.Globals) *cobra.Command {
	c := &cobra.Command{Use: "list_quarantine NAME", Short: "List the files that were taken out of a memory", Args: cli.Exactly("NAME")}
	return cli.Lists(g, c, of(memclient.ListQuarantine, none), quarantineHead, quarantineRow)
}

func quarantineID(args []string) (keeper.QuarantineID, error) {
	n, err := version(args[1])
	if err != nil {
		err = cli.Usagef("%q is not an id: `sallyport memory list_quarantine` shows them", args[1])
	}
	return keeper.QuarantineID{ID: n}, err
}

func newRelease(g *cli.Globals) *cobra.Command {
	c := &cobra.Command{Use: "release NAME ID", Short: "Put a file from quarantine back into a memory", Args: cli.Exactly("NAME", "ID")}
	return cli.Shows(g, c, of(memclient.Release, quarantineID), printCommit)
}

func newDiscard(g *cli.Globals) *cobra.Command {
	c := &cobra.Command{Use: "discard NAME ID", Short: "Remove a file from quarantine for good", Args: cli.Exactly("NAME", "ID")}
	return cli.Shows(g, c, of(memclient.Discard, quarantineID), printCommit)
}
