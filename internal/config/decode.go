package config

import (
	"encoding"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"sallyport/policy"
	"sallyport/policy/finding"
)

// maxAliases bounds what aliases can make a small file expand to.
const maxAliases = 1000

// decoder fills structs from YAML. Unlike a library's decoder it goes on after
// an error, so that all of them are reported, and it remembers where each key was
// written.
type decoder struct {
	file      string
	anchors   map[string]ast.Node
	aliases   int
	positions map[string]finding.Position
	findings  []finding.Finding
}

// decode reads the one YAML document in data into the struct that into points to.
func decode(file string, data []byte, into any) (map[string]finding.Position, []finding.Finding) {
	d := &decoder{file: file, anchors: map[string]ast.Node{}, positions: map[string]finding.Position{"": {File: file}}}
	parsed, err := parser.ParseBytes(data, 0)
	if err != nil {
		f := finding.Finding{Kind: finding.NotYAML, Position: finding.Position{File: file}, Message: err.Error(), Fix: "mend the YAML: an editor with the schema marks the place"}
		var y yaml.Error
		if errors.As(err, &y) {
			f.Message = "not YAML: " + y.GetMessage()
			f.Position = d.at(y.GetToken())
		}
		return d.positions, []finding.Finding{f}
	}
	var docs []ast.Node
	for _, doc := range parsed.Docs {
		if doc.Body != nil && doc.Body.Type() != ast.CommentType {
			docs = append(docs, doc.Body)
		}
	}
	if len(docs) > 1 {
		d.fail(docs[1], finding.YAMLFeature, "", "a second YAML document would be passed over", "remove the ---")
	}
	if len(docs) > 0 {
		d.value("", docs[0], reflect.ValueOf(into).Elem())
	}
	return d.positions, d.findings
}

func (d *decoder) at(tk *token.Token) finding.Position {
	p := finding.Position{File: d.file}
	if tk != nil && tk.Position != nil {
		p.Line, p.Column = tk.Position.Line, tk.Position.Column
	}
	return p
}

func (d *decoder) fail(n ast.Node, kind finding.Kind, path, message, fix string) {
	d.findings = append(d.findings, finding.Finding{Kind: kind, Position: d.at(n.GetToken()), Path: path, Message: message, Fix: fix})
}

// value decodes n into v.
func (d *decoder) value(path string, n ast.Node, v reflect.Value) {
	n = d.plain(path, n)
	if n == nil {
		return
	}
	if _, known := d.positions[path]; !known {
		d.positions[path] = d.at(n.GetToken())
	}
	if n.Type() == ast.NullType {
		return // the default
	}
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	if _, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		d.scalar(path, n, v)
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		d.fields(path, n, v)
	case reflect.Slice:
		d.list(path, n, v)
	case reflect.Map:
		d.table(path, n, v)
	case reflect.Interface:
		d.any(path, n, v)
	default:
		d.scalar(path, n, v)
	}
}

// any decodes what may be anything that JSON can say.
func (d *decoder) any(path string, n ast.Node, v reflect.Value) {
	var t reflect.Type
	switch n.Type() {
	case ast.MappingType, ast.MappingValueType:
		t = reflect.TypeFor[map[string]any]()
	case ast.SequenceType:
		t = reflect.TypeFor[[]any]()
	case ast.BoolType:
		t = reflect.TypeFor[bool]()
	case ast.IntegerType, ast.FloatType:
		t = reflect.TypeFor[float64]()
	default:
		t = reflect.TypeFor[string]()
	}
	of := reflect.New(t).Elem()
	d.value(path, n, of)
	v.Set(of)
}

// plain takes anchors, aliases and tags off a node; nil when that fails.
func (d *decoder) plain(path string, n ast.Node) ast.Node {
	switch n := n.(type) {
	case *ast.AnchorNode:
		d.anchors[n.Name.String()] = n.Value
		return d.plain(path, n.Value)
	case *ast.AliasNode:
		name := n.Value.String()
		to, ok := d.anchors[name]
		if d.aliases++; !ok || d.aliases > maxAliases {
			d.fail(n, finding.YAMLFeature, path, fmt.Sprintf("*%s stands for nothing written above", name), "write &"+name+" before what it stands for")
			return nil
		}
		return d.plain(path, to)
	case *ast.TagNode:
		d.fail(n, finding.YAMLFeature, path, "tags have no meaning here", "remove "+n.Start.Value)
		return nil
	}
	return n
}

func (d *decoder) pairs(path string, n ast.Node) ([]*ast.MappingValueNode, bool) {
	switch n := n.(type) {
	case *ast.MappingNode:
		return n.Values, true
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{n}, true
	}
	d.fail(n, finding.WrongType, path, "must be keys and values", "write them as key: value")
	return nil, false
}

func (d *decoder) fields(path string, n ast.Node, v reflect.Value) {
	pairs, ok := d.pairs(path, n)
	if !ok {
		return
	}
	fields := map[string]reflect.Value{}
	collect(v, fields)
	for _, pair := range pairs {
		key := pair.Key.GetToken().Value
		at := join(path, key)
		if _, merge := pair.Key.(*ast.MergeKeyNode); merge {
			d.fail(pair.Key, finding.YAMLFeature, path, "merge keys are not read", "write the keys out")
			continue
		}
		field, known := fields[key]
		if !known {
			names := slices.Sorted(maps.Keys(fields))
			fix := "the keys here are " + strings.Join(names, ", ")
			if near := finding.Nearest(key, names); near != "" {
				fix = fmt.Sprintf("did you mean %q?", near)
			}
			d.fail(pair.Key, finding.UnknownKey, at, "unknown key", fix)
			continue
		}
		d.positions[at] = d.at(pair.Key.GetToken())
		d.value(at, pair.Value, field)
	}
}

// collect gathers a struct's fields by their YAML names, those of inlined structs
// included.
func collect(v reflect.Value, into map[string]reflect.Value) {
	for i := range v.NumField() {
		name, option, _ := strings.Cut(v.Type().Field(i).Tag.Get("yaml"), ",")
		switch {
		case option == "inline":
			collect(v.Field(i), into)
		case name != "" && name != "-":
			into[name] = v.Field(i)
		}
	}
}

func (d *decoder) list(path string, n ast.Node, v reflect.Value) {
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		d.fail(n, finding.WrongType, path, "must be a list", "write it as [first, second]")
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), len(seq.Values), len(seq.Values)))
	for i, item := range seq.Values {
		d.value(fmt.Sprintf("%s[%d]", path, i), item, v.Index(i))
	}
}

func (d *decoder) table(path string, n ast.Node, v reflect.Value) {
	pairs, ok := d.pairs(path, n)
	if !ok {
		return
	}
	v.Set(reflect.MakeMap(v.Type()))
	for _, pair := range pairs {
		key := pair.Key.GetToken().Value
		item := reflect.New(v.Type().Elem()).Elem()
		d.value(join(path, key), pair.Value, item)
		v.SetMapIndex(reflect.ValueOf(key), item)
	}
}

func (d *decoder) scalar(path string, n ast.Node, v reflect.Value) {
	switch n.Type() {
	case ast.MappingType, ast.MappingValueType, ast.SequenceType:
		d.fail(n, finding.WrongType, path, "must be "+kindName(v)+", not a list or keys and values", "write one value")
		return
	}
	tk := n.GetToken()
	if text, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		if err := text.UnmarshalText([]byte(tk.Value)); err != nil {
			d.fail(n, finding.WrongType, path, fmt.Sprintf("%q is not %s", tk.Value, kindName(v)), "see the key's reference")
		}
		return
	}
	if v.Kind() == reflect.String {
		// A name may be written as 123 or true: the text is what is meant.
		if n.Type() == ast.LiteralType {
			v.SetString(n.(*ast.LiteralNode).Value.Value)
		} else {
			v.SetString(tk.Value)
		}
		return
	}
	if n.Type() == ast.StringType {
		d.fail(n, finding.WrongType, path, fmt.Sprintf("%q is not %s", tk.Value, kindName(v)), "write "+kindName(v)+" without quotes")
		return
	}
	if err := yaml.NodeToValue(n, v.Addr().Interface()); err != nil {
		d.fail(n, finding.WrongType, path, fmt.Sprintf("%q is not %s", tk.Value, kindName(v)), "write "+kindName(v))
	}
}

func kindName(v reflect.Value) string {
	switch v.Type() {
	case reflect.TypeFor[Age]():
		return "a time as 90d or 720h"
	case reflect.TypeFor[Duration]():
		return "a time as 30s or 1m"
	case reflect.TypeFor[policy.Size]():
		return "a size as 64KiB or 10MiB"
	case reflect.TypeFor[time.Time]():
		return "a moment as 2026-12-01T00:00:00Z"
	}
	switch v.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Int64:
		return "a whole number"
	case reflect.Uint16:
		return "a number from 0 to 65535"
	case reflect.Struct:
		return "a CIDR prefix such as 10.231.0.0/16"
	}
	return "text"
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}
