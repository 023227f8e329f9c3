package auditcmd

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"sallyport/audit/auditlog"
	"sallyport/audit/tree"
	"sallyport/cmd/sallyport/cli"
	"sallyport/internal/config"
	"sallyport/internal/terminal"
)

func newVerify(g *cli.Globals) *cobra.Command {
	var export, key, anchors string
	var first uint64
	c := &cobra.Command{
		Use:   "verify",
		Short: "Check that records are as they were written: of the log, or of a copy elsewhere",
		Long: "Check that records are as they were written, by the log's signed checkpoints.\n\n" +
			"The status is 0 if nothing wrong was found, 1 if something was, and 2 if it could not be checked.",
		Example: "  sallyport audit verify --anchors from-the-siem.ndjson\n" +
			"  sallyport audit verify --export from-the-siem.ndjson --key sallyport/…",
		Args: cli.Exactly(),
	}
	c.Flags().StringVar(&export, "export", "", "check the records in this file, one a line, in place of the log; - is the standard input")
	c.Flags().StringVar(&key, "key", "", "the log's public key, as `sallyport audit key` prints it (default the one in the data directory)")
	c.Flags().StringVar(&anchors, "anchors", "", "compare with the checkpoints in this copy of records from elsewhere")
	c.Flags().Uint64Var(&first, "first", 0, "the number that the export has to begin with (default any)")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if first > 0 && export == "" {
			return cli.Usagef("--first goes with --export: a log begins with record 1")
		}
		r, err := verify(g, cmd, export, key, anchors, first)
		if err != nil {
			return cli.Usagef("verifying: %w", err)
		}
		if err := g.Print(cmd, r, func(w io.Writer) { fmt.Fprint(w, terminal.Text(r.String())) }); err != nil {
			return err
		}
		if len(r.Findings) > 0 {
			return cli.ExitCode(1)
		}
		return nil
	}
	return c
}

func verify(g *cli.Globals, cmd *cobra.Command, export, keyText, anchors string, first uint64) (*tree.Report, error) {
	var cfg *config.Config
	var key tree.Key
	var err error
	if export == "" || keyText == "" {
		if cfg, err = g.Config(); err != nil {
			return nil, err
		}
	}
	if keyText != "" {
		key, err = tree.ParseKey(keyText)
	} else {
		key, err = tree.ReadKey(cfg.AuditDir())
	}
	if err != nil {
		return nil, err
	}
	var outside iter.Seq2[*tree.Checkpoint, error]
	if anchors != "" {
		f, err := os.Open(anchors)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		outside = tree.Checkpoints(f, key)
	}
	if export == "" {
		return tree.VerifyLog(cmd.Context(), cfg.AuditDir(), key, outside)
	}
	from := cmd.InOrStdin()
	if export != "-" {
		f, err := os.Open(export)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		from = f
	}
	logDir := "" // whose tree knows the export's records, if it is this log's
	if cfg != nil && keyText == "" {
		logDir = cfg.AuditDir()
	}
	r, err := tree.VerifyExport(cmd.Context(), from, key, first, outside, logDir)
	if err == nil && r.Records == 0 {
		err = errors.New("the export has no record: it takes one a line, as it is or as a SIEM exports it in JSON")
	}
	return r, err
}

func newProve(g *cli.Globals) *cobra.Command {
	c := &cobra.Command{
		Use:     "prove ID",
		Short:   "Print the proof, in JSON, that the log has a record",
		Long:    "Print the proof that the log has a record, which anybody can check: see docs/operate/audit-proof.md. ID is the record's, or its number.",
		Example: "  sallyport audit prove 019a1f2e-7c1b-7d64-9a51-6f0d6f4c2a11 > proof.json",
		Args:    cli.Exactly("ID"),
	}
	return g.Reads(c, func(cmd *cobra.Command, cfg *config.Config, args []string) error {
		number, err := strconv.ParseUint(args[0], 10, 63)
		if err != nil {
			e, err := auditlog.Lookup(cmd.Context(), cfg.AuditDir(), args[0])
			if err != nil {
				return err
			}
			if e == nil {
				return fmt.Errorf("the log has no record with the id %.64q", args[0])
			}
			number = e.Metadata.Sequence
		}
		p, err := tree.Prove(cmd.Context(), cfg.AuditDir(), number)
		if err != nil {
			return err
		}
		return terminal.JSON(cmd.OutOrStdout()).Encode(p)
	})
}

func newKey(g *cli.Globals) *cobra.Command {
	c := &cobra.Command{Use: "key", Short: "Print the public key that checkpoints of the log are checked with", Args: cli.Exactly()}
	return g.Reads(c, func(cmd *cobra.Command, cfg *config.Config, _ []string) error {
		key, err := tree.ReadKey(cfg.AuditDir())
		if err != nil {
			return err
		}
		return g.Print(cmd, map[string]string{"log": key.Log(), "key": key.String()}, func(w io.Writer) { fmt.Fprintln(w, key) })
	})
}
