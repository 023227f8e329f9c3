package main

import (
	"fmt"
	"go/ast"
	"go/doc/comment"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/goccy/go-yaml"
)

// text is what a comment says.
type text struct {
	description string
	examples    []any
}

// readComments reads the comments of the types in some packages and of their
// fields, by "package.Type" and "package.Type.Field".
func readComments(dirs ...string) (map[string]text, error) {
	all := map[string]text{}
	for _, dir := range dirs {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			source, err := os.ReadFile(file)
			if err != nil {
				return nil, err
			}
			parsed, err := parser.ParseFile(token.NewFileSet(), file, source, parser.ParseComments|parser.SkipObjectResolution)
			if err != nil {
				return nil, err
			}
			if err := collect(parsed, all); err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
		}
	}
	return all, nil
}

func collect(file *ast.File, into map[string]text) error {
	last := map[string]text{} // by the name of the field
	for _, d := range file.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.TYPE {
			continue
		}
		for _, s := range g.Specs {
			spec := s.(*ast.TypeSpec)
			doc := spec.Doc
			if doc == nil {
				doc = g.Doc
			}
			said, err := read(doc)
			if err != nil {
				return err
			}
			name := file.Name.Name + "." + spec.Name.Name
			into[name] = said
			structure, ok := spec.Type.(*ast.StructType)
			if !ok {
				continue
			}
			for _, f := range structure.Fields.List {
				doc := f.Doc
				if doc == nil {
					doc = f.Comment
				}
				for _, field := range f.Names {
					said, err := read(doc)
					if err != nil {
						return fmt.Errorf("%s.%s: %w", name, field.Name, err)
					}
					if doc == nil {
						said = last[field.Name]
					}
					last[field.Name] = said
					into[name+"."+field.Name] = said
				}
			}
		}
	}
	return nil
}

const example = "Example: "

var link = regexp.MustCompile(`\[([\w.]+)\]`)

// read takes a comment's examples out of it.
func read(group *ast.CommentGroup) (text, error) {
	if group == nil {
		return text{}, nil
	}
	var said text
	var kept []string
	for line := range strings.Lines(group.Text()) {
		source, ok := strings.CutPrefix(line, example)
		if !ok {
			kept = append(kept, line)
			continue
		}
		var v any
		if err := yaml.UnmarshalWithOptions([]byte(source), &v, yaml.UseOrderedMap()); err != nil {
			return said, fmt.Errorf("%q is not YAML: %w", strings.TrimSpace(source), err)
		}
		said.examples = append(said.examples, ordered(v))
	}
	var p comment.Parser
	said.description = strings.TrimSpace(string((&comment.Printer{TextWidth: -1}).Text(p.Parse(strings.Join(kept, "")))))
	said.description = link.ReplaceAllString(said.description, "$1")
	return said, nil
}

// ordered turns YAML's mappings into what keeps their order in JSON.
func ordered(v any) any {
	switch v := v.(type) {
	case yaml.MapSlice:
		var p pairs
		for _, item := range v {
			p = append(p, pair{fmt.Sprint(item.Key), ordered(item.Value)})
		}
		return p
	case []any:
		for i := range v {
			v[i] = ordered(v[i])
		}
	}
	return v
}
