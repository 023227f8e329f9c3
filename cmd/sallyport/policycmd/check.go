package policycmd

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"sallyport/cmd/sallyport/cli"
	"sallyport/internal/config"
	"sallyport/internal/sarif"
	"sallyport/internal/terminal"
	"sallyport/policy/finding"
)

// newCheck needs no daemon: what is checked is files.
func newCheck(g *cli.Globals) *cobra.Command {
	var failOn string
	c := &cobra.Command{
		Use:   "check [FILE|FOLDER ...]",
		Short: "Check the configuration and the policy; nothing is changed",
		Long: "Checks a sallyport.yaml, named here or with --config, and the Rego that it names; where\n" +
			".rego files or folders of them are named, those in its place, or by themselves.\n" +
			"Every finding has an id, which docs/policy/check.md explains. -o sarif is SARIF 2.1.0.\n\n" +
			"Exits with 0 when there is nothing as severe as --fail-on, with 1 when there is, and\n" +
			"with 2 when nothing was checked.",
		Example: "  sallyport policy check sallyport.yaml\n  sallyport policy check --fail-on warning -o sarif policy.d > findings.sarif",
		Args:    cobra.ArbitraryArgs,
	}
	c.Flags().StringVar(&failOn, "fail-on", "error", "error, warning or note: the least that is taken for failure")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		var least finding.Severity
		if err := least.UnmarshalText([]byte(failOn)); err != nil {
			return cli.Usagef("--fail-on: %w", err)
		}
		if g.Output != "text" && g.Output != "json" && g.Output != "sarif" {
			return cli.Usagef("--output %q: use text, json or sarif", g.Output)
		}
		path, rego, err := checked(g, args)
		if err != nil {
			return err
		}
		findings := append([]finding.Finding{}, config.Check(cmd.Context(), path, rego...)...) // none is [], not null
		if err := report(g, cmd, findings); err != nil {
			return err
		}
		for _, f := range findings {
			if slices.Index(severities, f.Severity) <= slices.Index(severities, least) {
				if f.Severity == finding.Error {
					return errors.New("the configuration cannot be used; see above")
				}
				return errors.New("there are findings; see above")
			}
		}
		return nil
	}
	return c
}

// checked sorts what is named into the one configuration and Rego. Rego that is
// named without a configuration is checked by itself.
func checked(g *cli.Globals, args []string) (path string, rego []string, err error) {
	path = g.Location.File
	named := func(file string) error {
		if path != "" {
			return cli.Usagef("%s and %s: check one configuration at a time", path, file)
		}
		path = file
		return nil
	}
	for _, arg := range args {
		switch ext := filepath.Ext(arg); {
		case ext == ".yaml" || ext == ".yml":
			err = named(arg)
		case holds(arg, "sallyport.yaml"):
			err = named(filepath.Join(arg, "sallyport.yaml"))
		default:
			rego = append(rego, arg)
		}
		if err != nil {
			return "", nil, err
		}
	}
	if path == "" && len(rego) == 0 {
		if path = g.Location.Path(); path == "" {
			return "", nil, cli.Usagef("there is no configuration to check: name one, or a folder of Rego")
		}
	}
	return path, rego, nil
}

func holds(folder, file string) bool {
	info, err := os.Stat(filepath.Join(folder, file))
	return err == nil && info.Mode().IsRegular()
}

// report prints findings as the user asked.
func report(g *cli.Globals, cmd *cobra.Command, findings []finding.Finding) error {
	if g.Output == "sarif" {
		dir, err := os.Getwd()
		if err != nil {
			return err
		}
		e := terminal.JSON(cmd.OutOrStdout())
		e.SetIndent("", "  ")
		return e.Encode(sarif.New(findings, cmd.Root().Version, dir))
	}
	return g.Print(cmd, findings, func(w io.Writer) {
		for _, f := range findings {
			fmt.Fprintln(w, f.Error())
		}
		if len(findings) == 0 {
			fmt.Fprintln(w, "no findings")
		}
	})
}

// severities begin with the one that is most severe.
var severities = []finding.Severity{finding.Error, finding.Warning, finding.Note}
