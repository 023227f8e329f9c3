package deptest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"sallyport/internal/test/doctest"
	"sallyport/internal/test/must"
)

// followers are the tests that follow a document from beginning to end: the file,
// and the function that has the document's name in it.
var followers = map[string]struct{ file, test string }{
	"start/security-teams.md": {"internal/e2e/guide_test.go", "TestGuide"},
	"policy/first-policy.md":  {"internal/e2e/guide_test.go", "TestPolicyPages"},
	"policy/approvals.md":     {"internal/e2e/guide_test.go", "TestPolicyPages"},
	"policy/bodies.md":        {"internal/e2e/guide_test.go", "TestPolicyPages"},
	"policy/check.md":         {"cmd/sallyport/policycmd/document_test.go", "TestPolicyDocuments"},
	"policy/library.md":       {"cmd/sallyport/policycmd/document_test.go", "TestPolicyLibraryDocument"},
	"policy/limits.md":        {"internal/e2e/guide_test.go", "TestPolicyPages"},
	"policy/live.md":          {"internal/e2e/guide_test.go", "TestPolicyPages"},
	"policy/paths.md":         {"cmd/sallyport/policycmd/document_test.go", "TestPolicyDocuments"},
	"policy/rollout.md":       {"internal/e2e/guide_test.go", "TestPolicyPages"},
	"policy/test.md":          {"cmd/sallyport/policycmd/document_test.go", "TestPolicyDocuments"},
}

var typed = regexp.MustCompile(`(?m)^(\$ |sallyport |opa )`)

// Every command that a document about policies shows is run by a test: it stands
// in a console block, and a test follows the document, which runs all of them.
func TestPagesAreFollowed(t *testing.T) {
	const root = "../../.."
	var documents []string
	for _, pattern := range []string{"start/*.md", "policy/*.md"} {
		found, err := filepath.Glob(filepath.Join(root, "docs", pattern))
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %v, %v", pattern, found, err)
		}
		documents = append(documents, found...)
	}
	shown := map[string]bool{}
	for _, file := range documents {
		name, err := filepath.Rel(filepath.Join(root, "docs"), file)
		must.OK(t, err)
		text, err := os.ReadFile(file)
		must.OK(t, err)
		for _, b := range doctest.Blocks(string(text)) {
			switch commands := b.Commands(); {
			case b.Kind == "console" && len(commands) == 0:
				t.Errorf("%s:%d: a console block without a command", name, b.Line)
			case b.Kind == "console" && !strings.HasPrefix(b.Text, "$ "):
				t.Errorf("%s:%d: what stands before the first command is not run", name, b.Line)
			case b.Kind == "console":
				shown[name] = true
			case b.File == "" && typed.MatchString(b.Text):
				t.Errorf("%s:%d: commands that no test runs: write ```console", name, b.Line)
			}
		}
		if f, ok := followers[name]; shown[name] && !ok {
			t.Errorf("%s shows commands, and no test follows it", name)
		} else if ok && !names(t, filepath.Join(root, f.file), f.test, name) {
			t.Errorf("%s: %s does not follow %s", f.file, f.test, name)
		}
	}
	for name := range followers {
		if !shown[name] {
			t.Errorf("%s shows no command", name)
		}
	}
}

// names tells whether a test function calls follow, and has a document's name in a
// string.
func names(t *testing.T, file, test, document string) bool {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	must.OK(t, err)
	named, follows := false, false
	for _, d := range parsed.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Name.Name != test {
			continue
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BasicLit:
				text, _ := strconv.Unquote(n.Value)
				named = named || strings.HasSuffix("/"+text, "/"+document)
			case *ast.CallExpr:
				switch fun := n.Fun.(type) {
				case *ast.Ident:
					follows = follows || fun.Name == "follow"
				case *ast.SelectorExpr:
					follows = follows || fun.Sel.Name == "follow"
				}
			}
			return true
		})
	}
	return named && follows
}
