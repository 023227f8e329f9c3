package audit_test

import (
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"sallyport/audit"
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
