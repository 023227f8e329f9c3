package main

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sallyport/cmd/sallyport/cli"
	"sallyport/internal/api"
	"sallyport/internal/terminal"
	"sallyport/policy/limit"
	"sallyport/sandbox/client"
)

func newLimits(g *cli.Globals) *cobra.Command {
	c := &cobra.Command{Use: "limits", Short: "Show what is used of the policy's limits", Args: cli.Exactly()}
	c.AddCommand(newLimitsReset(g))
	return cli.Shows(g, c, cli.All(api.ListLimits), func(w io.Writer, list []api.Limit) { printLimits(w, list, time.Now()) })
}

func newLimitsReset(g *cli.Globals) *cobra.Command {
	var in api.ResetRequest
	c := &cobra.Command{
		Use:   "reset NAME",
		Short: "Empty the counters of a limit; the audit log says who did",
		Example: `  sallyport limits reset openai-a-day
  sallyport limits reset openai-a-day --subject demo   # a sandbox, or what else the limit counts by`,
		Args: cli.Exactly("NAME"),
	}
	c.Flags().StringVar(&in.Subject, "subject", "", "only the counter of this sandbox, tag's value, host:port or credential (default all)")
	return g.Asks(c, func(cmd *cobra.Command, d *client.Client, args []string) error {
		r, err := api.ResetLimit.Do(cmd.Context(), d, in, args[0])
		if err != nil {
			return err
		}
		return g.Print(cmd, r, func(w io.Writer) { fmt.Fprintf(w, "%s: %d reset\n", args[0], r.Reset) })
	})
}

func printLimits(w io.Writer, list []api.Limit, now time.Time) {
	if len(list) == 0 {
		fmt.Fprintln(w, "nothing is used of any limit")
		return
	}
	cli.Table(w, "LIMIT\tPER\tSUBJECT\tUSED\tRESETS", cli.Rows(list, func(l api.Limit) string {
		resets := "-"
		if !l.Resets.IsZero() {
			resets = "in " + max(l.Resets.Sub(now), 0).Round(time.Second).String()
		}
		return strings.Join([]string{terminal.Word(l.Name), terminal.Word(l.Per), terminal.Word(cmp.Or(l.Sandbox, l.Subject)), usage(l), resets}, "\t")
	})...)
}

// usage lists what is bounded: "3 of 10 requests, 1KiB of 1MiB".
func usage(l api.Limit) string {
	var parts []string
	add := func(what string, used, most int64) {
		switch {
		case most > 0:
			parts = append(parts, fmt.Sprintf("%d of %d %s", used, most, what))
		case l.Most == (limit.Amount{}) && used > 0: // counted again from the log, and not met since
			parts = append(parts, fmt.Sprintf("%d %s", used, what))
		}
	}
	add("requests", l.Used.Requests, l.Most.Requests)
	add("bytes", l.Used.Bytes, l.Most.Bytes)
	add("uses", l.Used.Uses, l.Most.Uses)
	add("tokens", l.Used.Tokens, l.Most.Tokens)
	switch {
	case l.Most.Cost > 0:
		parts = append(parts, fmt.Sprintf("a cost of %v of %v", l.Used.Cost, l.Most.Cost))
	case l.Most == (limit.Amount{}) && l.Used.Cost > 0:
		parts = append(parts, fmt.Sprintf("a cost of %v", l.Used.Cost))
	}
	add("under way", l.Used.Concurrent, l.Most.Concurrent)
	return strings.Join(parts, ", ")
}
