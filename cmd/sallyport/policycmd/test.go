package policycmd

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"sallyport/cmd/sallyport/cli"
	"sallyport/internal/config"
	"sallyport/policy/regotest"
)

// newTest needs no daemon: what is tested is files.
func newTest(g *cli.Globals) *cobra.Command {
	var o regotest.Options
	var threshold float64
	c := &cobra.Command{
		Use:   "test [FOLDER ...]",
		Short: "Run the tests of the policy's Rego; nothing is changed",
		Long: "Runs the tests in the _test.rego files of the policy's folder, or of the folders named here in\n" +
			"its place, under the configuration's own rules. docs/policy/test.md says what tests can ask for.\n\n" +
			"Exits with 0 when all pass, with 1 when one fails or too little is covered, and with 2 when\n" +
			"nothing was run.",
		Example: "  sallyport policy test --config sallyport.yaml --threshold 90\n  sallyport policy test --run uploads --verbose policy.d",
		Args:    cobra.ArbitraryArgs,
	}
	f := c.Flags()
	f.StringVar(&o.Run, "run", "", "run only the tests whose full name this regular expression matches")
	f.BoolVar(&o.Coverage, "coverage", false, "say which lines of the policy's Rego no test came to")
	f.Float64Var(&threshold, "threshold", 0, "fail when less than this many percent of the lines are covered; implies --coverage")
	f.BoolVarP(&o.Trace, "verbose", "v", false, "list every test, and trace the whole evaluation of those that fail")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if threshold < 0 || threshold > 100 {
			return cli.Usagef("--threshold %v: use a percentage, from 0 to 100", threshold)
		}
		if threshold > 0 {
			o.Coverage = true
		}
		cfg, err := g.Config()
		if err != nil {
			return cli.Usagef("%w", err)
		}
		doc := cfg.Document
		if b := doc.Policy.Bundle; b != nil && b.File != "" {
			if doc.Policy.Verified, err = config.ReadBundle(*b); err != nil {
				return cli.Usagef("%w", err)
			}
		} else if b != nil {
			fmt.Fprintln(cmd.ErrOrStderr(), "note: what the bundle's server has is not in this: name a copy of it as policy.bundle.file")
		}
		switch {
		case len(args) > 0:
			o.Dirs = args
		case doc.Policy.Dir == "" && doc.Policy.Verified != nil:
		case doc.Policy.Dir == "":
			return cli.Usagef("there is nothing to test: the configuration has no policy.dir, and no folder is named")
		default:
			dir, _ := os.Getwd() // or it is named as it is
			o.Dirs = []string{near(dir, doc.Policy.Dir)}
		}
		report, err := regotest.Run(cmd.Context(), doc, o)
		if err != nil {
			return cli.Usagef("%w", err)
		}
		if err := g.Print(cmd, report, func(w io.Writer) { tested(w, report, o.Trace) }); err != nil {
			return err
		}
		switch covered := report.Coverage; {
		case report.Failed > 0:
			return errors.New("there are tests that fail; see above")
		case report.Passed == 0:
			return cli.Usagef("no test was run")
		case covered != nil && covered.Percent < threshold:
			return fmt.Errorf("%.1f%% of the lines are covered, less than %v%%", covered.Percent, threshold)
		}
		return nil
	}
	return c
}

// near is a path from a folder, where it lies below that.
func near(dir, path string) string {
	if rel, err := filepath.Rel(dir, path); err == nil && filepath.IsLocal(rel) {
		return rel
	}
	return path
}

// tested writes a report as a person reads it.
func tested(w io.Writer, report regotest.Report, verbose bool) {
	for _, r := range report.Results {
		if r.Outcome == regotest.Passed && !verbose && r.Printed == "" {
			continue
		}
		fmt.Fprintf(w, "%s: %s: %s\n", r.Position, r.Name, strings.ToUpper(string(r.Outcome)))
		for _, name := range r.Cases {
			fmt.Fprintf(w, "  case %s\n", name)
		}
		if r.Error != "" {
			indent(w, "  ", r.Error)
		}
		if r.Printed != "" {
			fmt.Fprintln(w, "  printed:")
			indent(w, "    ", r.Printed)
		}
		if r.Failure != nil {
			failure(w, r.Failure)
		}
	}
	if c := report.Coverage; c != nil {
		for _, f := range c.Files {
			fmt.Fprintf(w, "%s: %.1f%% covered%s\n", f.File, f.Percent, lines(f.Missed))
		}
		fmt.Fprintf(w, "coverage: %.1f%%, %d of %d lines\n", c.Percent, c.Covered, c.Covered+c.Missed)
	}
	fmt.Fprintf(w, "%d passed, %d failed", report.Passed, report.Failed)
	if report.Skipped > 0 {
		fmt.Fprintf(w, ", %d skipped", report.Skipped)
	}
	fmt.Fprintln(w)
}

// maxLocal bounds what is shown of a variable, in bytes; -o json has it all.
const maxLocal = 200

func failure(w io.Writer, f *regotest.Failure) {
	fmt.Fprintf(w, "  failed at %s:\n", f.Position)
	indent(w, "    ", f.Expression)
	for _, name := range slices.Sorted(maps.Keys(f.Locals)) {
		if reflect.DeepEqual(f.Locals[name], f.Input) {
			continue // it follows
		}
		text, err := json.Marshal(f.Locals[name])
		if err != nil {
			continue
		}
		if len(text) > maxLocal {
			text = append([]byte(strings.ToValidUTF8(string(text[:maxLocal]), "")), "…"...)
		}
		fmt.Fprintf(w, "  %s := %s\n", name, text)
	}
	if f.Input != nil {
		fmt.Fprintln(w, "  input:")
		text, err := json.MarshalIndent(f.Input, "", "  ")
		if err == nil {
			indent(w, "    ", string(text))
		}
	}
	if f.Trace != nil {
		fmt.Fprintln(w, "  trace:")
		indent(w, "    ", strings.Join(f.Trace, "\n"))
	}
}

func indent(w io.Writer, by, text string) {
	for line := range strings.Lines(text) {
		fmt.Fprint(w, by, strings.TrimRight(line, " \n"), "\n")
	}
}

// lines writes line numbers, runs of them as one.
func lines(missed []int) string {
	var parts []string
	for i := 0; i < len(missed); i++ {
		first := missed[i]
		for i+1 < len(missed) && missed[i+1] == missed[i]+1 {
			i++
		}
		if missed[i] > first {
			parts = append(parts, fmt.Sprintf("%d-%d", first, missed[i]))
		} else {
			parts = append(parts, fmt.Sprint(first))
		}
	}
	if parts == nil {
		return ""
	}
	return ", not line " + strings.Join(parts, ", ")
}
