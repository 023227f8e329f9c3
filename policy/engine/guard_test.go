package engine_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"sallyport/internal/test/must"
	"sallyport/policy"
	"sallyport/policy/engine"
)

// Rego that asks a built-in function for more than memory holds, or than there is
// time for, denies: an evaluation is stopped between two calls only.
func TestRegoThatIsHungry(t *testing.T) {
	for name, body := range map[string]string{
		"many pieces": `count(concat(sprintf("%999999d", [1]), [sprintf("%d", [i]) | some i in numbers.range(1, 8000)])) > 0`,
		"a format of many verbs": `a := sprintf("%999999d", [1])
	count(sprintf(sprintf("%s%s", [replace(sprintf("%9999d", [1]), " ", "%[1]s"), ""]), [a])) > 0`,
		"a pattern that matches everywhere": `a := sprintf("%999999d", [1])
	count(regex.replace(a, " ", a)) > 0`,
		"much for little": `a := sprintf("%999999d", [1])
	count(replace(a, " ", a)) > 0`,
		"a document that holds itself often": `a0 := numbers.range(1, 1000)
	a1 := [a0, a0, a0, a0, a0, a0, a0, a0, a0, a0]
	a2 := [a1, a1, a1, a1, a1, a1, a1, a1, a1, a1]
	a3 := [a2, a2, a2, a2, a2, a2, a2, a2, a2, a2]
	a4 := [a3, a3, a3, a3, a3, a3, a3, a3, a3, a3]
	a5 := [a4, a4, a4, a4, a4, a4, a4, a4, a4, a4]
	count(json.marshal(a5)) > 0`,
		"the same in a text": `a0 := numbers.range(1, 1000)
	a1 := [a0, a0, a0, a0, a0, a0, a0, a0, a0, a0]
	a2 := [a1, a1, a1, a1, a1, a1, a1, a1, a1, a1]
	a3 := [a2, a2, a2, a2, a2, a2, a2, a2, a2, a2]
	a4 := [a3, a3, a3, a3, a3, a3, a3, a3, a3, a3]
	a5 := [a4, a4, a4, a4, a4, a4, a4, a4, a4, a4]
	count(sprintf("%v", [a5])) > 0`,
		"a text of texts": `x := sprintf("%999999d", [1])
	y := sprintf("%s%s%s%s%s%s%s%s%s%s", [x, x, x, x, x, x, x, x, x, x])
	z := sprintf("%s%s%s%s%s%s%s%s%s%s", [y, y, y, y, y, y, y, y, y, y])
	w := sprintf("%s%s%s%s%s%s%s%s%s%s", [z, z, z, z, z, z, z, z, z, z])
	v := sprintf("%s%s%s%s%s%s%s%s%s%s", [w, w, w, w, w, w, w, w, w, w])
	count(v) > 0`,
		"a large exponent": `x := 1e300 * 1e300
	y := x * x
	z := y * y
	w := z * z
	v := w * w
	u := v * v
	s := u * u
	r := s * s
	q := r * r
	p := q * q
	sprintf("%v", [p * p * p * p]) != ""`,
		"a long number": `x := 99999999999999999999999999999999999999999999999999999999999999999999
	x1 := x * x
	x2 := x1 * x1
	x3 := x2 * x2
	x4 := x3 * x3
	x5 := x4 * x4
	x6 := x5 * x5
	x7 := x6 * x6
	x8 := x7 * x7
	x9 := x8 * x8
	y1 := x9 * x9
	y2 := y1 * y1
	y3 := y2 * y2
	y4 := y3 * y3
	y5 := y4 * y4
	y6 := y5 * y5
	y6 > 0`,
		"a remainder of one": `x := 1e300 * 1e300
	y := x * x * x * x * x * x * x * x
	z := y * y * y * y * y * y * y * y
	w := z * z * z * z * z * z * z * z
	v := w * w * w * w * w * w * w * w
	u := v * v * v * v * v * v * v * v
	floor(u) % 7 == 1`,
		"its bits": `x := 1e300 * 1e300
	y := x * x * x * x * x * x * x * x
	z := y * y * y * y * y * y * y * y
	w := z * z * z * z * z * z * z * z
	v := w * w * w * w * w * w * w * w
	u := v * v * v * v * v * v * v * v
	bits.and(floor(u), 1) == 1`,
		"its digits": `x := 1e300 * 1e300
	y := x * x * x * x * x * x * x * x
	z := y * y * y * y * y * y * y * y
	w := z * z * z * z * z * z * z * z
	v := w * w * w * w * w * w * w * w
	count(format_int(v, 10)) > 0`,
		"a padded text":         `count(concat("", ["a", sprintf("%999999d%999999d%999999d%999999d%999999d", [1, 1, 1, 1, 1])])) > 0`,
		"a width that is given": `count(sprintf("%*d%*d%*d", [999999, 1, 999999, 1, 999999, 1])) > 0`,
		"a product":             `product([1e300 | some i in numbers.range(1, 1000)]) + product([x | some i in numbers.range(1, 1000); x := 1e300 + i]) > 0`,
	} {
		t.Run(name, func(t *testing.T) {
			p, err := teamPolicy(t, "deny contains \"x\" if {\n\t"+body+"\n}")
			must.OK(t, err)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			began := time.Now()
			d := p.Decide(t.Context(), request("GET", "a.example.com", "/"))
			took := time.Since(began)
			runtime.ReadMemStats(&after)
			if d.Action != policy.Deny || d.Err == nil {
				t.Errorf("got %+v", d)
			}
			if took > time.Minute || after.TotalAlloc-before.TotalAlloc > 256<<20 {
				t.Errorf("it took %v and %d MiB: %v", took, (after.TotalAlloc-before.TotalAlloc)>>20, d.Err)
			}
		})
	}
	for _, call := range []string{
		`strings.render_template("{{range .x}}{{end}}", {"x": [1]}) != ""`,
		`count(graph.reachable_paths({1: [2], 2: [1]}, {1})) > 0`,
	} {
		if _, err := teamPolicy(t, "deny contains \"x\" if "+call); err == nil || !strings.Contains(err.Error(), "withheld") {
			t.Errorf("%s: %v", call, err)
		}
	}
	// Rego as people write it is not in the way.
	p, err := teamPolicy(t, `deny contains msg if {
	words := [sprintf("%05.1f %-20s|%v", [i / 3, input.request.path, {"a": [i]}]) | some i in numbers.range(1, 200)]
	sum([i | some i in numbers.range(1, 500)]) * 1e12 == 125250e12
	replace(input.request.path, "/", "-") == regex.replace(input.request.path, "/", "-")
	msg := sprintf("%d %s", [count(concat(", ", words)), json.marshal(words)])
}`)
	must.OK(t, err)
	if d := p.Decide(t.Context(), request("GET", "a.example.com", "/x/y")); d.Err != nil || d.RuleType != "rego" && !strings.Contains(d.Reason, "005") {
		t.Errorf("got %+v", d)
	}
}

// teamPolicy is one with a package of the team's.
func teamPolicy(t *testing.T, rules string) (*engine.Policy, error) {
	t.Helper()
	dir := t.TempDir()
	must.OK(t, os.WriteFile(filepath.Join(dir, "a.rego"), fmt.Appendf(nil, "package sallyport.team.hungry\n\n%s\n", rules), 0o600))
	return engine.Compile(t.Context(), policy.Document{
		Egress: []policy.EgressRule{{Destination: "a.example.com"}}, Policy: policy.Source{Dir: dir},
	}, engine.Options{Timeout: 500 * time.Millisecond})
}
