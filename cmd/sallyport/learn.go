package main

import "github.com/spf13/cobra"

func newPolicyLearn(g *globals) *cobra.Command { return &cobra.Command{Use: "learn"} }
