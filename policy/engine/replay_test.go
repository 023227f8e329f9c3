package engine_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sallyport/internal/test/must"
	"sallyport/policy"
	"sallyport/policy/engine"
	"sallyport/policy/learn"
	"sallyport/policy/replay"
)

// as is what the audit has of a decision that p made.
func as(t testing.TB, p *engine.Policy, id int, in policy.Input, at time.Time) policy.Recorded {
	t.Helper()
	d := p.DecideAt(t.Context(), in, at)
	r := policy.Recorded{ID: fmt.Sprintf("%08d", id), At: at, Input: in, Action: d.Action, Rule: d.Rule, RuleType: d.RuleType, Reason: d.Reason, Revision: d.Revision, Count: 1}
	for _, i := range d.Inject {
		r.Credentials = append(r.Credentials, i.Credential)
	}
	return r
}

func each(records []policy.Recorded) iter.Seq2[policy.Recorded, error] {
	return func(yield func(policy.Recorded, error) bool) {
		for _, r := range records {
			if !yield(r, nil) {
				return
			}
		}
	}
}

// brief is what a test says of a group.
func brief(r replay.Report) (list []string) {
	for _, g := range r.Groups {
		list = append(list, fmt.Sprintf("%v %d %s %s%s %s by %q -> %s by %q %v", g.Changes, g.Count, g.Method, g.Destination, g.Path, g.Was.Action, g.Was.Rule, g.Is.Action, g.Is.Rule, g.Examples))
	}
	return list
}

func TestReplay(t *testing.T) {
	before := compiled(t, policy.Document{
		Credentials: []policy.Credential{{Name: "key"}},
		Egress: []policy.EgressRule{
			{Name: "docs", Destination: "docs.example.com"},
			{Name: "files", Destination: "files.example.com", Methods: []string{"GET"}},
		},
		EgressAuth: []policy.EgressAuthRule{{Name: "api", Destination: "api.example.com", AuthRef: "key"}},
	})
	after := compiled(t, policy.Document{
		Credentials: []policy.Credential{{Name: "key"}},
		Egress: []policy.EgressRule{
			{Name: "papers", Destination: "docs.example.com"},                        // renamed
			{Name: "files", Destination: "files.example.com"},                        // every method
			{Name: "api", Destination: "api.example.com", Paths: []string{"/v1/**"}}, // without the credential
			{Name: "no-admin", Destination: "api.example.com", Paths: []string{"/admin/**"}, Action: policy.Deny},
			{Name: "ask", Destination: "api.example.com", Paths: []string{"/ask"}, Action: policy.Approve},
		},
	})
	at := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	var records []policy.Recorded
	add := func(in policy.Input) {
		records = append(records, as(t, before, len(records), in, at.Add(time.Duration(len(records))*time.Second)))
	}
	add(request("GET", "docs.example.com", "/a"))                                                           // 0
	add(request("PUT", "files.example.com", "/1234/x"))                                                     // 1
	add(request("PUT", "files.example.com", "/5678/x"))                                                     // 2
	add(request("GET", "files.example.com", "/5678/x"))                                                     // 3: the same
	add(request("GET", "api.example.com", "/v1/models"))                                                    // 4
	add(request("GET", "api.example.com", "/admin/users"))                                                  // 5
	add(request("GET", "api.example.com", "/ask"))                                                          // 6
	add(request("GET", "nowhere.example.com", "/"))                                                         // 7: the same
	add(policy.Input{Phase: policy.PhaseDNS, Destination: policy.Destination{Host: "nowhere.example.com"}}) // 8: the same
	for i, u := range []policy.Unfit{policy.UnfitFloor, policy.UnfitClipped, policy.UnfitFloor} {
		r := as(t, before, 100+i, request("GET", "docs.example.com", "/a"), at)
		r.Unfit = u
		records = append(records, r)
	}
	folded := as(t, before, 200, request("POST", "files.example.com", "/b"), at)
	folded.Count = 5 // of which one is known
	records = append(records, folded)

	// In whichever order they come.
	for range 3 {
		got, err := replay.Run(t.Context(), after, each(records))
		must.OK(t, err)
		want := []string{
			`[allowed] 2 PUT files.example.com:443/*/x deny by "" -> allow by "files" [00000001 00000002]`,
			`[allowed] 1 POST files.example.com:443/b deny by "" -> allow by "files" [00000200]`,
			`[denied] 1 GET api.example.com:443/admin/users allow by "api" -> deny by "no-admin" [00000005]`,
			`[approval] 1 GET api.example.com:443/ask allow by "api" -> approve by "ask" [00000006]`,
			`[uninjected] 1 GET api.example.com:443/v1/models allow by "api" -> allow by "api" [00000004]`,
			`[rule] 1 GET docs.example.com:443/a allow by "docs" -> allow by "papers" [00000000]`,
		}
		if diff := cmp.Diff(brief(got), want); diff != "" {
			t.Error(diff)
		}
		if got.Decisions != 17 || got.Same != 3 || got.Changed != 7 ||
			!cmp.Equal(got.Unfit, map[policy.Unfit]int{policy.UnfitFloor: 2, policy.UnfitClipped: 1, policy.UnfitFolded: 4}) {
			t.Errorf("got %d decisions, %d the same, %d changed, %v unfit", got.Decisions, got.Same, got.Changed, got.Unfit)
		}
		if !got.First.Equal(at) || !got.Last.Equal(at.Add(8*time.Second)) || got.Revision != after.Revision() {
			t.Errorf("from %v to %v by %s", got.First, got.Last, got.Revision)
		}
		slices.Reverse(records)
	}
	// The other way round a credential would go along.
	var second []policy.Recorded
	second = append(second, as(t, after, 1, request("GET", "api.example.com", "/v1/models"), at))
	got, err := replay.Run(t.Context(), before, each(second))
	if err != nil || got.ByChange[replay.NewlyInjected] != 1 || len(got.Groups) != 1 || !slices.Equal(got.Groups[0].Is.Credentials, []string{"key"}) {
		t.Errorf("got %+v, %v", got, err)
	}
	// An event that the log cannot give ends it.
	broken := errors.New("broken")
	if _, err := replay.Run(t.Context(), before, func(yield func(policy.Recorded, error) bool) { yield(policy.Recorded{}, broken) }); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
}

// A Rego that reads the clock reads the time that a decision was made at.
func TestReplayIsAtTheRecordedTime(t *testing.T) {
	p := compiled(t, policy.Document{
		Egress: []policy.EgressRule{{Destination: "docs.example.com"}},
		Policy: policy.Source{Dir: folder(t, `package sallyport.team.hours

deny contains "outside office hours" if {
	[hour, _, _] := time.clock(time.now_ns())
	hour >= 18
}
`)},
	})
	day := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	in := request("GET", "docs.example.com", "/")
	if d := p.DecideAt(t.Context(), in, day); d.Action != policy.Allow {
		t.Fatalf("at noon: %+v", d)
	}
	records := []policy.Recorded{as(t, p, 1, in, day), as(t, p, 2, in, day.Add(8*time.Hour))}
	if records[1].Action != policy.Deny {
		t.Fatalf("at eight: %+v", records[1])
	}
	got, err := replay.Run(t.Context(), p, each(records))
	if err != nil || got.Same != 2 {
		t.Errorf("got %+v, %v", got, err)
	}
}

// The parts of a body that the policy has to see are not recorded.
func TestReplayNeedsBodies(t *testing.T) {
	p := compiled(t, policy.Document{
		Egress: []policy.EgressRule{
			{Name: "reading", Destination: "docs.example.com", Methods: []string{"GET"}},
			{Name: "writing", Destination: "docs.example.com", Methods: []string{"POST"}, Body: &policy.BodyView{JSON: 100}},
		},
		Policy: policy.Source{Dir: folder(t, "package sallyport.team.x\n\ndeny contains \"no\" if input.request.body.json.no\n")},
	})
	with, without := request("POST", "docs.example.com", "/"), request("GET", "docs.example.com", "/")
	sized := func(n int64) policy.Input {
		in := request("POST", "docs.example.com", "/")
		q := *in.Request
		q.Size, in.Request = n, &q
		return in
	}
	// Of none, and of one that is too long, it is known that no rule can see them.
	records := []policy.Recorded{as(t, p, 1, with, time.Now()), as(t, p, 2, without, time.Now()), as(t, p, 3, sized(0), time.Now()), as(t, p, 4, sized(101), time.Now())}
	for i := range 2000 { // on several processors
		r := as(t, p, 5+i, sized(100), time.Now())
		r.Action, r.Rule, r.RuleType = policy.Allow, "writing", "egress"
		records = append(records, r)
	}
	got, err := replay.Run(t.Context(), p, each(records))
	want := []replay.Unseen{{Rule: "writing", RuleType: "egress", Count: 2001, Examples: []string{records[0].ID, records[4].ID, records[5].ID}}}
	if err != nil || got.Same != 3 || got.Unfit[policy.UnfitBody] != 2001 || got.Changed != 0 {
		t.Errorf("got %+v, %v", got, err)
	}
	if diff := cmp.Diff(got.Unseen, want); diff != "" {
		t.Error(diff)
	}
}

func TestShape(t *testing.T) {
	for path, want := range map[string]string{
		"/":                    "/",
		"/repos/x/y/issues/12": "/repos/x/y/issues/*",
		"/v1/models":           "/v1/models",
		"/u/0192f0c1-7a00-7000-8000-000000000004/": "/u/*/",
		"/commit/deadbeef1":                        "/commit/*",
		"/deadbeef":                                "/deadbeef",
		"/blobs/sha256:0123456789012345678901234567890123456789": "/blobs/sha256:0123456789012345678901234567890123456789",
		"/t/eyJhbGciOiJIUzI1NiJ9abc":                             "/t/*",
		"/a/b/c/d/e/f/g/h/i/j":                                   "/a/b/c/d/e/f/g/h/**",
		"/100%/x":                                                "/*/x",
		"/a*b":                                                   "/*",
	} {
		if got := learn.PathShape(path); got != want {
			t.Errorf("%s: got %s, want %s", path, got, want)
		}
	}
}

// BenchmarkReplay is replaying what a thousand sandboxes did: mostly requests that
// were made before, some that were not.
func BenchmarkReplay(b *testing.B) {
	doc := many(1000)
	doc.Policy.Cache = new(1 << 16)
	p := compiled(b, doc)
	records := make([]policy.Recorded, 10_000)
	for i := range records {
		in := ask(i % 1000)
		if i%4 == 0 {
			in.Request.Path += fmt.Sprintf("/%d", i)
		}
		records[i] = as(b, p, i, in, time.Now())
	}
	b.ReportAllocs()
	n := 0
	began := time.Now()
	for b.Loop() {
		if _, err := replay.Run(b.Context(), p, each(records)); err != nil {
			b.Fatal(err)
		}
		n += len(records)
	}
	b.ReportMetric(float64(n)/time.Since(began).Seconds(), "decisions/s")
}

func compiled(t testing.TB, doc policy.Document) *engine.Policy {
	t.Helper()
	p, err := engine.Compile(context.Background(), doc, engine.Options{Timeout: 5 * time.Second})
	must.OK(t, err)
	return p
}

// folder holds a team's Rego.
func folder(t testing.TB, rego string) string {
	t.Helper()
	dir := t.TempDir()
	must.OK(t, os.WriteFile(filepath.Join(dir, "team.rego"), []byte(rego), 0o600))
	return dir
}
