package main

import (
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"
)

func newSandboxExpose(g *globals) *cobra.Command {
	var lasts time.Duration
	c := &cobra.Command{
		Use: "expose NAME PORT", Short: "Let requests from this host reach a port of a sandbox", Args: exactly("NAME", "PORT"),
		Long: "Print a URL that reaches a port of a sandbox from this host, for as long as --for\n" +
			"says, where an expose rule of the policy allows it. Its token is shown this once.",
		Example: "  sallyport sandbox expose demo 8000 --for 2h",
	}
	c.Flags().DurationVar(&lasts, "for", time.Hour, "how long, at most 24h")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		port, err := portOf(args[1])
		if err != nil {
			return err
		}
		if lasts <= 0 {
			return usageError{fmt.Errorf("--for %v: use 1s to 24h", lasts)}
		}
		d, err := g.daemon()
		if err != nil {
			return err
		}
		made, err := d.Expose(cmd.Context(), args[0], port, lasts)
		if err != nil {
			return err
		}
		return g.print(cmd, made, func(w io.Writer) {
			fmt.Fprintln(w, made.Visit)
			fmt.Fprintf(cmd.ErrOrStderr(), "Whoever has this URL reaches port %d of %s from this host until %s.\n", made.Port, made.Sandbox, made.Expires.Local().Format("2006-01-02 15:04"))
		})
	}
	return c
}

func newSandboxUnexpose(g *globals) *cobra.Command {
	return &cobra.Command{Use: "unexpose NAME PORT", Short: "End an exposure and its connections", Args: exactly("NAME", "PORT"), RunE: func(cmd *cobra.Command, args []string) error {
		port, err := portOf(args[1])
		if err != nil {
			return err
		}
		d, err := g.daemon()
		if err != nil {
			return err
		}
		if err := d.Unexpose(cmd.Context(), args[0], port); err != nil {
			return err
		}
		return g.print(cmd, map[string]any{"unexposed": args[0], "port": port}, func(w io.Writer) { fmt.Fprintf(w, "port %d of %s is not exposed any more\n", port, args[0]) })
	}}
}

func newSandboxExposures(g *globals) *cobra.Command {
	return &cobra.Command{Use: "exposures NAME", Short: "List the exposed ports of a sandbox", Args: exactly("NAME"), RunE: func(cmd *cobra.Command, args []string) error {
		d, err := g.daemon()
		if err != nil {
			return err
		}
		list, err := d.Exposures(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		return g.print(cmd, list, func(w io.Writer) {
			var rows []string
			for _, e := range list {
				rows = append(rows, fmt.Sprintf("%d\t%s\t%s", e.Port, e.URL, day(e.Expires, "never")))
			}
			table(w, "PORT\tURL\tEXPIRES", rows...)
		})
	}}
}

func portOf(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 {
		return 0, usageError{fmt.Errorf("%q is not a port: write one from 1 to 65535", s)}
	}
	return uint16(n), nil
}
