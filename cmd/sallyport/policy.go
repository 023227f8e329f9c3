package main

import "github.com/spf13/cobra"

func newPolicy(g *globals) *cobra.Command {
	return group("policy", "Check, test, explain and replay the policy, and learn one",
		newPolicyCheck(g), newPolicyTest(g), newPolicyExplain(g), newPolicyReplay(g), newPolicyLearn(g))
}
