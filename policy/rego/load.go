// Package rego loads a security team's Rego and data: from a folder, from a bundle, and
// the packages of the library that they import.
//
// It guarantees that the Rego has no way out of the evaluation: no network, no environment,
// no randomness, and no built-in function that takes unbounded time or memory. Its errors
// are findings with a position.
package rego

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sallyport/policy/finding"

	"github.com/goccy/go-yaml"
	"github.com/open-policy-agent/opa/v1/ast"
)

// Limits of a team's directory: more than these is a mistake.
const (
	maxTeamFiles = 2000
	maxTeamBytes = 64 << 20
)

// Team is what a security team adds: modules below sallyport.team and data.
type Team struct {
	Modules map[string]*ast.Module
	Tests   map[string]*ast.Module // read by package regotest alone
	Data    map[string]any
	Digest  []namedSource // in the order of their names
	Sets    []Set
}

type namedSource struct {
	Name string
	Text []byte
}

// Set is a set that a team's package defines.
type Set struct {
	Name    string // deny, approve, allow, inject or limit
	Package ast.Ref
	plain   bool // its elements are what they should be, as its rules are written
}

var teamRoot = ast.MustParseRef("data.sallyport.team")

// SetNames are the names by which a team's package takes part in a decision.
var SetNames = []string{"deny", "approve", "allow", "inject", "limit"}

// Load reads dir as `opa test DIR` does: a file's data appears under the
// names of the folders that it is in. Tests are checked and not loaded. Every
// problem is reported with its file and line.
func Load(dir string) (*Team, error) {
	t := &Team{Modules: map[string]*ast.Module{}, Data: map[string]any{}}
	if dir == "" {
		return t, nil
	}
	err := t.load(dir)
	if f, one := err.(finding.Finding); one && f.Path == "policy.dir" {
		return nil, err
	}
	return t, err
}

// load adds what is in a folder.
func (t *Team) load(dir string) error {
	var errs []error
	err := ReadFolder(dir, func(name string, text []byte) error {
		t.Digest = append(t.Digest, namedSource{name, text})
		if filepath.Ext(name) == ".rego" {
			errs = append(errs, t.addModule(filepath.Join(dir, name), text))
		} else {
			errs = append(errs, t.addData(filepath.Join(dir, name), name, text))
		}
		return nil
	})
	var f finding.Finding
	switch {
	case errors.As(err, &f):
		return f
	case err != nil:
		errs = append(errs, finding.Finding{Kind: finding.Unreadable, Path: "policy.dir", Message: fmt.Sprintf("reading %s: %v", dir, err), Fix: "mend what it says"})
	}
	return errors.Join(errs...)
}

// ReadFolder gives each file of a team's folder that takes part in a policy to
// each, in the order of their names, which are relative to dir. The function that each
// returns ends it. A folder that cannot be opened is a [Finding].
func ReadFolder(dir string, each func(name string, text []byte) error) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return finding.Finding{Kind: finding.Unreadable, Path: "policy.dir", Message: fmt.Sprintf("cannot be read: %v", err), Fix: "make the folder, or remove policy.dir"}
	}
	defer root.Close()
	files, size := 0, int64(0)
	return fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name != "." && strings.HasPrefix(d.Name(), ".") {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if d.Type()&fs.ModeSymlink != 0 {
			if to, err := root.Stat(name); err != nil {
				return err
			} else if to.IsDir() {
				return fmt.Errorf("%s is a link to a folder, which is not followed; put the folder there", name)
			}
		}
		if d.IsDir() || !slices.Contains([]string{".rego", ".json", ".yaml", ".yml"}, filepath.Ext(name)) {
			return nil
		}
		text, err := root.ReadFile(name)
		if err != nil {
			return err
		}
		files++
		if size += int64(len(text)); size > maxTeamBytes || files > maxTeamFiles {
			return fmt.Errorf("more than %d files or %d MiB", maxTeamFiles, maxTeamBytes>>20)
		}
		return each(name, text)
	})
}

func (t *Team) addModule(file string, text []byte) error {
	m, err := ast.ParseModuleWithOpts(file, string(text), ast.ParserOptions{
		RegoVersion:       ast.RegoV1,
		ProcessAnnotation: true,
		Capabilities:      Capabilities(),
	})
	if err != nil {
		return Errors(err)
	}
	if !m.Package.Path.HasPrefix(teamRoot) {
		return finding.Finding{
			Kind:     finding.OtherPackage,
			Position: Position(m.Package.Location),
			Message:  fmt.Sprintf("package %s is not below sallyport.team", pkgName(m.Package.Path)),
			Fix:      "write package sallyport.team." + lastPart(m.Package.Path),
		}
	}
	test := strings.HasSuffix(file, "_test.rego")
	var errs []error
	for _, r := range m.Rules {
		head := r.Head.Ref()
		name := head[0].Value.String()
		switch {
		case name == "obligation":
			errs = append(errs, finding.Finding{
				Kind:     finding.NoSet,
				Position: Position(r.Location),
				Message:  fmt.Sprintf("%s is not enforced by this version", name),
				Fix:      "remove it, or deny instead",
			})
		case !slices.Contains(SetNames, name):
		case r.Head.RuleKind() != ast.MultiValue || len(head) != 1 || r.Default:
			errs = append(errs, finding.Finding{
				Kind:     finding.NoSet,
				Position: Position(r.Location),
				Message:  fmt.Sprintf("%s must be a set, or it would be passed over", name),
				Fix:      fmt.Sprintf("write \"%s contains … if …\"", name),
			})
		case test:
			errs = append(errs, finding.Finding{
				Kind:     finding.InTest,
				Position: Position(r.Location),
				Message:  fmt.Sprintf("%s in a test file takes part in no decision", name),
				Fix:      "move it into a file whose name does not end in _test.rego",
			})
		default:
			t.contribute(Set{name, m.Package.Path, plain(name, r.Head.Key)})
		}
	}
	if test {
		t.addTest(file, m)
	} else {
		t.Modules[file] = m
	}
	return errors.Join(errs...)
}

// contribute adds a rule to a set.
func (t *Team) contribute(c Set) {
	i := slices.IndexFunc(t.Sets, func(o Set) bool { return o.Name == c.Name && o.Package.Equal(c.Package) })
	if i < 0 {
		t.Sets = append(t.Sets, c)
		return
	}
	t.Sets[i].plain = t.Sets[i].plain && c.plain
}

// plain reports whether an element of a set is for certain what it should be: a
// string for deny and approve, an object with strings for allow.
func plain(set string, element *ast.Term) bool {
	switch set {
	case "deny", "approve":
		return isText(element)
	case "allow":
		offer, ok := element.Value.(ast.Object)
		if !ok {
			return false
		}
		named := false
		err := offer.Iter(func(key, value *ast.Term) error {
			switch _, list := value.Value.(*ast.Array); {
			case key.Equal(ast.InternedTerm("rule")) && isText(value):
				named = true
			case key.Equal(ast.InternedTerm("reason")) && isText(value), key.Equal(ast.InternedTerm("protocols")) && list:
			default:
				return errors.New("who knows")
			}
			return nil
		})
		return named && err == nil
	}
	return false
}

// isText reports whether a term is a string, or the call of a function that
// returns one.
func isText(t *ast.Term) bool {
	switch v := t.Value.(type) {
	case ast.String:
		return true
	case ast.Call:
		return v[0].Equal(sprintf) || v[0].Equal(concat)
	}
	return false
}

var (
	sprintf = ast.NewTerm(ast.Sprintf.Ref())
	concat  = ast.NewTerm(ast.Concat.Ref())
)

func (t *Team) addData(file, name string, text []byte) error {
	var doc any
	if err := yaml.Unmarshal(text, &doc); err != nil { // JSON is YAML
		return yamlError(file, err)
	}
	tree, ok := doc.(map[string]any)
	if !ok {
		return finding.Finding{Kind: finding.BadData, Position: finding.Position{File: file}, Message: "is not an object", Fix: "write keys and values"}
	}
	if folder := filepath.ToSlash(filepath.Dir(name)); folder != "." {
		parts := strings.Split(folder, "/")
		for i := len(parts) - 1; i >= 0; i-- {
			tree = map[string]any{parts[i]: tree}
		}
	}
	if _, taken := tree["sallyport"]; taken {
		return finding.Finding{Kind: finding.BadData, Position: finding.Position{File: file}, Message: "data.sallyport is Sallyport's own", Fix: "use another top-level key"}
	}
	if key := merge(t.Data, tree); key != "" {
		return finding.Finding{Kind: finding.BadData, Position: finding.Position{File: file}, Message: fmt.Sprintf("data.%s is set by another file too", key), Fix: "set it in one of them"}
	}
	return nil
}

// merge adds src to dst and returns the path of the first thing that both set.
func merge(dst, src map[string]any) string {
	for k, v := range src {
		old, taken := dst[k]
		if !taken {
			dst[k] = v
			continue
		}
		a, aok := old.(map[string]any)
		b, bok := v.(map[string]any)
		if !aok || !bok {
			return k
		}
		if inner := merge(a, b); inner != "" {
			return k + "." + inner
		}
	}
	return ""
}

// Gather is the module that collects the team's sets for the decision. It names
// each package, so that a decision evaluates nothing of a team but its sets. A set that no
// package defines is undefined, so that OPA passes over the rules that need one.
func (t *Team) Gather() string {
	var b strings.Builder
	b.WriteString("package sallyport.contributed\n")
	for _, c := range t.Sets {
		reason, it := "text(it)", "it"
		switch {
		case c.plain:
			reason = "it"
		case c.Name == "allow", c.Name == "limit":
			it = "untyped(it)"
		}
		switch c.Name {
		case "deny", "approve":
			fmt.Fprintf(&b, "%s contains {\"rule\": %q, \"reason\": %s} if some it in %s.%s\n", c.Name, pkgName(c.Package), reason, c.Package, c.Name)
		default:
			fmt.Fprintf(&b, "%s contains %s if some it in %s.%s\n", c.Name, it, c.Package, c.Name)
		}
	}
	if t.limits() {
		b.WriteString("limits := [it | some it in limit]\n") // one value, for a question
	}
	b.WriteString("untyped(it) := it\n") // of which the type checker knows nothing
	b.WriteString("text(it) := it if is_string(it)\n")
	b.WriteString("text(it) := sprintf(\"%v\", [it]) if not is_string(it)\n")
	return b.String()
}

// limits tells whether some package defines a limit.
func (t *Team) limits() bool {
	return slices.ContainsFunc(t.Sets, func(c Set) bool { return c.Name == "limit" })
}

func pkgName(r ast.Ref) string { return strings.TrimPrefix(r.String(), "data.") }

func lastPart(r ast.Ref) string { return strings.Trim(r[len(r)-1].Value.String(), `"`) }

func Position(l *ast.Location) finding.Position {
	if l == nil {
		return finding.Position{}
	}
	return finding.Position{File: l.File, Line: l.Row, Column: l.Col}
}

func yamlError(file string, err error) error {
	f := finding.Finding{Kind: finding.BadData, Position: finding.Position{File: file}, Message: err.Error(), Fix: "write YAML or JSON"}
	if y, ok := errors.AsType[yaml.Error](err); ok {
		f.Message = y.GetMessage()
		if tk := y.GetToken(); tk != nil && tk.Position != nil {
			f.Position.Line, f.Position.Column = tk.Position.Line, tk.Position.Column
		}
	}
	return f
}

// LoadAll reads folders as if they were one.
func LoadAll(dirs []string) (*Team, error) {
	all, err := Load("")
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, dir := range dirs {
		t, err := Load(dir)
		errs = append(errs, err)
		if t == nil {
			continue
		}
		maps.Copy(all.Modules, t.Modules)
		for name, m := range t.Tests {
			all.addTest(name, m)
		}
		for _, c := range t.Sets {
			all.contribute(c)
		}
		if key := merge(all.Data, t.Data); key != "" {
			errs = append(errs, finding.Finding{Position: finding.Position{File: dir}, Message: fmt.Sprintf("data.%s is set in another folder too", key), Fix: "set it in one of them"})
		}
	}
	return all, errors.Join(errs...)
}

func (t *Team) addTest(file string, m *ast.Module) {
	if t.Tests == nil {
		t.Tests = map[string]*ast.Module{}
	}
	t.Tests[file] = m
}

// Read adds a folder, or one file of Rego or data.
func (t *Team) Read(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return finding.Unreadable.Finding(finding.Position{File: path}, "", fmt.Sprintf("cannot be read: %v", err), "write the path of a folder or of a .rego file")
	}
	if info.IsDir() {
		return t.load(path)
	}
	text, err := os.ReadFile(path)
	switch {
	case err != nil:
		return finding.Unreadable.Finding(finding.Position{File: path}, "", fmt.Sprintf("cannot be read: %v", err), "write the path of a folder or of a .rego file")
	case filepath.Ext(path) == ".rego":
		return t.addModule(path, text)
	default:
		return t.addData(path, filepath.Base(path), text)
	}
}
