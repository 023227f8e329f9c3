package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"sallyport/internal/api"
	"sallyport/internal/terminal"
	"sallyport/sandbox/agent/wire"
)

func newSandboxChanges(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "changes NAME [SNAPSHOT]",
		Short: "List files that changed since a snapshot, or since the image",
		Args:  exactly("NAME", "[SNAPSHOT]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			d, err := g.daemon()
			if err != nil {
				return err
			}
			w := cmd.OutOrStdout()
			lines := json.NewEncoder(w)
			return d.Changes(cmd.Context(), args[0], append(args, "")[1], func(c api.Change) error {
				if g.output == "json" {
					return lines.Encode(c)
				}
				_, err := fmt.Fprintf(w, "%-8s  %s\n", terminal.Word(c.Kind), terminal.Escape(wire.RawName(c.Path, c.Raw)))
				return err
			})
		},
	}
}
