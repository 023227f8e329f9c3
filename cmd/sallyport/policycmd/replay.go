package policycmd

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sallyport/audit/auditlog"
	"sallyport/cmd/sallyport/cli"
	"sallyport/internal/config"
	"sallyport/internal/recorded"
	"sallyport/internal/terminal"
	"sallyport/policy"
	"sallyport/policy/engine"
	"sallyport/policy/replay"
)

// recording says which recorded decisions a command is about.
type recording struct {
	dir, since, sandbox string
}

func (r *recording) flags(c *cobra.Command) {
	c.Flags().StringVar(&r.dir, "audit", "", "folder of the log (default the configuration's)")
	c.Flags().StringVar(&r.since, "since", "", "decisions not older than this: 90s, 24h, or a time as 2026-12-01T00:00:00Z")
	c.Flags().StringVar(&r.sandbox, "sandbox", "", "decisions of this sandbox only")
}

// query checks the flags.
func (r *recording) query(cfg *config.Config) (auditlog.Query, error) {
	q := auditlog.Query{Sandbox: r.sandbox}
	r.dir = cmp.Or(r.dir, cfg.AuditDir())
	var err error
	if q.Since, err = cli.TimeFlag("since", r.since); err != nil {
		return q, err
	}
	if _, err := os.Stat(r.dir); errors.Is(err, fs.ErrNotExist) {
		return q, fmt.Errorf("there is no log in %s: name its folder with --audit", r.dir)
	}
	return q, nil
}

func newReplay(g *cli.Globals) *cobra.Command {
	x := replayer{Globals: g}
	c := &cobra.Command{
		Use:   "replay",
		Short: "Decide recorded traffic again by the configuration's policy, and say what would change",
		Long: "Replay decides recorded traffic again by the policy of --config, which need not be in force, as if\n" +
			"observe mode were over. It exits with 0 when nothing changes that --fail-on names, with 1 when\n" +
			"something does, and with 2 when that could not be found out. Decisions that cannot be made again\n" +
			"are counted, and change no exit status; with --fail-on body those do whose rule has to see a body,\n" +
			"which the audit never has.",
		Example: "  sallyport policy replay --config candidate.yaml --since 24h\n" +
			"  sallyport policy replay --config candidate.yaml --audit ./audit --fail-on denied,approval -o json",
		Args: cli.Exactly(),
	}
	x.recording.flags(c)
	c.Flags().StringSliceVar(&x.failOn, "fail-on", nil, "changes to exit with 1 for, with a comma between: "+strings.Join(changeNames(), ", ")+", body for what cannot be decided without one, or none (default: all changes)")
	c.Flags().DurationVar(&x.timeout, "timeout", time.Second, "for one decision; a busy machine should not look like a policy that denies")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		fails, err := x.run(cmd)
		switch {
		case err != nil:
			return cli.Usagef("%w", err)
		case fails:
			return cli.ExitCode(1)
		}
		return nil
	}
	return c
}

type replayer struct {
	*cli.Globals
	recording
	failOn  []string
	timeout time.Duration
}

// failBody is what --fail-on names that is no change.
const failBody = "body"

func changeNames() (names []string) {
	for _, c := range replay.Changes {
		names = append(names, string(c))
	}
	return names
}

// run says whether something changes that it is to fail for.
func (x *replayer) run(cmd *cobra.Command) (fails bool, err error) {
	for _, name := range x.failOn {
		if name != "none" && name != failBody && !slices.Contains(changeNames(), name) {
			return false, cli.Usagef("--fail-on %q: use %s, body, or none", name, strings.Join(changeNames(), ", "))
		}
	}
	cfg, err := x.Config()
	if err != nil {
		return false, err
	}
	q, err := x.query(cfg)
	if err != nil {
		return false, err
	}
	r, err := x.replay(cmd, cfg.Document, q)
	if err != nil {
		return false, err
	}
	fails = r.Unfit[policy.UnfitBody] > 0 && slices.Contains(x.failOn, failBody)
	for c, n := range r.ByChange {
		fails = fails || n > 0 && (len(x.failOn) == 0 || slices.Contains(x.failOn, string(c)))
	}
	return fails, x.Print(cmd, r, func(w io.Writer) { printReplay(w, r) })
}

// replayed is what replay keeps answers for: as many inputs as differ in what a
// policy looks at.
const replayed = 1 << 17

// replay decides what a query selects by a document.
func (x *replayer) replay(cmd *cobra.Command, doc policy.Document, q auditlog.Query) (replay.Report, error) {
	doc.Policy.Cache = new(replayed) // it changes no answer, and no revision
	p, err := engine.Compile(cmd.Context(), doc, engine.Options{Timeout: x.timeout})
	if err != nil {
		return replay.Report{}, err
	}
	return replay.Run(cmd.Context(), p, cli.Undamaged(cmd, recorded.Read(cmd.Context(), x.dir, q)))
}

// changed says what has become of decisions.
var changeTexts = map[replay.Change]string{
	replay.NewlyAllowed:  "newly allowed",
	replay.NewlyDenied:   "newly denied",
	replay.NewlyAsked:    "a person would be asked",
	replay.NewlyInjected: "newly injected",
	replay.NotInjected:   "no longer injected",
	replay.OtherRule:     "the same by another rule",
}

// printReplay writes a replay as a person reads it.
func printReplay(w io.Writer, r replay.Report) {
	fmt.Fprint(w, cli.Many(r.Decisions, "decision", "decisions"))
	if r.Decisions > 0 {
		fmt.Fprintf(w, " from %s to %s", r.First.Format(time.RFC3339), r.Last.Format(time.RFC3339))
	}
	fmt.Fprintf(w, ", by policy %.12s:\n", r.Revision)
	fmt.Fprintf(w, "%9d the same\n", r.Same)
	for _, c := range replay.Changes {
		if n := r.ByChange[c]; n > 0 {
			fmt.Fprintf(w, "%9d %s\n", n, changeTexts[c])
		}
	}
	if r.Undecided > 0 {
		fmt.Fprintf(w, "%9d of them are denied because the policy comes to no answer\n", r.Undecided)
	}
	for _, u := range []policy.Unfit{policy.UnfitFloor, policy.UnfitLimit, policy.UnfitFolded, policy.UnfitClipped, policy.UnfitBody, policy.UnfitIncomplete} {
		if n := r.Unfit[u]; n > 0 {
			fmt.Fprintf(w, "%9d not decided again: %s\n", n, unfitReasons[u])
		}
		if u != policy.UnfitBody {
			continue
		}
		for _, s := range r.Unseen {
			fmt.Fprintf(w, "%19d by %s (%s), e.g. %s\n", s.Count, terminal.Word(s.Rule), s.RuleType, terminal.Escape(strings.Join(s.Examples, " ")))
		}
	}
	for _, g := range r.Groups {
		var what []string
		for _, c := range g.Changes {
			what = append(what, changeTexts[c])
		}
		fmt.Fprintf(w, "\n%s: %d × %s\n", strings.Join(what, ", "), g.Count, subjectOf(g))
		fmt.Fprintf(w, "  was  %s\n  is   %s: %s\n", verdict(g.Was), verdict(g.Is), terminal.Escape(g.Reason))
		fmt.Fprintf(w, "  e.g. %s\n", terminal.Escape(strings.Join(g.Examples, " ")))
	}
	if r.Ungrouped > 0 {
		fmt.Fprintf(w, "\nand %d more that change, of too many kinds to list\n", r.Ungrouped)
	}
}

func subjectOf(g replay.Group) string {
	to := terminal.Word(g.Destination)
	switch g.Phase {
	case policy.PhaseDNS:
		return "the name " + to
	case policy.PhaseConnect:
		return "a connection (" + terminal.Word(string(g.Protocol)) + ") to " + to
	}
	return terminal.Word(g.Method) + " " + to + terminal.Word(g.Path)
}

func verdict(v replay.Verdict) string {
	s := string(v.Action)
	if v.Rule != "" {
		s += " by " + terminal.Word(v.Rule)
	}
	if len(v.Credentials) > 0 {
		s += " with " + terminal.Escape(strings.Join(v.Credentials, ", "))
	}
	return s
}
