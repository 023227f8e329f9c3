package policy_test

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"sallyport/policy"
)

// cpu is the time that this process has spent on processors, which other
// processes of a crowded machine do not lengthen as much as the wall's.
func cpu(tb testing.TB) time.Duration {
	tb.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func BenchmarkDecide(b *testing.B) {
	for _, n := range []int{10, 1000, 10_000} {
		doc := policy.Document{Credentials: []policy.Credential{{Name: "key"}}}
		for i := range n {
			doc.EgressAuth = append(doc.EgressAuth, policy.EgressAuthRule{
				Destination: fmt.Sprintf("api-%d.example.com", i), AuthRef: "key",
				Methods: []string{"GET", "POST"}, Paths: []string{fmt.Sprintf("/v%d/**", i)},
			})
		}
		p, err := policy.Compile(b.Context(), doc, policy.Options{})
		if err != nil {
			b.Fatal(err)
		}
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			i, start := 0, cpu(b)
			for b.Loop() {
				i++
				d := p.Decide(context.Background(), policy.Input{
					Phase:       policy.PhaseRequest,
					Sandbox:     policy.Sandbox{Name: "demo", ID: "x", Session: "y", Tags: map[string]string{"team": "a"}},
					Destination: policy.Destination{Host: fmt.Sprintf("api-%d.example.com", i%n), Port: 443},
					Protocol:    policy.ProtocolTLS,
					Request:     &policy.Request{Method: "POST", Scheme: "https", Path: fmt.Sprintf("/v%d/chat/completions", i%n), Headers: []string{"Accept", "Content-Type", "User-Agent"}, Size: 100},
				})
				if d.Action != policy.Allow {
					b.Fatalf("%+v", d)
				}
			}
			b.ReportMetric(float64(cpu(b)-start)/float64(b.N), "cpu-ns/op")
		})
	}
}
