package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"sallyport/internal/config"
	"sallyport/policy"
)

func newPolicyCheck(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "check",
		Short: "Check the configuration and the policy; nothing is changed",
		Args:  exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			path := g.path()
			if path == "" {
				return usageError{errors.New("there is no configuration to check: name one with --config")}
			}
			findings := config.Check(cmd.Context(), path)
			if err := g.print(cmd, findings, func(w io.Writer) {
				for _, f := range findings {
					fmt.Fprintln(w, f.Error())
				}
				if len(findings) == 0 {
					fmt.Fprintln(w, path+": no findings")
				}
			}); err != nil {
				return err
			}
			for _, f := range findings {
				if f.Severity == policy.Error {
					return errors.New("the configuration cannot be used; see above")
				}
			}
			return nil
		},
	}
}
