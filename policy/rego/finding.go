package rego

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"sallyport/policy/finding"

	"github.com/open-policy-agent/opa/v1/ast"
)

// Errors turns the errors of OPA's parser and compiler into findings.
func Errors(err error) error {
	var list ast.Errors
	if !errors.As(err, &list) {
		return err
	}
	errs := make([]error, len(list))
	for i, e := range list {
		errs[i] = regoFinding(e)
	}
	return errors.Join(errs...)
}

func regoFinding(e *ast.Error) finding.Finding {
	f := finding.Finding{Kind: finding.RegoCompile, Position: Position(e.Location), Message: e.Message}
	if e.Details != nil && e.Code != ast.ParseErr { // those of the parser repeat the line
		f.Message += ": " + strings.Join(e.Details.Lines(), " ")
	}
	if name, ok := strings.CutPrefix(e.Message, "undefined function "); ok {
		return undefinedFunction(f, name)
	}
	switch e.Code {
	case ast.ParseErr:
		f.Kind, f.Fix = finding.RegoSyntax, "mend it; opa fmt says the same"
	case ast.TypeErr:
		f.Kind, f.Fix = finding.RegoType, "compare with what policy/schema/input.json says, or leave it out"
		switch detail := e.Details.(type) {
		case *ast.RefErrInvalidDetail:
			f.Message, f.Fix = e.Message, keyFix(detail)
		case *ast.UnificationErrDetail:
			f.Message = fmt.Sprintf("%s: %v on one side, %v on the other", e.Message, detail.Left, detail.Right)
		}
	case ast.RecursionErr:
		f.Message, _, _ = strings.Cut(f.Message, ": ") // the way round differs from run to run
		f.Fix = "decide on input and the team's own data alone: data.sallyport depends on every set of the team"
	case ast.UnsafeVarErr:
		f.Fix = "give the variable a value first: with :=, or with some … in"
	default:
		f.Kind, f.Fix = compileFix(e.Message)
	}
	return f
}

// keyFix says which key was meant by one that there is not.
func keyFix(d *ast.RefErrInvalidDetail) string {
	var names []string
	for _, v := range d.OneOf {
		if s, ok := v.(ast.String); ok {
			names = append(names, string(s))
		}
	}
	if d.Pos < len(d.Ref) {
		if s, ok := d.Ref[d.Pos].Value.(ast.String); ok {
			if near := finding.Nearest(string(s), names); near != "" {
				return fmt.Sprintf("did you mean %q?", near)
			}
		}
	}
	if len(names) == 0 {
		return "there is nothing below it: remove the rest"
	}
	return "the keys here are " + strings.Join(names, ", ")
}

// builtins are the names of the functions that policies have.
var builtins = sync.OnceValue(func() []string {
	var names []string
	for _, b := range Capabilities().Builtins {
		names = append(names, b.Name)
	}
	return names
})

func undefinedFunction(f finding.Finding, name string) finding.Finding {
	reaches := slices.Contains(withheld, name) || ast.BuiltinMap[name] != nil
	switch near := finding.Nearest(name, builtins()); {
	case reaches:
		f.Kind = finding.Withheld
		f.Message = name + " is withheld from policies"
		f.Fix = "decide on input and data alone"
	case near != "":
		f.Kind, f.Fix = finding.RegoType, fmt.Sprintf("did you mean %s?", near)
	default:
		f.Kind, f.Fix = finding.RegoType, "define it in a package below sallyport.team, or use one of OPA's built-in functions"
	}
	return f
}

// strict are the errors that OPA's compiler has in strict mode only.
var strict = []struct {
	message *regexp.Regexp
	fix     string
}{
	{regexp.MustCompile(`^(assigned|declared) var .* unused`), "remove it, or write _ for what is not looked at"},
	{regexp.MustCompile(`^unused argument`), "write _ for the argument"},
	{regexp.MustCompile(`^import .* unused`), "remove the import"},
	{regexp.MustCompile(`^import must not shadow`), "import each name once, or give one of them another with as"},
	{regexp.MustCompile(`must not shadow`), "give it another name"},
	{regexp.MustCompile(`deprecated built-in`), "use the function that takes its place"},
}

func compileFix(message string) (finding.Kind, string) {
	for _, s := range strict {
		if s.message.MatchString(message) {
			return finding.RegoStrict, s.fix
		}
	}
	switch {
	case strings.HasPrefix(message, "var ") && strings.HasSuffix(message, "is unsafe"):
		return finding.RegoCompile, "give the variable a value first: with :=, or with some … in"
	case strings.Contains(message, "conflict"):
		return finding.RegoCompile, "give one of the two another name"
	}
	return finding.RegoCompile, "mend it; opa check says the same"
}
