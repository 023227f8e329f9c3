package rego

import (
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"

	"sallyport/policy/finding"
	"sallyport/policy/library"
)

var libraryRoot = ast.MustParseRef("data.sallyport.library")

// AddLibrary adds to modules those packages of the library that some module
// refers to: what nobody imports costs nothing.
func AddLibrary(modules map[string]*ast.Module) error {
	names, err := referred(modules)
	if err != nil {
		return err
	}
	for _, name := range names {
		file := LibraryFile(name)
		text, err := library.Files.ReadFile(name + ".rego")
		if err != nil {
			return err
		}
		m, err := ast.ParseModuleWithOpts(file, string(text), ast.ParserOptions{RegoVersion: ast.RegoV1, ProcessAnnotation: true})
		if err != nil {
			return Errors(err)
		}
		modules[file] = m
	}
	return nil
}

// LibrarySources is the text of the packages that modules refer to, in the order
// of their names: a revision covers them.
func LibrarySources(modules map[string]*ast.Module) []namedSource {
	names, _ := referred(modules) // what is wrong with them, Compile says
	var sources []namedSource
	for _, name := range names {
		text, err := library.Files.ReadFile(name + ".rego")
		if err != nil {
			panic(err) // embedded, and known
		}
		sources = append(sources, namedSource{LibraryFile(name), text})
	}
	return sources
}

func LibraryFile(name string) string { return "library/" + name + ".rego" }

// LibraryNames lists the packages that there are.
func LibraryNames() []string {
	files, err := fs.Glob(library.Files, "*.rego")
	if err != nil {
		panic(err) // the pattern is well formed
	}
	var names []string
	for _, file := range files {
		if name := strings.TrimSuffix(path.Base(file), ".rego"); !strings.HasSuffix(name, "_test") {
			names = append(names, name)
		}
	}
	return names
}

// referred lists the packages of the library that modules refer to. One that
// there is not, or that is known only while it is evaluated, is a [Finding].
func referred(modules map[string]*ast.Module) ([]string, error) {
	known := LibraryNames()
	found := map[string]bool{}
	var err error
	visitor := ast.NewGenericVisitor(func(x any) bool {
		ref, ok := x.(ast.Ref)
		if !ok || !ref.HasPrefix(libraryRoot) {
			return false
		}
		var name string
		if len(ref) > len(libraryRoot) {
			if s, ok := ref[len(libraryRoot)].Value.(ast.String); ok {
				name = string(s)
			}
		}
		if slices.Contains(known, name) {
			found[name] = true
		} else if err == nil {
			err = finding.Finding{
				Kind:     finding.RegoType,
				Position: Position(ref[0].Location),
				Message:  fmt.Sprintf("%v is no package of the library", ref),
				Fix:      "import one of data.sallyport.library." + strings.Join(known, ", ."),
			}
		}
		return false
	})
	for _, file := range slices.Sorted(maps.Keys(modules)) {
		visitor.Walk(modules[file])
	}
	return slices.Sorted(maps.Keys(found)), err
}
