package auditlog_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"sallyport/audit/auditlog"
	"sallyport/internal/test/must"
)

// FuzzOpen: whatever a segment holds, Open succeeds, loses nothing of it, and
// what is appended then is read back under a number that no other event has.
func FuzzOpen(f *testing.F) {
	dir := f.TempDir()
	l, err := auditlog.Open(dir, auditlog.Options{})
	must.OK(f, err)
	for range 3 {
		must.OK(f, l.Append(f.Context(), event("m")))
	}
	l.Close()
	good, err := os.ReadFile(filepath.Join(dir, "00000000000000000001.jsonl"))
	must.OK(f, err)
	f.Add(good)
	f.Add(good[:len(good)-9])
	f.Add(append(bytes.Clone(good), 0, 0, 0))
	f.Add(bytes.ReplaceAll(good, []byte("2"), []byte("3")))
	f.Add([]byte(`{"metadata":{"sequence":18446744073709551615}}` + "\n"))
	f.Add([]byte("\n\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		dir := t.TempDir()
		path := filepath.Join(dir, "00000000000000000001.jsonl")
		must.OK(t, os.WriteFile(path, raw, 0o600))
		l, err := auditlog.Open(dir, auditlog.Options{})
		must.OK(t, err)
		defer l.Close()
		e := event("after")
		must.OK(t, l.Append(t.Context(), e))
		after, err := os.ReadFile(path)
		must.OK(t, err)
		var kept []byte
		if aside, _ := filepath.Glob(path + ".torn-*"); len(aside) == 1 {
			if kept, err = os.ReadFile(aside[0]); err != nil {
				t.Fatal(err)
			}
		}
		raw = bytes.TrimRight(raw, "\x00") // the writer's own
		if !bytes.HasSuffix(raw, kept) || !bytes.HasPrefix(after, raw[:len(raw)-len(kept)]) {
			t.Error("bytes were lost")
		}
		found := 0
		for got, err := range auditlog.Read(t.Context(), dir, auditlog.Query{}) {
			var damage *auditlog.DamageError
			if err != nil && !errors.As(err, &damage) {
				t.Fatal(err)
			}
			if err == nil && got.Metadata.Sequence == e.Metadata.Sequence {
				found++
				if got.ID() != e.ID() {
					t.Errorf("number %d is %s's", e.Metadata.Sequence, got.ID())
				}
			}
		}
		if found != 1 {
			t.Errorf("the appended event, number %d, is read %d times", e.Metadata.Sequence, found)
		}
	})
}

// FuzzLine: no event makes more than one line of printable text.
func FuzzLine(f *testing.F) {
	for _, events := range golden() {
		raw, err := json.Marshal(record(events))
		must.OK(f, err)
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var r auditlog.Record
		if json.Unmarshal(raw, &r) != nil {
			return
		}
		for _, c := range auditlog.Line(r) {
			if c < ' ' || c == 0x7f || c >= 0x80 && c < 0xa0 || c >= 0x202a && c <= 0x202e || c >= 0x2066 && c <= 0x2069 {
				t.Fatalf("%U in %q", c, auditlog.Line(r))
			}
		}
	})
}
