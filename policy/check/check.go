// Package check lists the findings of `sallyport policy check`: those of the document, of
// the compiler of Rego, and of a linter of the team's Rego.
package check

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"sallyport/policy"
	"sallyport/policy/engine"
	"sallyport/policy/finding"
	"sallyport/policy/rego"
	"sallyport/policy/rule"
	"sallyport/policy/validate"
)

// Run lists everything that is wrong with, or worth knowing about, a document
// and a team's Rego, in the order of their files. Unlike [engine.Compile] it goes on
// after an error. Where files and folders of Rego are named, they are read in
// place of the document's own; a folder is read as [Source].Dir is.
//
// No finding that is an error means that Compile will take it.
func Run(ctx context.Context, doc policy.Document, regoText ...string) []finding.Finding {
	rules, findings := validate.Rules(doc)
	findings = append(findings, notes(doc, rules)...)
	t, err := rego.Load("")
	if len(regoText) == 0 {
		if read, failed := rego.Load(doc.Policy.Dir); read != nil {
			t, err = read, failed
		} else {
			err = failed
		}
	}
	for _, path := range regoText {
		err = errors.Join(err, t.Read(path))
	}
	broken := false
	for _, f := range finding.Findings(err) {
		if f.Path == "policy.dir" && len(regoText) == 0 {
			f.Position = doc.Position(f.Path)
		}
		broken = broken || f.Kind == finding.RegoSyntax || f.Kind == finding.BadData
		findings = append(findings, f)
	}
	if slices.ContainsFunc(findings, func(f finding.Finding) bool { return f.Severity == finding.Error && f.Kind < finding.RegoSyntax }) {
		rules = nil // they are of no use
	} else {
		findings = append(findings, lintTeam(t, rules)...)
	}
	if !broken {
		// A file that cannot be read would lack what another one needs.
		findings = append(findings, compileTeam(ctx, t)...)
	}
	return Tidy(findings)
}

// compileTeam gives the compiler's errors. The rules of the document are data:
// they make no difference to it.
func compileTeam(ctx context.Context, t *rego.Team) []finding.Finding {
	if len(t.Modules) == 0 {
		return nil
	}
	found := finding.Findings(engine.CompileRego(ctx, t))
	// A circle goes through Sallyport's own rules too, where nothing can be mended.
	inTeam := slices.DeleteFunc(slices.Clone(found), func(f finding.Finding) bool { return t.Modules[f.Position.File] == nil })
	if len(inTeam) > 0 {
		return inTeam
	}
	return found
}

// notes are about rules that do what they say, and less than somebody may think.
func notes(doc policy.Document, rules []rule.Rule) []finding.Finding {
	var findings []finding.Finding
	for _, r := range rules {
		if r.Type != policy.TypeEgress {
			continue
		}
		if r.Action == policy.Tunnel {
			findings = append(findings, finding.Tunnelled.Finding(doc.Position(r.Path), r.Path, "passes unread: no method, path or credential is decided inside, and no answer searched",
				"write action: allow if it is HTTP and its client trusts Sallyport's authority"))
		}
		if r.Action == policy.Allow && slices.Contains(r.Protocols, policy.ProtocolHTTP) {
			findings = append(findings, finding.Clear.Finding(doc.Position(r.Path+".plain"), r.Path, "also allows requests without TLS, which anybody on the way reads and changes",
				"leave plain out where the destination speaks TLS"))
		}
	}
	return findings
}

// Tidy sorts findings by where they are, and leaves out what is said twice.
func Tidy(findings []finding.Finding) []finding.Finding {
	slices.SortStableFunc(findings, func(a, b finding.Finding) int {
		return cmp.Or(
			cmp.Compare(a.Position.File, b.Position.File),
			a.Position.Line-b.Position.Line,
			a.Position.Column-b.Position.Column,
			cmp.Compare(a.Kind, b.Kind),
			cmp.Compare(a.Message, b.Message),
		)
	})
	mistyped := map[string]bool{}
	for _, f := range findings {
		mistyped[f.Path] = mistyped[f.Path] || f.Kind == finding.WrongType
	}
	return slices.DeleteFunc(slices.Compact(findings), func(f finding.Finding) bool {
		return f.Path != "" && mistyped[f.Path] && f.Kind != finding.WrongType // of what it is taken for instead
	})
}
