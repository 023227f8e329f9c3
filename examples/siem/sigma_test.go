package siem_test

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"sallyport/internal/test/must"
)

// rule is a document of a Sigma rule (Sigma specification 2.1.0). A part that this evaluator
// does not know is an error.
type rule struct {
	Title, Name, ID, Status, Description, Author, Date, Level string
	References, Tags, FalsePositives                          []string
	LogSource                                                 struct{ Product, Service string }
	Detection                                                 map[string]any
	Correlation                                               *correlation
}

type correlation struct {
	Type      string
	Rules     []string
	Generate  bool
	GroupBy   []string `yaml:"group-by"`
	Timespan  string
	Condition struct {
		Field string
		GTE   int
	}
}

// rules are the documents of each file, by the file's name.
func rules(t *testing.T) map[string][]rule {
	t.Helper()
	files, err := filepath.Glob("sigma/*.yml")
	if err != nil || len(files) != 10 {
		t.Fatal(len(files), "rules", err)
	}
	all := map[string][]rule{}
	for _, file := range files {
		f, err := os.Open(file)
		must.OK(t, err)
		defer f.Close()
		name := strings.TrimSuffix(filepath.Base(file), ".yml")
		for d := yaml.NewDecoder(f, yaml.Strict()); ; {
			var r rule
			if err := d.Decode(&r); err == io.EOF {
				break
			} else if err != nil {
				t.Fatal(file, err)
			}
			all[name] = append(all[name], r)
		}
	}
	return all
}

// record is an event as its reader has it: each value by the path of its keys. A list's
// values are one beside the other.
type record map[string][]any

func (r record) add(path string, v any) {
	switch v := v.(type) {
	case map[string]any:
		for k, v := range v {
			r.add(strings.TrimPrefix(path+"."+k, "."), v)
		}
	case []any:
		for _, v := range v {
			r.add(path, v)
		}
	default:
		r[path] = append(r[path], v)
	}
}

func (r record) time() int64 { return int64(r["time"][0].(float64)) }

// condition is that of a detection. Go's grammar has the same operators by other names.
func (r *rule) condition() (ast.Expr, error) {
	words := strings.NewReplacer(" and ", " && ", " or ", " || ", "not ", "!")
	return parser.ParseExpr(words.Replace(r.Detection["condition"].(string)))
}

// matches reports whether a record is one that a rule is about.
func (r *rule) matches(condition ast.Expr, x record) (bool, error) {
	var eval func(ast.Expr) (bool, error)
	eval = func(e ast.Expr) (bool, error) {
		switch e := e.(type) {
		case *ast.Ident:
			return search(r.Detection[e.Name], x)
		case *ast.ParenExpr:
			return eval(e.X)
		case *ast.UnaryExpr:
			ok, err := eval(e.X)
			return !ok, err
		case *ast.BinaryExpr:
			a, err := eval(e.X)
			if err != nil {
				return false, err
			}
			b, err := eval(e.Y)
			if e.Op == token.LAND {
				return a && b, err
			}
			return a || b, err
		}
		return false, fmt.Errorf("%T in a condition", e)
	}
	return eval(condition)
}

// search is one of a detection: a map needs all its fields, a list one of its maps.
func search(s any, x record) (bool, error) {
	switch s := s.(type) {
	case []any:
		for _, one := range s {
			if ok, err := search(one, x); ok || err != nil {
				return ok, err
			}
		}
		return false, nil
	case map[string]any:
		for key, want := range s {
			field, modifier, _ := strings.Cut(key, "|")
			wanted, list := want.([]any)
			if !list {
				wanted = []any{want}
			}
			one := false
			for _, w := range wanted {
				ok, err := compare(x[field], modifier, w)
				if err != nil {
					return false, fmt.Errorf("%s: %w", key, err)
				}
				one = one || ok
			}
			if !one {
				return false, nil
			}
		}
		return true, nil
	}
	return false, fmt.Errorf("a search is %T", s)
}

func compare(values []any, modifier string, want any) (bool, error) {
	if modifier == "exists" {
		return (len(values) > 0) == want.(bool), nil
	}
	for _, v := range values {
		n, isNumber := v.(float64)
		var limit float64
		if _, err := fmt.Sscan(fmt.Sprint(want), &limit); err != nil && isNumber {
			return false, fmt.Errorf("%v is no number: %w", want, err)
		}
		ok := false
		switch modifier {
		case "":
			ok = isNumber && n == limit || !isNumber && strings.EqualFold(fmt.Sprint(v), fmt.Sprint(want))
		case "lt":
			ok = isNumber && n < limit
		case "gte":
			ok = isNumber && n >= limit
		default:
			return false, fmt.Errorf("modifier %s", modifier)
		}
		if ok {
			return true, nil
		}
	}
	return false, nil
}

// most is the largest number that a correlation has within its timespan for one group,
// of the records that its rule matches.
func (c *correlation) most(matched []record) (int, error) {
	span, err := time.ParseDuration(strings.Replace(c.Timespan, "1d", "24h", 1))
	if err != nil {
		return 0, err
	}
	if c.Type != "event_count" && c.Type != "value_count" {
		return 0, fmt.Errorf("a correlation of type %s", c.Type)
	}
	slices.SortFunc(matched, func(a, b record) int { return cmp.Compare(a.time(), b.time()) })
	groups := map[string][]record{}
	for _, x := range matched {
		group := ""
		for _, field := range c.GroupBy {
			if len(x[field]) == 0 {
				return 0, fmt.Errorf("no %s to group by in %v", field, x)
			}
			group += fmt.Sprint(x[field], " ")
		}
		groups[group] = append(groups[group], x)
	}
	most := 0
	for _, g := range groups {
		for i := range g {
			values, n := map[string]bool{}, 0
			for _, x := range g[i:] {
				if x.time()-g[i].time() >= span.Milliseconds() {
					break
				}
				n++
				values[fmt.Sprint(x[c.Condition.Field])] = true
			}
			if c.Type == "value_count" {
				n = len(values)
			}
			most = max(most, n)
		}
	}
	return most, nil
}
