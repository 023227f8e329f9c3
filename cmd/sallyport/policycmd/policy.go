// Package policycmd is `sallyport policy`, a file for each verb.
package policycmd

import (
	"github.com/spf13/cobra"

	"sallyport/cmd/sallyport/cli"
)

// Command is `sallyport policy`.
func Command(g *cli.Globals) *cobra.Command {
	return cli.Group("policy", "Check, test, explain and replay the policy, and learn one",
		newCheck(g), newTest(g), newExplain(g), newReplay(g), newLearn(g))
}
