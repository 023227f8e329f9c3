package deptest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// private are words of this project alone that identifiers and file names had. A stranger
// searches for the word behind the colon.
var private = map[string]string{
	"gatehouse": "worker, supervisor", "warden": "supervisor", "lender": "leaseServer", "dormitory": "suspend.Set", "slumber": "suspend",
	"rouse": "thaw", "frontier": "frames", "herald": "early hints", "conceive": "prepareChild",
	"roomyevery": "diskCheckEvery", "lobby": "connLimit", "discreet": "redact", "pulldown": "shutdown", "unsay": "unemit",
}

var notLetters = regexp.MustCompile(`[^a-z]`)

// No identifier that is declared, and no file, is named by a private word.
func TestWords(t *testing.T) {
	const root = "../../.."
	check := func(where, name string) {
		plain := notLetters.ReplaceAllString(strings.ToLower(name), "")
		for word, instead := range private {
			if strings.Contains(plain, word) {
				t.Errorf("%s: %s: say %s", where, name, instead)
			}
		}
	}
	files := 0
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && (e.Name() == ".git" || e.Name() == "bin" || e.Name() == "testdata"):
			return fs.SkipDir
		case e.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "deptest/words_test.go"):
			return nil
		}
		files++
		check(path, e.Name())
		parsed, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok {
				check(path, id.Name)
			}
			return true
		})
		return nil
	})
	if err != nil || files < 500 {
		t.Errorf("%d files: %v", files, err)
	}
}

// subjects begin sentences whose subject a reader has to wait for.
var subjects = regexp.MustCompile(`(?:^|[.:!?]\)? )(?:What|Who|Whoever) [^.?!]*[.?!]?`)

// No sentence of a comment begins with What, Who or Whoever, but for questions.
func TestSubjects(t *testing.T) {
	const root = "../../.."
	comments := 0
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && (e.Name() == ".git" || e.Name() == "bin" || e.Name() == "testdata"):
			return fs.SkipDir
		case e.IsDir() || !strings.HasSuffix(path, ".go"):
			return nil
		}
		files := token.NewFileSet()
		parsed, err := parser.ParseFile(files, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, c := range parsed.Comments {
			comments++
			for _, s := range subjects.FindAllString(strings.ReplaceAll(c.Text(), "\n", " "), -1) {
				if !strings.HasSuffix(s, "?") {
					t.Errorf("%v: name the subject first: %s", files.Position(c.Pos()), s)
				}
			}
		}
		return nil
	})
	if err != nil || comments < 9000 {
		t.Errorf("%d comments: %v", comments, err)
	}
}
