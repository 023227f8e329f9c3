package auditlog_test

import (
	"bytes"
	"fmt"
	"path/filepath"
	"testing"

	"sallyport/audit/auditlog"
	"sallyport/internal/test/must"
)

// A line with zeros may be one that is just being written, for which a reader waits. Lines
// that never become events do not add up to a reader that never ends.
func TestManyHalfLines(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, auditlog.Options{})
	say(t, l, "one")
	must.OK(t, l.Close())
	const n = 10_000 // waiting for each, it would take an hour
	edit(t, filepath.Join(dir, fmt.Sprintf("%020d.jsonl", 1)), func(b []byte) []byte {
		return append(b, bytes.Repeat([]byte("\x00\n"), n)...)
	})
	// All of them are one place of damage.
	if got := collect(t, dir, auditlog.Query{}); got != "one !" {
		t.Errorf("got %q", got)
	}
}
