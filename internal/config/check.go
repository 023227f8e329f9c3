package config

import (
	"context"
	"os"

	"sallyport/policy"
	"sallyport/policy/check"
	"sallyport/policy/finding"
)

// Check lists the findings about the configuration at path and about the team's Rego,
// which is read from the files and folders in rego, if any, instead of those that the
// configuration names: see [check.Run]. The daemon accepts a configuration without
// findings of severity error. With an empty path, Check checks Rego alone.
func Check(ctx context.Context, path string, rego ...string) []finding.Finding {
	if path == "" {
		return check.Run(ctx, policy.Document{}, rego...)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return []finding.Finding{{
			Kind: finding.Unreadable, Position: finding.Position{File: path},
			Message: err.Error(), Fix: "write the path of a sallyport.yaml",
		}}
	}
	c, findings := parse(path, data)
	findings = append(findings, c.anyNamespace()...)
	if b := c.Policy.Bundle; b != nil && b.File != "" {
		if c.Policy.Verified, err = ReadBundle(*b); err != nil {
			findings = append(findings, finding.Finding{
				Kind: finding.BadBundle, Position: c.Positions["policy.bundle.file"], Path: "policy.bundle.file", Message: err.Error(),
				Fix: "write where `opa build` and `opa sign` have put it, and the key that it is signed for",
			})
			c.Policy.Bundle = nil // the rest can be checked
		}
	} else if b != nil {
		findings = append(findings, finding.Finding{
			Kind: finding.UncheckedBundle, Severity: finding.Note, Position: c.Positions["policy.bundle.url"], Path: "policy.bundle.url",
			Message: "what the server has is not checked here", Fix: "check the bundle's folder before it is built, as a policy.dir",
		})
		c.Policy.Bundle = nil
	}
	return check.Tidy(append(findings, check.Run(ctx, c.Document, rego...)...))
}
