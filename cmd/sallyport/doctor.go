package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"sallyport/internal/daemon"
	"sallyport/internal/doctor"
)

func newDoctor(g *globals) *cobra.Command {
	return &cobra.Command{Use: "doctor", Short: "Check what this host lacks, and say how to fix it", Args: exactly(), RunE: func(cmd *cobra.Command, _ []string) error {
		cfg, err := g.config()
		if err != nil {
			return err
		}
		findings := daemon.Examine(cmd.Context(), cfg)
		err = g.print(cmd, findings, func(w io.Writer) {
			var rows []string
			for _, f := range findings {
				rows = append(rows, fmt.Sprintf("%s\t%s\t%s", f.Level, f.Name, f.Found))
				if f.Level != doctor.OK && f.Fix != "" {
					rows = append(rows, fmt.Sprintf("\t\t→ %s", f.Fix))
				}
			}
			table(w, "STATE\tREQUIREMENT\tFOUND", rows...)
		})
		if err != nil {
			return err
		}
		for _, f := range findings {
			if f.Level == doctor.Fail {
				return fmt.Errorf("%s is not as needed; see above", f.Name)
			}
		}
		return nil
	}}
}
