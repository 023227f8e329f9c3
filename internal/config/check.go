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
	_, err = policy.Compile(ctx, c.Document, policy.Options{})
	for _, f := range policy.Findings(err) {
		if !slices.Contains(findings, f) {
			findings = append(findings, f)
		}
	}
	return findings
}
