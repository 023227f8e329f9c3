package auditlog_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/internal/test/must"
)

// A process that may rewrite the last segment cannot use numbers up: a line says one that is
// out of reach, once at the end and once in the middle, in which a reader looks for numbers.
func TestNumberOutOfReach(t *testing.T) {
	const far = 3_000_000
	for _, middle := range []bool{false, true} {
		t.Run(fmt.Sprintf("middle=%v", middle), func(t *testing.T) {
			dir := t.TempDir()
			l := open(t, dir, auditlog.Options{})
			const n = 3000
			var all []*audit.Event
			for range n {
				all = append(all, event("usual"))
			}
			must.OK(t, l.Append(t.Context(), all...))
			l.Close()
			edit(t, filepath.Join(dir, fmt.Sprintf("%020d.jsonl", 1)), func(b []byte) []byte {
				lines := bytes.SplitAfter(b, []byte("\n"))
				number := func(line []byte, from, to int) []byte {
					return bytes.Replace(line, fmt.Appendf(nil, `"sequence":%d,`, from), fmt.Appendf(nil, `"sequence":%d,`, to), 1)
				}
				if !middle {
					return append(b, number(lines[n-1], n, far)...)
				}
				for i := n / 3; i < n; i++ {
					lines[i] = number(lines[i], i+1, far+i)
				}
				return bytes.Join(lines, nil)
			})
			for _, q := range []auditlog.Query{{}, {From: 2}, {Last: 1}, {From: far}} {
				for e, err := range auditlog.Read(t.Context(), dir, q) {
					if err == nil && e.Metadata.Sequence > n {
						t.Fatalf("%+v reads event %d", q, e.Metadata.Sequence)
					}
				}
			}
			l = open(t, dir, auditlog.Options{})
			defer l.Close()
			e := event("after")
			must.OK(t, l.Append(t.Context(), e))
			if e.Metadata.Sequence <= n || e.Metadata.Sequence > n+10 {
				t.Errorf("the next event is number %d", e.Metadata.Sequence)
			}
			if _, err := os.Stat(filepath.Join(dir, fmt.Sprintf("%020d.jsonl", 1))); err != nil {
				t.Error(err)
			}
		})
	}
}

// Nor can it with lines that are none of events.
func TestLinesOutOfReach(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, auditlog.Options{})
	must.OK(t, l.Append(t.Context(), event("usual")))
	l.Close()
	edit(t, filepath.Join(dir, fmt.Sprintf("%020d.jsonl", 1)), func(b []byte) []byte {
		return append(b, bytes.Repeat([]byte("\n"), 1<<20)...)
	})
	l = open(t, dir, auditlog.Options{})
	defer l.Close()
	e := event("after")
	must.OK(t, l.Append(t.Context(), e))
	if e.Metadata.Sequence > 1<<17 {
		t.Errorf("the next event is number %d", e.Metadata.Sequence)
	}
}
