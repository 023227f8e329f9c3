package auditlog_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/internal/test/must"
)

func decision(message string) *audit.Event {
	e := event(message)
	e.Action = audit.ActionAllowed
	return e
}

func completion(of *audit.Event) *audit.Event {
	e := audit.New(audit.KindCompletion, audit.ClassHTTP, audit.HTTPActivity("GET"))
	e.Message, e.Metadata.CorrelationUID = of.Message, of.ID()
	return e
}

// show is "d" for a decision alone, "d+" for a pair, "+d" for a completion alone.
func show(r auditlog.Record) string {
	switch {
	case r.Decision == nil:
		return "+" + r.Completion.Message
	case r.Completion == nil:
		return r.Decision.Message
	}
	return r.Decision.Message + "+"
}

func TestPair(t *testing.T) {
	a, b, c := decision("a"), decision("b"), decision("c")
	denied := event("denied")
	denied.Action = audit.ActionDenied
	drop := audit.New(audit.KindDrop, audit.ClassNetwork, audit.NetworkRefuse)
	drop.Message = "drop"
	tests := []struct {
		name   string
		events []*audit.Event
		want   string
	}{
		{"nothing", nil, ""},
		{"pair", []*audit.Event{a, completion(a)}, "a+"},
		{"never completed", []*audit.Event{a}, "a"},
		{"interleaved", []*audit.Event{a, b, completion(b), completion(a)}, "a+ b+"},
		{"order of the decisions", []*audit.Event{a, denied, b, drop, completion(b), c, completion(a)}, "a+ denied b+ drop c"},
		{"without decision", []*audit.Event{completion(a), b, completion(b)}, "+a b+"},
		{"completed twice", []*audit.Event{a, completion(a), completion(a)}, "a+ +a"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			l := open(t, dir, auditlog.Options{})
			must.OK(t, l.Append(t.Context(), tt.events...))
			var got []string
			for r, err := range auditlog.Pair(t.Context(), dir, auditlog.Query{}, 0) {
				must.OK(t, err)
				got = append(got, show(r))
			}
			if s := strings.Join(got, " "); s != tt.want {
				t.Errorf("got %q, want %q", s, tt.want)
			}
		})
	}
}

func TestPairFollows(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, auditlog.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	out := make(chan string, 100)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for r, err := range auditlog.Pair(ctx, dir, auditlog.Query{Follow: true}, 2*time.Second) {
			if err != nil {
				out <- "! " + err.Error()
				continue
			}
			out <- show(r)
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	add := func(e *audit.Event) {
		t.Helper()
		must.OK(t, l.Append(t.Context(), e))
	}
	quick, slow := decision("quick"), decision("slow")
	add(quick)
	add(completion(quick))
	expect(t, out, "quick+")
	add(slow)
	expect(t, out, "slow") // alone, after a short wait
	add(completion(slow))
	expect(t, out, "slow+")
}

// TestPairStops: a consumer that has enough does not wait for the next event.
func TestPairStops(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, auditlog.Options{})
	appendAll(t, l, "a")
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range auditlog.Pair(context.Background(), dir, auditlog.Query{Follow: true}, time.Millisecond) {
			break
		}
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("Pair did not stop")
	}
}

// TestPairIsBounded: a log of decisions that are never completed streams.
func TestPairIsBounded(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, auditlog.Options{})
	const n = 25_000
	batch := make([]*audit.Event, n)
	for i := range batch {
		batch[i] = decision(fmt.Sprint(i))
	}
	must.OK(t, l.Append(t.Context(), batch...))
	i := 0
	for r, err := range auditlog.Pair(t.Context(), dir, auditlog.Query{}, 0) {
		if err != nil || show(r) != fmt.Sprint(i) {
			t.Fatalf("record %d = %q, %v", i, show(r), err)
		}
		i++
	}
	if i != n {
		t.Errorf("%d records, want %d", i, n)
	}
}
