package auditcmd

import (
	"github.com/spf13/cobra"

	"sallyport/audit"
	"sallyport/audit/index"
	"sallyport/cmd/sallyport/cli"
	"sallyport/internal/config"
)

func newQuery(g *cli.Globals) *cobra.Command {
	var q index.Query
	var since, until, kind string
	c := &cobra.Command{
		Use:   "query",
		Short: "Show the records that fit",
		Long: "Query shows the records that fit all of its flags, the oldest first, a decision with its outcome. It reads the\n" +
			"log, by way of the daemon's index where there is one.",
		Example: "  sallyport audit query --sandbox demo --denied --since 1h -o json\n" +
			"  sallyport audit query --destination api.example.com --text uploads -o csv",
		Args: cli.Exactly(),
	}
	f := c.Flags()
	f.StringVar(&q.Sandbox, "sandbox", "", "of the sandbox with this name or ID")
	f.StringVar(&q.Destination, "destination", "", "to this host name or address")
	f.StringVar(&q.Rule, "rule", "", "decided by this rule")
	f.StringVar(&q.Credential, "credential", "", "with this credential")
	f.StringVar(&q.Decision, "decision", "", "allow, deny, tunnel or approve")
	f.StringVar(&q.Text, "text", "", "with all of these words in host, path, reason, message or state")
	f.BoolVar(&q.Denied, "denied", false, "refusals only")
	f.StringVar(&since, "since", "", "not older than this: 90s, 15m, 24h, or a time as 2026-12-01T00:00:00Z")
	f.StringVar(&until, "until", "", "older than this, likewise")
	f.Uint64Var(&q.From, "from", 0, "the first sequence number")
	f.StringVar(&kind, "kind", "", "decision, completion, connection, drop or lifecycle")
	return reads(g, c, func(cmd *cobra.Command, cfg *config.Config, _ []string) (err error) {
		switch q.Kind = audit.Kind(kind); q.Kind {
		case "", audit.KindDecision, audit.KindCompletion, audit.KindConnection, audit.KindDrop, audit.KindLifecycle:
		default:
			return cli.Usagef("--kind %q: use decision, completion, connection, drop or lifecycle", kind)
		}
		switch q.Decision {
		case "", "allow", "deny", "tunnel", "approve":
		default:
			return cli.Usagef("--decision %q: use allow, deny, tunnel or approve", q.Decision)
		}
		if q.Since, err = cli.TimeFlag("since", since); err != nil {
			return err
		}
		if q.Until, err = cli.TimeFlag("until", until); err != nil {
			return err
		}
		if err := exists(cfg); err != nil {
			return err
		}
		return show(g, cmd, index.Search(cmd.Context(), cfg.AuditDir(), cfg.AuditIndex(), q))
	})
}
