// Package auditcmd is `sallyport audit`, a file for each verb. Its commands read the log
// themselves and need no daemon, but for those about sinks.
package auditcmd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/spf13/cobra"

	"sallyport/audit/auditlog"
	"sallyport/cmd/sallyport/cli"
	"sallyport/internal/config"
)

// Command is `sallyport audit`.
func Command(g *cli.Globals) *cobra.Command {
	return cli.Group("audit", "Read decisions and their outcomes, and check them",
		newTail(g), newQuery(g), newTimeline(g), newVerify(g), newProve(g), newKey(g), newSink(g), newHold(g), newDelete(g))
}

// reads makes c a command that lists records.
func reads(g *cli.Globals, c *cobra.Command, do func(cmd *cobra.Command, cfg *config.Config, args []string) error) *cobra.Command {
	return cli.Needs(c, func() (*config.Config, error) { return g.ConfigFor("text", "json", "table", "csv", "ndjson") }, do)
}

// exists says why there is no log to read.
func exists(cfg *config.Config) error {
	if _, err := os.Stat(cfg.AuditDir()); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("there is no log in %s: has `sallyport up` run with this configuration?", cfg.AuditDir())
	}
	return nil
}

// pairWait is how long a decision waits for its outcome before it is shown alone.
const pairWait = 2 * time.Second

func newTail(g *cli.Globals) *cobra.Command {
	var q auditlog.Query
	c := &cobra.Command{Use: "tail", Short: "Show the last records, a decision and its outcome on one line", Args: cli.Exactly()}
	c.Flags().IntVarP(&q.Last, "lines", "n", 20, "how many events to go back")
	c.Flags().BoolVarP(&q.Follow, "follow", "f", false, "follow new records")
	c.Flags().StringVar(&q.Sandbox, "sandbox", "", "of this sandbox only")
	c.Flags().BoolVar(&q.Denied, "denied", false, "refusals only")
	return g.Reads(c, func(cmd *cobra.Command, cfg *config.Config, _ []string) error {
		if err := exists(cfg); err != nil && !q.Follow {
			return err
		}
		for r, err := range cli.Undamaged(cmd, auditlog.Pair(cmd.Context(), cfg.AuditDir(), q, pairWait)) {
			if err != nil {
				return err
			}
			if seals(r) && g.Output == "text" {
				continue
			}
			if err := g.PrintLine(cmd, r, func() string { return auditlog.Line(r) }); err != nil {
				return err
			}
		}
		return nil
	})
}
