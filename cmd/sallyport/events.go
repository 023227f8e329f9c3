package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"sallyport/cmd/sallyport/cli"
	"sallyport/internal/terminal"
	"sallyport/sandbox/client"
)

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
