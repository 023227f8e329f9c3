package policy

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
)

// Bench is what the tests of a policy run on: see package trial.
type Bench struct {
	Rego    map[string]*ast.Module // the team's own, by file
	Tests   map[string]*ast.Module // the team's tests, by file
	Modules map[string]*ast.Module // those and all that they need
	Data    ast.Object

	team   *team
	bundle *Bundle
}

// NewBench loads and checks what is tested as [Compile] does, and adds what only
// tests have: the builders of requests, and the document's rules. The folders are
// read in place of the document's own where some are named.
func NewBench(ctx context.Context, doc Document, dirs []string) (*Bench, error) {
	rules, findings := resolve(doc)
	if dirs == nil && doc.Policy.Dir != "" {
		dirs = []string{doc.Policy.Dir}
	}
	t, err := loadTeams(dirs)
	if b := doc.Policy.Verified; b != nil {
		err = errors.Join(err, t.addBundle(b))
	}
	if err := errors.Join(join(findings), err); err != nil {
		return nil, err
	}
	p := &Policy{table: newTable(rules), rules: map[string]*rule{}, selectors: newSelectors(rules), limits: newLimits(doc.Limits)}
	for i := range rules {
		p.rules[rules[i].name] = &rules[i]
	}
	own, err := ownModules()
	if err != nil {
		return nil, err
	}
	// Once as it is when it decides, with nothing of the tests in it.
	if err := p.prepare(ctx, maps.Clone(own), t); err != nil {
		return nil, err
	}
	b := &Bench{Rego: t.modules, Tests: t.tests, Modules: maps.Clone(own), team: t, bundle: doc.Policy.Verified}
	maps.Copy(b.Modules, t.modules)
	maps.Copy(b.Modules, t.tests)
	if len(t.sets) > 0 {
		if err := b.add(gatheredFile, []byte(t.gather())); err != nil {
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
	if err := addLibrary(b.Modules); err != nil {
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

func (b *Bench) add(name string, text []byte) error {
	m, err := ast.ParseModuleWithOpts(name, string(text), ast.ParserOptions{RegoVersion: ast.RegoV1, ProcessAnnotation: true})
	if err != nil {
		return regoErrors(err)
	}
	b.Modules[name] = m
	return nil
}

// Compiler returns a new compiler of what is tested: it takes what Sallyport takes
// when it decides. Tests may print besides.
func (b *Bench) Compiler() (*ast.Compiler, error) {
	caps := capabilities()
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
func (b *Bench) Findings(err error) error { return regoErrors(err) }

// Export writes what tests run with, all but the files of the team's folders, into a
// folder, so that OPA's own tools see the same: `opa test FOLDER DIR`. The folder is
// made; what it holds of an earlier export is replaced.
func (b *Bench) Export(folder string) error {
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

// exportBundle writes the files of the bundle. Their data is at the root of a
// folder's, whatever they are called.
func (b *Bench) exportBundle(folder string) error {
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

// loadTeams reads folders as if they were one.
func loadTeams(dirs []string) (*team, error) {
	all, err := loadTeam("")
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, dir := range dirs {
		t, err := loadTeam(dir)
		errs = append(errs, err)
		if t == nil {
			continue
		}
		maps.Copy(all.modules, t.modules)
		for name, m := range t.tests {
			all.addTest(name, m)
		}
		for _, c := range t.sets {
			all.contribute(c)
		}
		if key := merge(all.data, t.data); key != "" {
			errs = append(errs, Finding{Position: Position{File: dir}, Message: fmt.Sprintf("data.%s is set in another folder too", key), Fix: "set it in one of them"})
		}
	}
	return all, errors.Join(errs...)
}

func (t *team) addTest(file string, m *ast.Module) {
	if t.tests == nil {
		t.tests = map[string]*ast.Module{}
	}
	t.tests[file] = m
}
