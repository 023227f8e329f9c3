package audit_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"sallyport/audit"
	"sallyport/internal/test/must"
)

// To read from a number on, or the last event, costs no more where there is much before
// it: what is before it is not even looked at. What is read is the same.
func TestReadFromFarOn(t *testing.T) {
	const events = 6000
	dir := t.TempDir()
	l := open(t, dir, audit.Options{SegmentSize: 64 << 20})
	var group []*audit.Event
	for i := range events {
		e := event(fmt.Sprint(i))
		// What somebody chose is no number, before it or behind.
		e.HTTPRequest = &audit.HTTPRequest{Method: `"sequence":1 `}
		e.Detail = `"sequence":1 ` + strings.Repeat("x", rand.IntN(600))
		group = append(group, e)
	}
	must.OK(t, l.Append(context.Background(), group...))
	for range 50 {
		from := 1 + rand.Uint64N(events)
		want := fmt.Sprint(from - 1)
		for e, err := range audit.Read(t.Context(), dir, audit.Query{From: from}) {
			if err != nil || e.Message != want || e.Metadata.Sequence != from {
				t.Fatalf("from %d: got %v, %v", from, e, err)
			}
			break
		}
	}
	if got := collect(t, dir, audit.Query{From: events - 2}); got != "5997 5998 5999" {
		t.Errorf("the last ones: %s", got)
	}
	// The first event is damaged: only those who read it can tell.
	files, _ := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	edit(t, files[0], func(b []byte) []byte { b[0] = 'x'; return b })
	if got := collect(t, dir, audit.Query{}); !strings.HasPrefix(got, "! ") {
		t.Fatal("the control: the damage is not told")
	}
	for _, q := range []audit.Query{{From: events}, {Last: 1}} {
		if got := collect(t, dir, q); got != "5999" {
			t.Errorf("%+v: %s", q, got)
		}
	}
}
