package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"sallyport/policy"
)

func newPolicyCheck(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "check",
		Short: "Check the configuration and the policy; nothing is changed",
		Args:  exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			var findings []policy.Finding
			cfg, err := g.config()
			if err != nil {
				findings = policy.Findings(err)
			} else {
				findings = policy.Validate(cfg.Document)
				if _, err := policy.Compile(cmd.Context(), cfg.Document, policy.Options{}); err != nil {
					findings = policy.Findings(err)
				}
			}
			if err := g.print(cmd, findings, func(w io.Writer) {
				for _, f := range findings {
					fmt.Fprintln(w, f.Error())
				}
				if len(findings) == 0 {
					fmt.Fprintln(w, "no findings")
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
