package policy

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/format"
)

// ExportTests writes what [Test] adds to a team's own files into a folder, so that
// OPA's own tools see the same: `opa test FOLDER DIR`. The folder is made; what it
// holds of an earlier export is replaced.
func ExportTests(ctx context.Context, doc Document, o TestOptions, folder string) error {
	b, err := newBench(ctx, doc, o.Dirs)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(folder, 0o777); err != nil {
		return err
	}
	for name := range b.modules {
		if b.team.modules[name] != nil || b.team.tests[name] != nil || name == gatheredFile {
			continue
		}
		read := sources.ReadFile
		if strings.HasPrefix(name, "library/") {
			read = libraries.ReadFile
		}
		text, err := read(name)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(folder, filepath.Base(name)), text, 0o666); err != nil {
			return err
		}
	}
	// Not as data: JSON has no sets, and no keys but strings.
	sallyport := b.data.Get(ast.StringTerm("sallyport")).Value.(ast.Object)
	document := "package sallyport"
	for _, name := range []string{"index", "selectors"} {
		// Which may be empty: the type checker is to know nothing of what is in it.
		document += fmt.Sprintf("\n\n%s := object.get({}, \"\", %v)", name, sallyport.Get(ast.StringTerm(name)))
	}
	lacking := "package sallyport.contributed"
	for _, set := range sallyport.Get(ast.StringTerm("contributed")).Value.(ast.Object).Keys() {
		lacking += fmt.Sprintf("\n\n%s contains it if some it in object.get({}, \"\", [])", string(set.Value.(ast.String)))
	}
	texts := map[string]string{"document.rego": document, "lacking.rego": lacking}
	if b.modules[gatheredFile] != nil {
		texts[gatheredFile] = b.team.gather()
	}
	for name, text := range texts {
		formatted, err := format.SourceWithOpts(name, []byte(text+"\n"), format.Opts{RegoVersion: ast.RegoV1})
		if err != nil {
			return fmt.Errorf("writing the document: %w", err)
		}
		if err := os.WriteFile(filepath.Join(folder, name), formatted, 0o666); err != nil {
			return err
		}
	}
	return nil
}
