package policycmd

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/aymanbagabas/go-udiff"
	"github.com/spf13/cobra"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/cmd/sallyport/cli"
	"sallyport/internal/config"
	"sallyport/internal/recorded"
	"sallyport/internal/terminal"
	"sallyport/policy"
	"sallyport/policy/engine"
	"sallyport/policy/learn"
)

func newLearn(g *cli.Globals) *cobra.Command {
	x := learner{replayer: replayer{Globals: g, timeout: time.Second}}
	c := &cobra.Command{
		Use:   "learn",
		Short: "Propose the rules that the policy lacks for what was carried, as in observe mode",
		Long: "Learn turns the record of a run into the rules that the policy of --config lacks to carry it without\n" +
			"observe mode, writes the configuration with them, or with --diff what they change of it, and replays the\n" +
			"run by it. Nothing is put into force. It proposes no credential, no private address, and nothing that a\n" +
			"rule denies: those are listed for you to decide about.",
		Example: "  sallyport policy learn --sandbox demo --since 1h --diff\n" +
			"  sallyport policy learn --sandbox demo > candidate.yaml && sallyport policy replay --config candidate.yaml",
		Args: cli.Exactly(),
	}
	x.recording.flags(c)
	c.Flags().BoolVar(&x.diff, "diff", false, "show what is added to the configuration")
	c.Flags().BoolVar(&x.options.Everyone, "everyone", false, "propose rules for every sandbox rather than for those that were seen")
	return g.Reads(c, func(cmd *cobra.Command, cfg *config.Config, _ []string) error { return x.run(cmd, cfg) })
}

type learner struct {
	replayer
	diff    bool
	options learn.Options
}

// lesson is what learn prints as JSON.
type lesson struct {
	learn.Report
	Document string `json:"document"` // the configuration with the proposals
	Diff     string `json:"diff"`
	// NewlyDenied is how many of the run the amended policy denies, but for what is
	// flagged.
	NewlyDenied int `json:"newly_denied"`
}

// maxRefused bounds the decisions that are remembered for their upstream's address.
const maxRefused = 1 << 20

func (x *learner) run(cmd *cobra.Command, cfg *config.Config) error {
	q, err := x.query(cfg)
	if err != nil {
		return err
	}
	p, err := engine.Compile(cmd.Context(), cfg.Document, engine.Options{Timeout: x.timeout})
	if err != nil {
		return err
	}
	refused, err := x.refused(cmd, q)
	if err != nil {
		return err
	}
	x.options.Refused = func(id string) bool { return refused[id] }
	var l lesson
	if l.Report, err = learn.Propose(cmd.Context(), p, cli.Undamaged(cmd, recorded.Read(cmd.Context(), x.dir, q)), x.options); err != nil {
		return err
	}
	name, text := "sallyport.yaml", ""
	if path := x.Location.Path(); path != "" {
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, text = path, string(data)
		besides(path, l.Proposals)
	}
	if l.Document, err = learn.Amend(text, l.Proposals); err != nil {
		return err
	}
	l.Diff = udiff.Unified(name, name+" (proposed)", text, l.Document)
	if l.NewlyDenied, err = x.verify(cmd, name, l, cfg, q); err != nil {
		return err
	}
	x.report(cmd.ErrOrStderr(), l)
	return x.Print(cmd, l, func(w io.Writer) {
		if x.diff {
			fmt.Fprint(w, l.Diff)
			return
		}
		fmt.Fprint(w, l.Document)
	})
}

// besides writes the files of proposals that lie below the configuration's folder as
// that writes them.
func besides(path string, list []learn.Proposal) {
	dir, err := filepath.Abs(filepath.Dir(path))
	if err != nil {
		return
	}
	for i := range list {
		u := list[i].Rule.Upstream
		if u == nil {
			continue
		}
		written := *u
		written.Roots, written.ProxyRoots = near(dir, u.Roots), near(dir, u.ProxyRoots)
		list[i].Rule.Upstream = &written
	}
}

// refused lists the decisions whose upstream's address was refused.
func (x *learner) refused(cmd *cobra.Command, q auditlog.Query) (map[string]bool, error) {
	q.Kind, q.Denied = audit.KindCompletion, true
	ids := map[string]bool{}
	// Damage is reported as the decisions are read.
	for e, err := range auditlog.Undamaged(auditlog.Read(cmd.Context(), x.dir, q)) {
		if err != nil {
			return nil, err
		}
		if len(ids) < maxRefused {
			ids[e.Metadata.CorrelationUID] = true
		}
	}
	return ids, nil
}

// verify reads the amended configuration as it would be loaded, decides the run by
// it, and returns how many decisions it denies that are not flagged.
func (x *learner) verify(cmd *cobra.Command, name string, l lesson, before *config.Config, q auditlog.Query) (int, error) {
	cfg, err := config.Parse(name, []byte(l.Document))
	if err != nil {
		return 0, fmt.Errorf("the proposal cannot be used: %w", err)
	}
	if n := len(before.Egress); len(cfg.Egress) != n+len(l.Proposals) || len(cfg.EgressAuth) != len(before.EgressAuth) ||
		!slices.EqualFunc(cfg.Egress[n:], l.Proposals, func(r policy.EgressRule, p learn.Proposal) bool { return r.Name == p.Rule.Name }) {
		return 0, errors.New("the proposal would change more of the configuration than its rules: write the list egress as a block")
	}
	p, err := engine.Compile(cmd.Context(), cfg.Document, engine.Options{Timeout: x.timeout})
	if err != nil {
		return 0, fmt.Errorf("the proposal cannot be used: %w", err)
	}
	// The proposal still denies what there would be to learn once more.
	again, err := learn.Propose(cmd.Context(), p, auditlog.Undamaged(recorded.Read(cmd.Context(), x.dir, q)), x.options)
	return again.Covered, err
}

// report says what there is to know about a proposal.
func (x *learner) report(w io.Writer, l lesson) {
	fmt.Fprintf(w, "sallyport: of %s carried the policy allows %d; %s proposed, for %d\n",
		cli.Many(l.Decisions, "decision that was", "decisions that were"), l.Allowed, cli.Many(len(l.Proposals), "rule", "rules"), l.Covered)
	for _, f := range l.Flags {
		fmt.Fprintf(w, "sallyport: not proposed: %d to %s: %s, as %s\n", f.Requests, terminal.Word(f.Destination), f.Why, terminal.Escape(strings.Join(f.Examples, " ")))
	}
	if l.NewlyDenied > 0 {
		fmt.Fprintf(w, "sallyport: warning: the proposal would deny %d decisions of the run: see policy replay\n", l.NewlyDenied)
	}
}
