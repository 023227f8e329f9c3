package engine

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sallyport/internal/test/must"
	"sallyport/policy"

	"github.com/google/go-cmp/cmp"
)

// attentive is Rego that looks at every field of an input but body.
const attentive = `package sallyport.team.x

deny contains sprintf("%s %s", [input.sandbox.session, input.sandbox.id]) if input.sandbox.tags.team == "b"
deny contains "by name" if input.sandbox.name == "other"
deny contains concat(",", input.request.headers) if "X-Bad" in input.request.headers
deny contains input.request.query_keys[0] if input.request.query_keys[0] == "bad"
deny contains sprintf("%d", [input.request.size]) if input.request.size > 10
deny contains input.request.scheme if input.request.path == "/scheme"
deny contains input.request.method if input.request.path == "/method"
deny contains sprintf("%s:%d", [input.destination.host, input.destination.port]) if input.request.path == "/where"
deny contains input.protocol if input.destination.host == "10.9.9.9"
`

func compileWith(t *testing.T, doc policy.Document, rego string, size int) *Policy {
	t.Helper()
	doc.Policy.Cache = new(size)
	if rego != "" {
		doc.Policy.Dir = t.TempDir()
		must.OK(t, os.WriteFile(filepath.Join(doc.Policy.Dir, "p.rego"), []byte(rego), 0o600))
	}
	p, err := Compile(t.Context(), doc, Options{Timeout: time.Minute}) // no decision is denied because the machine is busy
	must.OK(t, err)
	return p
}

// TestRecallIsExact asks the same with answers that are kept and without.
func TestRecallIsExact(t *testing.T) {
	for name, rego := range map[string]string{"no team": "", "a team": manyRules(), "one that looks at everything": attentive} {
		t.Run(name, func(t *testing.T) {
			kept, fresh := compileWith(t, everyKind, rego, 512), compileWith(t, everyKind, rego, 0)
			random := rand.New(rand.NewPCG(5, 6))
			list := inputs()
			for _, in := range inputs() { // and variants of each, one field at a time
				list = append(list, in)
				in.Sandbox.Tags = map[string]string{"team": "b"}
				list = append(list, in)
				in.Sandbox.Session = "t"
				list = append(list, in)
				in.Sandbox.ID = "2"
				list = append(list, in)
				in.Sandbox.Name = "other"
				list = append(list, in)
				if in.Request == nil {
					continue
				}
				in.Sandbox = list[0].Sandbox
				asked := *in.Request
				for _, change := range []func(*policy.Request){
					func(r *policy.Request) { r.Size = 70 }, func(r *policy.Request) { r.Size = 71 },
					func(r *policy.Request) { r.Headers = []string{"X-Bad"} }, func(r *policy.Request) { r.Headers = []string{"A", "X-Bad"} },
					func(r *policy.Request) { r.QueryKeys = []string{"bad"} }, func(r *policy.Request) { r.QueryKeys = []string{"good"} },
					func(r *policy.Request) { r.Path = "/scheme" }, func(r *policy.Request) { r.Path = "/method" }, func(r *policy.Request) { r.Path = "/where" },
				} {
					other := asked
					change(&other)
					in.Request = &other
					list = append(list, in)
				}
			}
			for range len(list) {
				// Those near each other differ in little, and soon come again.
				in := list[random.IntN(1+random.IntN(len(list)))/2]
				if diff := cmp.Diff(fresh.Decide(t.Context(), in), kept.Decide(t.Context(), in)); diff != "" {
					t.Fatalf("%+v %+v: %s", in, in.Request, diff)
				}
			}
			if fresh.CacheHits() != 0 || kept.CacheHits() < uint64(len(list)/10) {
				t.Errorf("of %d decisions %d and %d had been kept", len(list), fresh.CacheHits(), kept.CacheHits())
			}
		})
	}
}

// TestRecallNeedsSameAnswers has policies whose answers may differ each time.
func TestRecallNeedsSameAnswers(t *testing.T) {
	for name, rego := range map[string]string{
		"the clock": `package sallyport.team.x
deny contains "never" if time.now_ns() < 0`,
		"the clock, in a function": `package sallyport.team.x
deny contains "never" if late(0)
late(x) if time.now_ns() < x`,
	} {
		p := compileWith(t, everyKind, rego, 64)
		for _, in := range append(inputs(), inputs()...) {
			p.Decide(t.Context(), in)
		}
		if n := p.CacheHits(); n != 0 {
			t.Errorf("%s: %d answers had been kept", name, n)
		}
	}
}

func TestRecallIsBounded(t *testing.T) {
	p := compileWith(t, everyKind, `package sallyport.team.x
deny contains "no" if input.request.path == "/no"`, 16)
	ask := func(path string) {
		d := p.Decide(t.Context(), policy.Input{
			Phase: policy.PhaseRequest, Destination: policy.Destination{Host: "a.example.com", Port: 443},
			Request: &policy.Request{Method: "GET", Scheme: "https", Path: path},
		})
		if d.Err != nil {
			t.Fatal(d.Err)
		}
	}
	for i := range 1000 {
		ask(fmt.Sprint("/", i))
	}
	if n := p.cache.answers.Len(); n != 16 {
		t.Errorf("%d answers are kept", n)
	}
	long := "/" + strings.Repeat("x", 2*maxCacheKey)
	ask(long)
	ask(long)
	if n := p.CacheHits(); n != 0 {
		t.Errorf("%d answers had been kept for a long path", n)
	}
	doc := everyKind
	doc.Policy.Cache = new(-1)
	if _, err := Compile(t.Context(), doc, Options{}); err == nil || !strings.Contains(err.Error(), "policy.cache") {
		t.Errorf("got %v", err)
	}
}
