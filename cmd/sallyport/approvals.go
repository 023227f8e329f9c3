package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sallyport/cmd/sallyport/cli"
	"sallyport/internal/api"
	"sallyport/internal/terminal"
	"sallyport/policy/approval"
	"sallyport/sandbox/client"
)

func newApprovals(g *cli.Globals) *cobra.Command {
	return cli.Group("approvals", "Answer requests that the policy holds for a person",
		newApprovalsList(g), newApprovalsApprove(g), newApprovalsDeny(g))
}

func newApprovalsList(g *cli.Globals) *cobra.Command {
	var watch bool
	c := &cobra.Command{Use: "ls", Short: "List requests that wait for an operator, and grants", Args: cli.Exactly()}
	c.Flags().BoolVar(&watch, "watch", false, "keep running, and list again on each change")
	return g.Asks(c, func(cmd *cobra.Command, d *client.Client, _ []string) error {
		if !watch {
			list, err := api.ListApprovals.Do(cmd.Context(), d, client.None{})
			if err != nil {
				return err
			}
			return g.Print(cmd, list, func(w io.Writer) { printApprovals(w, list) })
		}
		err := api.WatchApprovals(cmd.Context(), d, func(list api.ApprovalList) error {
			if g.Output == "json" {
				return terminal.JSON(cmd.OutOrStdout()).Encode(list) // a line each
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s\n", time.Now().Format(time.TimeOnly))
			printApprovals(cmd.OutOrStdout(), list)
			return nil
		})
		if cmd.Context().Err() != nil {
			return nil
		}
		return err
	})
}

// printApprovals writes the lists as a person reads them. Much of it is in a
// sandbox's own words.
func printApprovals(w io.Writer, l api.ApprovalList) {
	now := time.Now()
	cli.Table(w, "ID\tSANDBOX\tLEFT\tREQUEST\tCREDENTIALS\tBODY\tRULE\tREASON", cli.Rows(l.Requests, func(r approval.Request) string {
		s := r.Subject
		return strings.Join([]string{
			r.ID, terminal.Word(s.Sandbox), r.Expires.Sub(now).Round(time.Second).String(), asks(s), terminal.Word(strings.Join(s.Credentials, ",")),
			bodyOf(s), terminal.Word(s.Rule), terminal.Escape(r.Reason),
		}, "\t")
	})...)
	if len(l.Grants) == 0 {
		return
	}
	fmt.Fprintln(w)
	cli.Table(w, "GRANTED\tSANDBOX\tFOR\tLEFT\tUSES\tREQUEST\tBY", cli.Rows(l.Grants, func(g approval.Grant) string {
		s, uses, span := g.Subject, "any", string(g.Span)
		if g.Left > 0 {
			uses = fmt.Sprint(g.Left)
		}
		if g.Span == approval.Once {
			span = "once"
		} else if s.Method != "" {
			s.Method, s.Path, s.Target, s.QueryKeys = g.Pattern.Method, g.Pattern.Path, "", nil
		}
		return strings.Join([]string{
			g.ID, terminal.Word(s.Sandbox), span, g.Until.Sub(now).Round(time.Second).String(), uses, asks(s), terminal.Word(g.Operator.Name),
		}, "\t")
	})...)
}

// asks is what a subject is about, on one line.
func asks(s approval.Subject) string {
	where := fmt.Sprintf("%s:%d", terminal.Word(s.Host), s.Port)
	if s.Method == "" {
		return terminal.Word(s.Protocol) + " " + where
	}
	line := terminal.Word(s.Method) + " " + where + terminal.Word(cmp.Or(s.Target, s.Path))
	if len(s.QueryKeys) > 0 {
		line += "?" + terminal.Word(strings.Join(s.QueryKeys, "&"))
	}
	return line
}

func bodyOf(s approval.Subject) string {
	switch {
	case s.Method == "":
		return "-"
	case s.Body == "":
		return "unread"
	case s.Length == 0:
		return "none"
	}
	return fmt.Sprintf("%d bytes, %.12s", s.Length, s.Body)
}

func newApprovalsApprove(g *cli.Globals) *cobra.Command {
	var span string
	a := approval.Answer{Approve: true}
	c := &cobra.Command{
		Use:   "approve ID",
		Short: "Let a request go: this once, for the session, or for a time",
		Long: "Let a request go. Without --for it is for this one request, as it is. For the session\n" +
			"or a time it is for its sandbox, host, credentials and rule, for the request's own\n" +
			"method and path unless --method and --path say more.",
		Example: "  sallyport approvals approve 0199…\n" +
			"  sallyport approvals approve 0199… --for 1h --method GET --path '/repos/**' --count 5",
	}
	c.Flags().StringVar(&span, "for", "", "session, or a time as 1h")
	c.Flags().StringVar(&a.Pattern.Method, "method", "", "the request's, or * for any; with --for")
	c.Flags().StringVar(&a.Pattern.Path, "path", "", "a glob that covers the request's; with --for")
	c.Flags().IntVar(&a.Count, "count", 0, "how many requests at most; with --for")
	c.Flags().StringVar(&a.Note, "note", "", "text for the audit log")
	c.PreRunE = func(cmd *cobra.Command, _ []string) error {
		switch {
		case span == string(approval.Session):
			a.Span = approval.Session
		case span != "":
			d, err := time.ParseDuration(span)
			if err != nil || d <= 0 {
				return cli.Usagef("--for %q: write session, or a time as 30m or 1h", span)
			}
			a.Span, a.For = approval.Period, d
		case a.Pattern != (approval.Pattern{}) || cmd.Flags().Changed("count"):
			return cli.Usagef("--method, --path and --count need --for")
		}
		if cmd.Flags().Changed("count") && a.Count < 1 {
			return cli.Usagef("--count %d: write a number from 1", a.Count)
		}
		return nil
	}
	return answers(g, c, &a)
}

func newApprovalsDeny(g *cli.Globals) *cobra.Command {
	var a approval.Answer
	c := &cobra.Command{Use: "deny ID", Short: "Refuse a request, or revoke a grant"}
	c.Flags().StringVar(&a.Note, "note", "", "text for the audit log and for the sandbox that asked")
	return answers(g, c, &a)
}

// answers makes c a command that answers the request with the ID that is its argument.
func answers(g *cli.Globals, c *cobra.Command, a *approval.Answer) *cobra.Command {
	c.Args = func(cmd *cobra.Command, args []string) error { return oneRequest(g, cmd, args) }
	return cli.Shows(g, c, func(ctx context.Context, d *client.Client, args []string) (approval.Request, error) {
		return api.AnswerApproval.Do(ctx, d, *a, args[0])
	}, func(w io.Writer, r approval.Request) {
		fmt.Fprintf(w, "%s: %s for %s\n", r.State, asks(r.Subject), terminal.Word(r.Subject.Sandbox))
	})
}

// oneRequest wants the ID of a request, and says which one waits where just one does.
// It is not taken for meant: another one may come in its place meanwhile.
func oneRequest(g *cli.Globals, cmd *cobra.Command, args []string) error {
	missing := cli.Exactly("ID")(cmd, args)
	if len(args) > 0 || missing == nil {
		return missing
	}
	d, err := g.Daemon()
	if err != nil {
		return missing
	}
	list, err := api.ListApprovals.Do(cmd.Context(), d, client.None{})
	switch {
	case err != nil:
		return missing
	case len(list.Requests) == 0:
		return cli.Usagef("the ID is missing, and no request waits")
	case len(list.Requests) > 1:
		return cli.Usagef("the ID is missing, and %d requests wait: `sallyport approvals ls` lists them", len(list.Requests))
	}
	r := list.Requests[0]
	return cli.Usagef("the ID is missing; one request waits, %s for %s: write `%s %s`", asks(r.Subject), terminal.Word(r.Subject.Sandbox), cmd.CommandPath(), r.ID)
}
