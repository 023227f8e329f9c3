package auditlog_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/internal/test/must"
)

// To read from a number on, or the last event, costs no more where there is much before it:
// what is before it is not even looked at. The records read are the same.
func TestReadFromFarOn(t *testing.T) {
	const events = 6000
	dir := t.TempDir()
	l := open(t, dir, auditlog.Options{SegmentSize: 64 << 20})
	var group []*audit.Event
	for i := range events {
		e := event(fmt.Sprint(i))
		// Text that somebody chose is no number, before it or behind.
		e.HTTPRequest = &audit.HTTPRequest{Method: `"sequence":1 `}
		e.Detail = `"sequence":1 ` + strings.Repeat("x", rand.IntN(600))
		group = append(group, e)
	}
	must.OK(t, l.Append(context.Background(), group...))
	for range 50 {
		from := 1 + rand.Uint64N(events)
		want := fmt.Sprint(from - 1)
		for e, err := range auditlog.Read(t.Context(), dir, auditlog.Query{From: from}) {
			if err != nil || e.Message != want || e.Metadata.Sequence != from {
				t.Fatalf("from %d: got %v, %v", from, e, err)
			}
			break
		}
	}
	if got := collect(t, dir, auditlog.Query{From: events - 2}); got != "5997 5998 5999" {
		t.Errorf("the last ones: %s", got)
	}
	// The first event is damaged: only those who read it can tell.
	files, _ := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	edit(t, files[0], func(b []byte) []byte { b[0] = 'x'; return b })
	if got := collect(t, dir, auditlog.Query{}); !strings.HasPrefix(got, "! ") {
		t.Fatal("the control: the damage is not told")
	}
	for _, q := range []auditlog.Query{{From: events}, {Last: 1}} {
		if got := collect(t, dir, q); got != "5999" {
			t.Errorf("%+v: %s", q, got)
		}
	}
}
