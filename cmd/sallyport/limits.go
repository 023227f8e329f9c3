package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sallyport/audit"
	"sallyport/internal/api"
	"sallyport/internal/terminal"
	"sallyport/policy"
	"sallyport/policy/approval"
	"sallyport/policy/limit"
)

// limits are the counters as the API sees them.
type limits struct{ d *daemon }

func (l limits) List(ctx context.Context) ([]api.Limit, error) {
	counts, err := l.d.warden.Limits(ctx)
	if err != nil {
		return nil, err
	}
	names := l.sandboxes()
	list := make([]api.Limit, 0, len(counts))
	for _, n := range counts {
		item := api.Limit{Name: n.Limit, Per: n.Per, Subject: n.Subject, Used: n.Used, Most: n.Most}
		if n.Every > 0 && n.Every != limit.Forever {
			item.Resets = n.Ends()
		}
		if n.Per == policy.PerSandbox {
			item.Sandbox = names[n.Subject]
		}
		list = append(list, item)
	}
	return list, nil
}

// sandboxes are the names of sandboxes and of users of the explicit proxy by ID.
func (l limits) sandboxes() map[string]string {
	names := map[string]string{}
	for _, c := range l.d.clients.List() {
		names[c.ID] = c.Name
	}
	if l.d.house != nil {
		for _, i := range l.d.house.sandboxes.List() {
			names[i.ID] = i.Name
		}
	}
	return names
}

func (l limits) Reset(ctx context.Context, by approval.Operator, name, subject string) (int, error) {
	counts, err := l.d.warden.Limits(ctx)
	if err != nil {
		return 0, err
	}
	if err := l.known(name, counts); err != nil {
		return 0, err
	}
	what := fmt.Sprintf("limit %s of %s", name, subject)
	if subject == "" {
		subject, what = limit.Every, "limit "+name
	}
	names := l.sandboxes()
	if l.d.house != nil {
		// A fork's counter is its lineage's.
		if i, err := l.d.house.sandboxes.Get(subject); err == nil && i.Lineage != nil {
			subject = i.Lineage.Root
		}
	}
	for _, n := range counts {
		if n.Limit == name && n.Per == policy.PerSandbox && names[n.Subject] == subject {
			subject = n.Subject
		}
	}
	e := changed(audit.Product{Name: "limit/" + name}, what, "reset")
	e.Actor = actor(by)
	return l.d.warden.ResetLimit(ctx, name, subject, e)
}

// known is an error for a name that nothing has: it is most likely misspelled.
func (l limits) known(name string, counts []limit.Count) error {
	var names []string
	for _, limit := range l.d.inForce.Load().Limits {
		names = append(names, limit.Name)
	}
	for _, n := range counts {
		names = append(names, n.Limit)
	}
	near := policy.Nearest(name, names)
	switch {
	case slices.Contains(names, name):
		return nil
	case near != "":
		return fmt.Errorf("%w: %q: did you mean %q?", api.ErrNoLimit, name, near)
	}
	return fmt.Errorf("%w: %q: `sallyport limits` shows those in use", api.ErrNoLimit, name)
}

func newLimits(g *globals) *cobra.Command {
	c := &cobra.Command{Use: "limits", Short: "Show what is used of the policy's limits", Args: exactly()}
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		d, err := g.daemon()
		if err != nil {
			return err
		}
		list, err := d.Limits(cmd.Context())
		if err != nil {
			return err
		}
		return g.print(cmd, list, func(w io.Writer) { printLimits(w, list, time.Now()) })
	}
	c.AddCommand(newLimitsReset(g))
	return c
}

func newLimitsReset(g *globals) *cobra.Command {
	var subject string
	c := &cobra.Command{
		Use:   "reset NAME",
		Short: "Empty the counters of a limit; the audit log says who did",
		Example: `  sallyport limits reset openai-a-day
  sallyport limits reset openai-a-day --subject demo   # a sandbox, or what else the limit counts by`,
		Args: exactly("NAME"),
	}
	c.Flags().StringVar(&subject, "subject", "", "only the counter of this sandbox, tag's value, host:port or credential (default all)")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		d, err := g.daemon()
		if err != nil {
			return err
		}
		r, err := d.ResetLimit(cmd.Context(), args[0], subject)
		if err != nil {
			return err
		}
		return g.print(cmd, r, func(w io.Writer) { fmt.Fprintf(w, "%s: %d reset\n", args[0], r.Reset) })
	}
	return c
}

func printLimits(w io.Writer, list []api.Limit, now time.Time) {
	if len(list) == 0 {
		fmt.Fprintln(w, "nothing is used of any limit")
		return
	}
	var rows []string
	for _, l := range list {
		subject := l.Subject
		if l.Sandbox != "" {
			subject = l.Sandbox
		}
		resets := "-"
		if !l.Resets.IsZero() {
			resets = "in " + max(l.Resets.Sub(now), 0).Round(time.Second).String()
		}
		rows = append(rows, strings.Join([]string{terminal.Word(l.Name), terminal.Word(l.Per), terminal.Word(subject), usage(l), resets}, "\t"))
	}
	table(w, "LIMIT\tPER\tSUBJECT\tUSED\tRESETS", rows...)
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
