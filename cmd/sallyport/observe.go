package main

import (
	"github.com/spf13/cobra"

	"sallyport/internal/api"
)

// banner says on the error stream what is in observe mode.
func (g *globals) banner(cmd *cobra.Command, d *api.Client) {}
