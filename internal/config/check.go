package config

import (
	"context"
	"os"
	"slices"

	"sallyport/policy"
)

// Check lists everything that is wrong with the configuration at path, errors and
// warnings, the team's Rego included. Nothing in the list means that the daemon
// will take it.
func Check(ctx context.Context, path string) []policy.Finding {
	data, err := os.ReadFile(path)
	if err != nil {
		return []policy.Finding{{Position: policy.Position{File: path}, Message: err.Error(), Fix: "write the path of a sallyport.yaml"}}
	}
	c, findings := parse(path, data)
	if b := c.Policy.Bundle; b != nil && b.File != "" {
		c.Policy.Verified, err = ReadBundle(*b)
		if err != nil {
			findings = append(findings, policy.Finding{Position: c.Positions["policy.bundle.file"], Path: "policy.bundle.file", Message: err.Error()})
			c.Policy.Bundle = nil // the rest can be checked
		}
	} else if b != nil {
		findings = append(findings, policy.Finding{
			Severity: policy.Warning, Position: c.Positions["policy.bundle.url"], Path: "policy.bundle.url",
			Message: "what the server has is not checked here", Fix: "check the bundle's folder before it is built, as a policy.dir",
		})
		c.Policy.Bundle = nil
	}
	_, err = policy.Compile(ctx, c.Document, policy.Options{})
	for _, f := range policy.Findings(err) {
		if !slices.Contains(findings, f) {
			findings = append(findings, f)
		}
	}
	return findings
}
