package engine_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"sallyport/internal/test/must"
	"sallyport/policy"
	"sallyport/policy/body"
	"sallyport/policy/engine"
)

// cpu is the time that this process has spent on processors, which other
// processes of a crowded machine do not lengthen as much as the wall's.
func cpu(tb testing.TB) time.Duration {
	tb.Helper()
	var u syscall.Rusage
	must.OK(tb, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// many returns n egressAuth rules with methods and paths, each of its own host.
func many(n int) policy.Document {
	doc := policy.Document{Credentials: []policy.Credential{{Name: "key"}}, Policy: policy.Source{Cache: new(0)}}
	for i := range n {
		doc.EgressAuth = append(doc.EgressAuth, policy.EgressAuthRule{
			Destination: fmt.Sprintf("api-%d.example.com", i), AuthRef: "key",
			Methods: []string{"GET", "POST"}, Paths: []string{fmt.Sprintf("/v%d/**", i)},
		})
	}
	return doc
}

func ask(i int) policy.Input {
	in := request("POST", fmt.Sprintf("api-%d.example.com", i), fmt.Sprintf("/v%d/chat/completions", i))
	in.Request.Headers = []string{"Accept", "Content-Type", "User-Agent"}
	return in
}

// smallTeam is a team's Rego as a team might begin with.
const smallTeam = `package sallyport.team.uploads

deny contains "uploads of more than 10 MiB are not allowed" if input.request.size > 10485760

approve contains "deletions need a person" if {
	input.request.method == "DELETE"
	input.sandbox.tags.team == "support"
}
`

func BenchmarkDecide(b *testing.B) {
	for _, team := range []string{"", smallTeam} {
		for _, n := range []int{10, 10_000} {
			doc := many(n)
			if team != "" {
				doc.Policy.Dir = b.TempDir()
				must.OK(b, os.WriteFile(filepath.Join(doc.Policy.Dir, "p.rego"), []byte(team), 0o600))
			}
			p, err := engine.Compile(b.Context(), doc, engine.Options{})
			must.OK(b, err)
			for _, tt := range []struct {
				name string
				ask  func(int) policy.Input
				want policy.Action
			}{
				{"connect", func(i int) policy.Input {
					return connect(fmt.Sprintf("api-%d.example.com", i), 443, policy.ProtocolTLS)
				}, policy.Allow},
				{"inject", ask, policy.Allow},
				{"deny", func(i int) policy.Input {
					in := ask(i)
					in.Request.Method = "DELETE"
					return in
				}, policy.Deny},
			} {
				b.Run(fmt.Sprintf("team=%t/rules=%d/%s", team != "", n, tt.name), func(b *testing.B) {
					benchmark(b, p, n, tt.ask, tt.want)
				})
			}
		}
	}
}

func benchmark(b *testing.B, p *engine.Policy, n int, ask func(int) policy.Input, want policy.Action) {
	inputs := make([]policy.Input, n)
	for i := range inputs {
		inputs[i] = ask(i)
		p.Decide(context.Background(), inputs[i]) // compiles its pattern
	}
	b.ReportAllocs()
	took := make([]time.Duration, 0, 1<<20)
	i, start := 0, cpu(b)
	for b.Loop() {
		i++
		began := time.Now()
		d := p.Decide(context.Background(), inputs[i%n])
		if len(took) < cap(took) {
			took = append(took, time.Since(began))
		}
		if d.Action != want {
			b.Fatalf("%+v", d)
		}
	}
	b.ReportMetric(float64(cpu(b)-start)/float64(b.N), "cpu-ns/op")
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2]), "p50-ns")
	b.ReportMetric(float64(took[len(took)*99/100]), "p99-ns")
}

// TestDecideIsFlat holds that a decision does the same work however many rules
// there are. It counts allocations, which a busy machine does not change.
func TestDecideIsFlat(t *testing.T) {
	allocations := func(n int) float64 {
		p, err := engine.Compile(t.Context(), many(n), engine.Options{})
		must.OK(t, err)
		return testing.AllocsPerRun(200, func() { p.Decide(context.Background(), ask(3)) })
	}
	few, lots := allocations(10), allocations(10_000)
	if lots > few*1.1 {
		t.Errorf("%v allocations with 10 rules, %v with 10,000", few, lots)
	}
}

// BenchmarkBody is what a request costs under a policy that sees bodies: one whose
// body no rule asks for, and one of 64 KiB, from its bytes to the decision.
func BenchmarkBody(b *testing.B) {
	dir := b.TempDir()
	const rego = `package sallyport.team.x
deny contains "x" if { input.request.path == "/v1"; not input.request.body.json.model == "small" }`
	must.OK(b, os.WriteFile(filepath.Join(dir, "x.rego"), []byte(rego), 0o600))
	doc := policy.Document{
		Egress: []policy.EgressRule{
			{Name: "asks", Destination: "api.example.com", Paths: []string{"/v1"}, Body: &policy.BodyView{JSON: 64 << 10}},
			{Name: "any", Destination: "api.example.com"},
		},
		Policy: policy.Source{Dir: dir},
	}
	p, err := engine.Compile(b.Context(), doc, engine.Options{})
	must.OK(b, err)
	message := `{"role": "user", "content": "` + strings.Repeat("a word ", 140) + `"},`
	text := []byte(`{"model": "small", "messages": [` + strings.Repeat(message, 63) + `{}]}`)
	for path, content := range map[string][]byte{"/v2": nil, "/v1": text} {
		b.Run(fmt.Sprintf("size=%d", len(content)), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				in := policy.Input{
					Phase: policy.PhaseRequest, Protocol: policy.ProtocolTLS, Destination: policy.Destination{Host: "api.example.com", Port: 443},
					Request: &policy.Request{Method: "POST", Scheme: "https", Path: path},
				}
				if n := p.Need(in); n.Max > 0 {
					in.Request.Body = body.Read(n, content)
				}
				if d := p.Decide(b.Context(), in); d.Action != policy.Allow {
					b.Fatal(d)
				}
			}
		})
	}
}
