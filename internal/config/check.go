package config

import (
	"context"
	"os"

	"sallyport/policy"
)

// Check lists everything that is wrong with the configuration at path, or worth
// knowing about it, the team's Rego included, which is read from the files and
// folders named where some are: see [policy.Check]. No error in the list means
// that the daemon will take it. Without a path it is Rego alone that is checked.
func Check(ctx context.Context, path string, rego ...string) []policy.Finding {
	if path == "" {
		return policy.Check(ctx, policy.Document{}, rego...)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return []policy.Finding{{
			Kind: policy.Unreadable, Position: policy.Position{File: path},
			Message: err.Error(), Fix: "write the path of a sallyport.yaml",
		}}
	}
	c, findings := parse(path, data)
	return policy.Tidy(append(findings, policy.Check(ctx, c.Document, rego...)...))
}
