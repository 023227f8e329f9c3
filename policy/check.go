package policy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// Check lists everything that is wrong with, or worth knowing about, a document
// and a team's Rego, in the order of their files. Unlike [Compile] it goes on
// after an error. Where files and folders of Rego are named, they are read in
// place of the document's own; a folder is read as [Source].Dir is.
//
// No finding that is an error means that Compile will take it.
func Check(ctx context.Context, doc Document, rego ...string) []Finding {
	rules, findings := resolve(doc)
	findings = append(findings, notes(doc, rules)...)
	t, err := loadTeam("")
	if len(rego) == 0 {
		if read, failed := loadTeam(doc.Policy.Dir); read != nil {
			t, err = read, failed
		} else {
			err = failed
		}
	}
	for _, path := range rego {
		err = errors.Join(err, t.read(path))
	}
	broken := false
	for _, f := range Findings(err) {
		if f.Path == "policy.dir" && len(rego) == 0 {
			f.Position = doc.position(f.Path)
		}
		broken = broken || f.Kind == RegoSyntax || f.Kind == BadData
		findings = append(findings, f)
	}
	if slices.ContainsFunc(findings, func(f Finding) bool { return f.Severity == Error && f.Kind < RegoSyntax }) {
		rules = nil // they are of no use
	} else {
		findings = append(findings, lintTeam(t, rules)...)
	}
	if !broken {
		// What a file lacks that cannot be read would be an error in another.
		findings = append(findings, compileTeam(ctx, t)...)
	}
	return Tidy(findings)
}

// read adds a folder, or one file of Rego or data.
func (t *team) read(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return Unreadable.found(Position{File: path}, "", fmt.Sprintf("cannot be read: %v", err), "write the path of a folder or of a .rego file")
	}
	if info.IsDir() {
		return t.load(path)
	}
	text, err := os.ReadFile(path)
	switch {
	case err != nil:
		return Unreadable.found(Position{File: path}, "", fmt.Sprintf("cannot be read: %v", err), "write the path of a folder or of a .rego file")
	case filepath.Ext(path) == ".rego":
		return t.addModule(path, text)
	default:
		return t.addData(path, filepath.Base(path), text)
	}
}

// compileTeam gives the compiler's errors. The rules of the document are data:
// they make no difference to it.
func compileTeam(ctx context.Context, t *team) []Finding {
	if len(t.modules) == 0 {
		return nil
	}
	p := &Policy{table: newTable(nil), rules: map[string]*rule{}, selectors: newSelectors(nil)}
	own, err := ownModules()
	if err == nil {
		err = p.prepare(ctx, own, t)
	}
	found := Findings(err)
	// A circle goes through Sallyport's own rules too, where nothing can be mended.
	inTeam := slices.DeleteFunc(slices.Clone(found), func(f Finding) bool { return t.modules[f.Position.File] == nil })
	if len(inTeam) > 0 {
		return inTeam
	}
	return found
}

// notes are about rules that do what they say, and less than somebody may think.
func notes(doc Document, rules []rule) []Finding {
	var findings []Finding
	for _, r := range rules {
		if r.kind != typeEgress {
			continue
		}
		if r.action == Tunnel {
			findings = append(findings, Tunnelled.found(doc.position(r.at), r.at, "passes unread: no method, path or credential is decided inside, and no answer searched",
				"write action: allow if it is HTTP and its client trusts Sallyport's authority"))
		}
		if r.action == Allow && slices.Contains(r.protocols, ProtocolHTTP) {
			findings = append(findings, Clear.found(doc.position(r.at+".plain"), r.at, "also allows requests without TLS, which anybody on the way reads and changes",
				"leave plain out where the destination speaks TLS"))
		}
	}
	return findings
}

// Tidy sorts findings by where they are, and leaves out what is said twice.
func Tidy(findings []Finding) []Finding {
	slices.SortStableFunc(findings, func(a, b Finding) int {
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
		mistyped[f.Path] = mistyped[f.Path] || f.Kind == WrongType
	}
	return slices.DeleteFunc(slices.Compact(findings), func(f Finding) bool {
		return f.Path != "" && mistyped[f.Path] && f.Kind != WrongType // of what it is taken for instead
	})
}
