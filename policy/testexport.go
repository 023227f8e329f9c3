package policy

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
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
		if b.team.modules[name] != nil || b.team.tests[name] != nil {
			continue
		}
		text := []byte(b.team.gather())
		switch {
		case strings.HasPrefix(name, "library/"):
			text, err = libraries.ReadFile(name)
		case name != "contributed.rego":
			text, err = sources.ReadFile(name)
		}
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(folder, filepath.Base(name)), text, 0o666); err != nil {
			return err
		}
	}
	sallyport := b.data.Get(ast.StringTerm("sallyport")).Value
	data, err := ast.JSON(sallyport)
	if err != nil {
		return fmt.Errorf("writing the document: %w", err)
	}
	text, err := json.MarshalIndent(map[string]any{"sallyport": data}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, "data.json"), append(text, '\n'), 0o666)
}
