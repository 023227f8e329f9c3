package audit_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"sallyport/audit"
	"sallyport/internal/test/must"
)

func TestExchange(t *testing.T) {
	x := new(audit.Exchange)
	for round := range 2 { // an exchange can be used again
		before := time.Now().UnixMilli()
		d := x.Decide(audit.ClassHTTP, audit.HTTPActivity("GET"))
		if e := audit.New(audit.KindDecision, audit.ClassHTTP, audit.HTTPActivity("GET")); true {
			e.Metadata.UID, e.Time = d.Metadata.UID, d.Time
			if diff := cmp.Diff(e, d); diff != "" {
				t.Errorf("round %d: a decision is not what New makes (-want +got):\n%s", round, diff)
			}
		}
		d.Action, d.Disposition = audit.ActionAllowed, audit.DispositionAllowed
		d.Message, d.Detail = "the decision's own", "and this"
		d.Source = &audit.Endpoint{IP: "10.231.0.7"}
		x.Destination = audit.Endpoint{Hostname: "api.example.test", Port: 443}
		x.URL = audit.URL{Scheme: "https", Hostname: "api.example.test", Path: "/"}
		x.Request = audit.HTTPRequest{Method: "GET", URL: &x.URL}
		x.TLS, x.Rule, x.Policy = audit.TLS{SNI: "api.example.test"}, audit.Rule{Name: "example"}, audit.Policy{Version: "1"}
		d.Destination, d.HTTPRequest, d.TLS, d.Rule, d.Policy = &x.Destination, &x.Request, &x.TLS, &x.Rule, &x.Policy
		d.Unmapped.Sallyport = audit.Extension{
			Kind: audit.KindDecision, Sandbox: "demo", SandboxID: "1", Session: "2", Tags: map[string]string{"team": "support"},
			Phase: "request", Decision: "allow", Reason: "the decision's own", HeaderNames: []string{"Accept"}, QueryKeys: []string{"q"},
			Credentials: []audit.CredentialUse{{Name: "example-key"}},
		}
		c := x.Complete(audit.HTTPActivity("GET"))
		if c.ID() == d.ID() || c.Time < d.Time || c.Time > time.Now().UnixMilli() || d.Time < before {
			t.Errorf("round %d: decision %s of %d, completion %s of %d", round, d.ID(), d.Time, c.ID(), c.Time)
		}
		want := audit.New(audit.KindCompletion, audit.ClassHTTP, audit.HTTPActivity("GET"))
		want.Metadata.UID, want.Metadata.CorrelationUID = c.ID(), d.ID()
		want.Time, want.StartTime, want.Duration = c.Time, d.Time, c.Time-d.Time
		want.StatusID, want.Action, want.Disposition = audit.StatusSuccess, d.Action, d.Disposition
		want.Source, want.Destination, want.HTTPRequest = d.Source, d.Destination, d.HTTPRequest
		want.TLS, want.Rule, want.Policy = d.TLS, d.Rule, d.Policy
		want.Unmapped.Sallyport = audit.Extension{
			Kind: audit.KindCompletion, Sandbox: "demo", SandboxID: "1", Session: "2", Tags: map[string]string{"team": "support"},
			Phase: "request", Decision: "allow",
		}
		if diff := cmp.Diff(want, c); diff != "" {
			t.Errorf("round %d: completion (-want +got):\n%s", round, diff)
		}
	}
}

// TestLogLetsGo writes one exchange's events over and over: the log has each as
// it was when it was handed over.
func TestLogLetsGo(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, audit.Options{})
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			x := new(audit.Exchange)
			for i := range 50 {
				d := x.Decide(audit.ClassHTTP, 3)
				d.Message, d.Action = fmt.Sprintf("%d/%d", w, i), audit.ActionAllowed
				x.Rule.Name = d.Message
				d.Rule = &x.Rule
				if err := l.Append(t.Context(), d); err != nil {
					t.Error(err)
				}
				c := x.Complete(3)
				c.Message = d.Message
				if err := l.Enqueue(c); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	must.OK(t, l.Close())
	seen := map[string]int{}
	for r, err := range audit.Pair(t.Context(), dir, audit.Query{}, 0) {
		must.OK(t, err)
		if r.Decision == nil || r.Completion == nil || r.Decision.Message != r.Completion.Message ||
			r.Decision.Rule.Name != r.Decision.Message || r.Completion.Rule.Name != r.Decision.Message {
			t.Fatalf("a record of parts that do not belong together: %s", audit.Line(r))
		}
		seen[r.Decision.Message]++
	}
	if len(seen) != 400 {
		t.Errorf("%d records, want 400", len(seen))
	}
}

// TestIDs: identifiers are UUIDs of version 7, each of them once, in the order
// of time, and differ in more than time.
func TestIDs(t *testing.T) {
	const each = 2000
	ids := make([][]string, 4)
	var wg sync.WaitGroup
	for w := range ids {
		wg.Go(func() {
			for range each {
				ids[w] = append(ids[w], audit.New(audit.KindDecision, audit.ClassHTTP, 3).ID())
			}
		})
	}
	wg.Wait()
	all, tails := map[string]bool{}, map[string]bool{}
	for _, list := range ids {
		for i, id := range list {
			if i > 0 && id <= list[i-1] {
				t.Fatalf("%s after %s", id, list[i-1])
			}
			u, err := uuid.Parse(id)
			if err != nil || u.Version() != 7 || u.Variant() != uuid.RFC4122 {
				t.Fatalf("%s is version %d, variant %v: %v", id, u.Version(), u.Variant(), err)
			}
			all[id], tails[string(u[8:])] = true, true
		}
	}
	if n := each * len(ids); len(all) != n || len(tails) != n {
		t.Errorf("%d of %d identifiers differ, %d in what is random", len(all), n, len(tails))
	}
}
