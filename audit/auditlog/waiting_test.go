package auditlog_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/internal/test/must"
)

// Waiting agrees with what a reader of the files counts, wherever it begins.
func TestWaiting(t *testing.T) {
	dir := t.TempDir()
	l, err := auditlog.Open(dir, auditlog.Options{SegmentSize: 300 << 10})
	must.OK(t, err)
	defer l.Close()
	if got, err := auditlog.Waiting(dir, 0, 7); err != nil || got[0] != (auditlog.Backlog{}) || got[1] != got[0] {
		t.Fatalf("an empty log: %+v, %v", got, err)
	}
	const n = 2000
	for range n / 20 {
		var events []*audit.Event
		for range 20 {
			e := audit.New(audit.KindDecision, audit.ClassHTTP, 3)
			e.Message = strings.Repeat("x", 300)
			events = append(events, e)
		}
		must.OK(t, l.Append(t.Context(), events...))
	}
	files, err := filepath.Glob(filepath.Join(dir, "0*.jsonl"))
	if err != nil || len(files) < 3 {
		t.Fatalf("%q, %v", files, err)
	}
	var ends []int64 // of each record, counted over all files
	at := int64(0)
	for _, f := range files {
		text, err := os.ReadFile(f)
		must.OK(t, err)
		for line := range strings.Lines(strings.TrimRight(string(text), "\x00")) {
			at += int64(len(line))
			ends = append(ends, at)
		}
	}
	if len(ends) != n {
		t.Fatalf("%d records", len(ends))
	}
	var after []uint64
	for i := uint64(1); i <= n+1; i += 13 {
		after = append(after, i)
	}
	after = append(after, 0, n-1, n, n+1)
	got, err := auditlog.Waiting(dir, after...)
	must.OK(t, err)
	for i, a := range after {
		want := auditlog.Backlog{}
		switch {
		case a == 0:
			want = auditlog.Backlog{Records: n, Bytes: at}
		case a < n:
			want = auditlog.Backlog{Records: n - a, Bytes: at - ends[a-1]}
		}
		if got[i] != want {
			t.Errorf("after %d: got %+v, want %+v", a, got[i], want)
		}
	}
	must.OK(t, os.Remove(files[0]))
	if got, err := auditlog.Waiting(dir, 0); err != nil || got[0].Records >= n || got[0].Bytes >= at {
		t.Errorf("without the first file: %+v, %v", got, err)
	}
}
