package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/format"

	"sallyport/policy"
	"sallyport/policy/library"
	"sallyport/policy/rego"
	"sallyport/policy/rule"
	"sallyport/policy/validate"
)

// Bench is what the tests of a policy run on: see package trial.
type Testbed struct {
	Rego    map[string]*ast.Module // the team's own, by file
	Tests   map[string]*ast.Module // the team's tests, by file
	Modules map[string]*ast.Module // those and all that they need
	Data    ast.Object

	team   *rego.Team
	bundle *policy.Bundle
}

// NewBench loads and checks what is tested as [Compile] does, and adds what only
// tests have: the builders of requests, and the document's rules. The folders are
// read in place of the document's own where some are named.
func NewTestbed(ctx context.Context, doc policy.Document, dirs []string) (*Testbed, error) {
	rules, findings := validate.Rules(doc)
	if dirs == nil && doc.Policy.Dir != "" {
		dirs = []string{doc.Policy.Dir}
	}
	t, err := rego.LoadAll(dirs)
	if b := doc.Policy.Verified; b != nil {
		err = errors.Join(err, t.AddBundle(b))
	}
	if err := errors.Join(policy.JoinErrors(findings), err); err != nil {
		return nil, err
	}
	p := &Policy{table: rule.NewTable(rules), rules: map[string]*rule.Rule{}, selectors: rule.NewSelectors(rules), limits: newLimitTable(doc.Limits)}
	for i := range rules {
		p.rules[rules[i].Name] = &rules[i]
	}
	own, err := ownModules()
	if err != nil {
		return nil, err
	}
	// Once as it is when it decides, with nothing of the tests in it.
	if err := p.prepare(ctx, maps.Clone(own), t); err != nil {
		return nil, err
	}
	b := &Testbed{Rego: t.Modules, Tests: t.Tests, Modules: maps.Clone(own), team: t, bundle: doc.Policy.Verified}
	maps.Copy(b.Modules, t.Modules)
	maps.Copy(b.Modules, t.Tests)
	if len(t.Sets) > 0 {
		if err := b.add(gatheredFile, []byte(t.Gather())); err != nil {
			return nil, err
		}
	}
	for _, name := range builders {
		text, err := sources.ReadFile(name)
		if err != nil {
			return nil, err
		}
		if err := b.add(name, text); err != nil {
			return nil, err
		}
	}
	if err := rego.AddLibrary(b.Modules); err != nil {
		return nil, err
	}
	if b.Data, err = p.data(t); err != nil {
		return nil, err
	}
	root := ast.StringTerm("sallyport")
	sallyport := b.Data.Get(root).Value.(ast.Object)
	return b, documents(p).Get(root).Value.(ast.Object).Iter(func(key, value *ast.Term) error {
		sallyport.Insert(key, value)
		return nil
	})
}

// gatheredFile is the module of [team.gather].
const gatheredFile = "contributed.rego"

// builders are the files of data.sallyport.testing.
var builders = []string{"testing.rego", "builders.rego", "floor.rego"}

func (b *Testbed) add(name string, text []byte) error {
	m, err := ast.ParseModuleWithOpts(name, string(text), ast.ParserOptions{RegoVersion: ast.RegoV1, ProcessAnnotation: true})
	if err != nil {
		return rego.Errors(err)
	}
	b.Modules[name] = m
	return nil
}

// Compiler returns a new compiler of what is tested: it takes what Sallyport takes
// when it decides. Tests may print besides.
func (b *Testbed) Compiler() (*ast.Compiler, error) {
	caps := rego.Capabilities()
	for _, name := range []string{"print", "internal.print", "internal.test_case"} {
		if f := ast.BuiltinMap[name]; f != nil && !slices.ContainsFunc(caps.Builtins, func(o *ast.Builtin) bool { return o.Name == name }) {
			caps.Builtins = append(caps.Builtins, f)
		}
	}
	schemas, err := schemaSet()
	if err != nil {
		return nil, err
	}
	return ast.NewCompiler().
		WithStrict(true).
		WithCapabilities(caps).
		WithEnablePrintStatements(true).
		WithSchemas(schemas).
		WithUseTypeCheckAnnotations(true).
		SetErrorLimit(0), nil
}

// Findings turns the errors of OPA's compiler into those of ours.
func (b *Testbed) Findings(err error) error { return rego.Errors(err) }

// Export writes what tests run with, all but the files of the team's folders, into a
// folder, so that OPA's own tools see the same: `opa test FOLDER DIR`. The folder is
// made; what it holds of an earlier export is replaced.
func (b *Testbed) Export(folder string) error {
	if err := os.MkdirAll(folder, 0o777); err != nil {
		return err
	}
	if err := b.exportBundle(folder); err != nil {
		return err
	}
	for name := range b.Modules {
		if b.Rego[name] != nil || b.Tests[name] != nil || name == gatheredFile {
			continue
		}
		read := sources.ReadFile
		inLibrary := strings.TrimPrefix(name, "library/")
		if inLibrary != name {
			read = library.Files.ReadFile
		}
		text, err := read(inLibrary)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(folder, filepath.Base(name)), text, 0o666); err != nil {
			return err
		}
	}
	// Not as data: JSON has no sets, and no keys but strings.
	sallyport := b.Data.Get(ast.StringTerm("sallyport")).Value.(ast.Object)
	document := "package sallyport"
	for _, name := range []string{"index", "selectors", "places", "bodies", "limits"} {
		// Which may be empty: the type checker is to know nothing of what is in it.
		document += fmt.Sprintf("\n\n%s := object.get({}, \"\", %v)", name, sallyport.Get(ast.StringTerm(name)))
	}
	lacking := "package sallyport.contributed"
	for _, set := range sallyport.Get(ast.StringTerm("contributed")).Value.(ast.Object).Keys() {
		lacking += fmt.Sprintf("\n\n%s contains it if some it in object.get({}, \"\", [])", string(set.Value.(ast.String)))
	}
	texts := map[string]string{"document.rego": document, "lacking.rego": lacking}
	if b.Modules[gatheredFile] != nil {
		texts[gatheredFile] = b.team.Gather()
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

// exportBundle writes the files of the bundle. Their data is at the root of a
// folder's, whatever they are called.
func (b *Testbed) exportBundle(folder string) error {
	earlier, err := filepath.Glob(filepath.Join(folder, "bundle-*"))
	if err != nil {
		return err
	}
	for _, name := range append(earlier, filepath.Join(folder, gatheredFile)) {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if b.bundle == nil {
		return nil
	}
	for i, f := range b.bundle.Files {
		name := fmt.Sprintf("bundle-%d-%s", i+1, path.Base(f.Name))
		if err := os.WriteFile(filepath.Join(folder, name), f.Text, 0o666); err != nil {
			return err
		}
	}
	return nil
}
