package auditlog_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/internal/test/must"
)

// TestEntries: an entry is its line, byte by byte, and what Read makes of it.
func TestEntries(t *testing.T) {
	dir, l := story(t)
	l.Close()
	var lines []byte
	files, _ := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	for _, f := range files {
		b, err := os.ReadFile(f)
		must.OK(t, err)
		lines = append(lines, bytes.TrimRight(b, "\x00")...)
	}
	var events []*audit.Event
	for e, err := range auditlog.Read(t.Context(), dir, auditlog.Query{}) {
		must.OK(t, err)
		events = append(events, e)
	}
	var got []byte
	n := 0
	for e, err := range auditlog.Entries(t.Context(), dir, auditlog.Query{}) {
		must.OK(t, err)
		got = append(append(got, e.JSON...), '\n')
		if e.Number != uint64(n+1) {
			t.Errorf("entry %d has the number %d", n+1, e.Number)
		}
		if diff := cmp.Diff(events[n], e.Event); diff != "" {
			t.Error(diff)
		}
		n++
	}
	if n != 10 || !bytes.Equal(got, lines) {
		t.Errorf("%d entries, of the lines\n%s\nnot\n%s", n, got, lines)
	}
}

// TestEntriesOfAnOlderLog: a line in another order is given as it is, and damage in place
// of what cannot be read.
func TestEntriesOfAnOlderLog(t *testing.T) {
	dir := t.TempDir()
	const old = `{"metadata":{"version":"1.5.0","uid":"a","sequence":1},"time":1,"category_uid":4,"class_uid":4001}`
	const unread = `{"metadata":{"version":"1.5.0","uid":"b","sequence":2},"time":"x"}`
	err := os.WriteFile(filepath.Join(dir, "00000000000000000001.jsonl"), []byte(old+"\n"+unread+"\n"), 0o600)
	must.OK(t, err)
	l := open(t, dir, auditlog.Options{})
	e := event("new")
	must.OK(t, l.Append(t.Context(), e))
	var got []string
	for e, err := range auditlog.Entries(t.Context(), dir, auditlog.Query{}) {
		var damage *auditlog.DamageError
		switch {
		case errors.As(err, &damage):
			got = append(got, "damage")
		case err != nil:
			t.Fatal(err)
		case e.Event.Message == "new" && e.Number == 3:
			got = append(got, "new")
		default:
			got = append(got, string(e.JSON))
		}
	}
	if diff := cmp.Diff([]string{old, "damage", "new"}, got); diff != "" {
		t.Error(diff)
	}
}
