package auditlog_test

import (
	"context"
	"testing"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/internal/test/must"
)

func sample() *audit.Event {
	e := audit.New(audit.KindDecision, audit.ClassHTTP, audit.HTTPActivity("POST"))
	e.StatusID, e.Action, e.Disposition = audit.StatusSuccess, audit.ActionAllowed, audit.DispositionAllowed
	e.Source = &audit.Endpoint{IP: "10.231.0.7"}
	e.Destination = &audit.Endpoint{Hostname: "api.example.test", Port: 443}
	e.Connection = &audit.Connection{ProtocolName: "tcp", ProtocolNum: 6, Direction: 2}
	e.HTTPRequest = &audit.HTTPRequest{Method: "POST", Version: "HTTP/1.1", Length: 1234,
		URL: &audit.URL{Scheme: "https", Hostname: "api.example.test", Port: 443, Path: "/v1/chat/completions"}}
	e.TLS = &audit.TLS{SNI: "api.example.test", Version: "1.3"}
	e.Rule = &audit.Rule{Name: "example", Type: "egressAuth"}
	e.Policy = &audit.Policy{Name: "sallyport", Version: "sha256:0123456789abcdef"}
	x := &e.Unmapped.Sallyport
	x.Sandbox, x.Phase, x.Decision = "demo", "request", "allow"
	x.SandboxID, x.Session = "0192f0c1-0000-7000-8000-000000000001", "0192f0c1-0000-7000-8000-000000000002"
	x.Credentials = []audit.CredentialUse{{Name: "example-key", Version: "3"}}
	x.Reason = "egressAuth rule example allows it"
	x.HeaderNames = []string{"Accept", "Content-Length", "Content-Type", "User-Agent"}
	return e
}

func BenchmarkEncode(b *testing.B) {
	e := sample()
	var line []byte
	b.ReportAllocs()
	for b.Loop() {
		line = auditlog.Encode(line[:0], e)
	}
}

// BenchmarkAppend is a gateway with 32 requests at a time, each waiting for its
// own event to be durable.
func BenchmarkAppend(b *testing.B) {
	l, err := auditlog.Open(b.TempDir(), auditlog.Options{})
	must.OK(b, err)
	defer l.Close()
	e := sample()
	b.ReportAllocs()
	b.SetParallelism(16)
	b.RunParallel(func(pb *testing.PB) {
		own := *e
		for pb.Next() {
			if err := l.Append(context.Background(), &own); err != nil {
				b.Error(err)
			}
		}
	})
	s := l.Stats()
	b.ReportMetric(float64(s.Events)/float64(s.Syncs), "events/sync")
	b.ReportMetric(float64(s.Events)/b.Elapsed().Seconds(), "events/s")
}
