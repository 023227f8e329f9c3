package tree_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/audit/encoding"
	"sallyport/audit/tree"
)

// Each byte of a closed log is changed in turn, in one bit of it; without SALLYPORT_SOAK,
// each third one.
func TestEachByte(t *testing.T) {
	step := 3
	if os.Getenv("SALLYPORT_SOAK") != "" {
		step = 1
	}
	s := closed(t, 2)
	whole(t, s.verify(t), len(s.records(t)))
	n := 0
	for _, path := range s.segments(t) {
		right, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(right); i += step {
			wrong := bytes.Clone(right)
			wrong[i] ^= 1 << (i % 8)
			if err := os.WriteFile(path, wrong, 0o600); err != nil {
				t.Fatal(err)
			}
			if r := s.verify(t); len(r.Findings) == 0 {
				from := max(0, i-40)
				t.Errorf("byte %d, from %q to %q, was not found", i, right[from:i+1], wrong[from:i+1])
			}
			// By the public key alone, nothing is said to be anchored that is not. The
			// last record proves itself.
			r := s.verifyExport(t, string(wrong), 1, nil)
			if right[i] != '\n' && len(r.Findings) == 0 && !slices.ContainsFunc(r.Ranges, func(g tree.Range) bool { return g.Anchor == tree.ByNothing }) {
				from := max(0, i-40)
				t.Errorf("byte %d of an export, from %q to %q, was not found", i, right[from:i+1], wrong[from:i+1])
			}
			n += step
		}
		if err := os.WriteFile(path, right, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if n < 2000 {
		t.Errorf("only %d bytes", n)
	}
}

// Lines of a closed log are changed, with the file of hashes there, and without it.
func TestLines(t *testing.T) {
	swap := func(l []string, i int) []string { l[i], l[i+1] = l[i+1], l[i]; return l }
	tests := []struct {
		name string
		do   func(l []string) []string
		want tree.Kind
	}{
		{"changed", func(l []string) []string { l[2] = strings.Replace(l[2], "request 1", "request 7", 1); return l }, tree.Changed},
		{"a member more", func(l []string) []string { l[3] = strings.Replace(l[3], `{`, `{"a":1,`, 1); return l }, tree.Changed},
		{"a space more", func(l []string) []string { l[3] = strings.Replace(l[3], `:`, `: `, 1); return l }, tree.Changed},
		{"removed", func(l []string) []string { return slices.Delete(l, 3, 4) }, tree.Missing},
		{"the first removed", func(l []string) []string { return l[1:] }, tree.Missing},
		{"swapped", func(l []string) []string { return swap(l, 3) }, tree.Misplaced},
		{"twice", func(l []string) []string { return slices.Insert(l, 3, l[2]) }, tree.Misplaced},
		{"inserted", func(l []string) []string { return slices.Insert(l, 3, strings.Replace(l[2], "request", "x", 1)) }, tree.Misplaced},
		{"the last removed", func(l []string) []string { return l[:len(l)-1] }, tree.Truncated},
		{"the end removed", func(l []string) []string { return l[:4] }, tree.Truncated},
		{"everything removed", func(l []string) []string { return nil }, tree.Truncated},
	}
	for _, tt := range tests {
		for _, hashes := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/hashes=%v", tt.name, hashes), func(t *testing.T) {
				s := closed(t, 7)
				changed := strings.Join(append(tt.do(s.records(t)), ""), "\n")
				for _, path := range s.segments(t)[1:] {
					if err := os.Remove(path); err != nil {
						t.Fatal(err)
					}
				}
				if err := os.WriteFile(s.segments(t)[0], []byte(changed), 0o600); err != nil {
					t.Fatal(err)
				}
				if !hashes {
					if err := os.Remove(filepath.Join(tree.Dir(s.dir), "hashes")); err != nil {
						t.Fatal(err)
					}
				}
				r := s.verify(t)
				if !found(r, tt.want) {
					t.Errorf("no finding %q: %s", tt.want, r)
				}
			})
		}
	}
}

// A changed record is named where the file of hashes is there, and its neighbours are
// anchored all the same.
func TestNamed(t *testing.T) {
	s := closed(t, 20)
	for _, path := range s.segments(t) {
		b, _ := os.ReadFile(path)
		if err := os.WriteFile(path, bytes.Replace(b, []byte("request 9 "), []byte("request 8 "), 1), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r := s.verify(t)
	if len(r.Findings) != 1 || r.Findings[0].First != 19 || r.Findings[0].Last != 19 || r.Findings[0].Kind != tree.Changed {
		t.Errorf("findings: %v", r.Findings)
	}
	want := []tree.Range{{1, 16, tree.ByCheckpoint}, {17, 24, tree.ByNothing}, {25, uint64(len(s.records(t))), tree.ByCheckpoint}}
	if !slices.Equal(r.Ranges, want) {
		t.Errorf("ranges: %v, want %v", r.Ranges, want)
	}
}

// export writes records as a SIEM gives them.
func export(records []string) string { return strings.Join(records, "\n") + "\n" }

func (s *sealed) verifyExport(t testing.TB, text string, first uint64, outside iter.Seq2[*tree.Checkpoint, error]) *tree.Report {
	t.Helper()
	r, err := tree.VerifyExport(t.Context(), strings.NewReader(text), s.publicKey(t), first, outside, "")
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// outside are the checkpoints of an export.
func (s *sealed) outside(t testing.TB, text string) iter.Seq2[*tree.Checkpoint, error] {
	return tree.Checkpoints(strings.NewReader(text), s.publicKey(t))
}

// Each record of an exported copy is changed in turn.
func TestEachExportedRecord(t *testing.T) {
	s := closed(t, 12)
	records := s.records(t)
	whole(t, s.verifyExport(t, export(records), 0, nil), len(records))
	last := records[len(records)-1:]
	wrong := map[string]func(l []string, i int) []string{
		"change": func(l []string, i int) []string {
			l[i] = strings.Replace(l[i], `"severity_id":1`, `"severity_id":3`, 1)
			return l
		},
		"remove": func(l []string, i int) []string { return slices.Delete(l, i, i+1) },
		"insert": func(l []string, i int) []string {
			return slices.Insert(l, i, strings.Replace(l[i], `"severity_id":1`, `"severity_id":3`, 1))
		},
		"exchange": func(l []string, i int) []string { // the numbers of two
			j := (i + 1) % len(l)
			a, b := fmt.Sprintf(`"sequence":%d,`, i+1), fmt.Sprintf(`"sequence":%d,`, j+1)
			l[i], l[j] = strings.Replace(l[i], a, b, 1), strings.Replace(l[j], b, a, 1)
			return l
		},
	}
	for name, do := range wrong {
		for i := range records {
			r := s.verifyExport(t, export(do(slices.Clone(records), i)), 1, s.outside(t, export(last)))
			if len(r.Findings) == 0 {
				t.Errorf("%s of record %d was not found", name, i+1)
			}
		}
	}
	// These an export may have, and they are told.
	for i := range records {
		twice := s.verifyExport(t, export(slices.Insert(slices.Clone(records), i, records[i])), 0, nil)
		moved := slices.Clone(records)
		j := (i + 1) % len(moved)
		moved[i], moved[j] = moved[j], moved[i]
		swapped := s.verifyExport(t, export(moved), 0, nil)
		whole(t, twice, len(records))
		whole(t, swapped, len(records))
		if twice.Duplicates != 1 || swapped.Unordered == 0 {
			t.Errorf("record %d: %d duplicates, %d not in order", i+1, twice.Duplicates, swapped.Unordered)
		}
	}
}

// A part of the log is checked from its first checkpoint on, without what is before it.
func TestPart(t *testing.T) {
	s := closed(t, 40)
	records := s.records(t)
	part := records[60:]
	r := s.verifyExport(t, export(part), 0, nil)
	if len(r.Findings) > 0 || len(r.Ranges) == 0 {
		t.Fatal(r)
	}
	// A change of an anchored record is found, one of a record that is not anchored is not.
	for i := range part {
		changed := slices.Clone(part)
		changed[i] = strings.Replace(changed[i], `"severity_id":1`, `"severity_id":3`, 1)
		number := uint64(61 + i)
		anchored := slices.ContainsFunc(r.Ranges, func(g tree.Range) bool {
			return g.Anchor != tree.ByNothing && g.First <= number && number <= g.Last
		})
		after := s.verifyExport(t, export(changed), 0, nil)
		if anchored != (len(after.Findings) > 0) {
			t.Errorf("record %d, anchored %v, changed: %s", number, anchored, after)
		}
	}
}

// Two logs were written with one key: a copy of the data directory was used.
func TestFork(t *testing.T) {
	root := tempDir(t)
	a := open(t, root)
	a.exchanges(t, 5)
	a.end(t)
	copied := tempDir(t)
	if err := os.CopyFS(copied, os.DirFS(root)); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(copied, "key"), 0o600); err != nil {
		t.Fatal(err)
	}
	a = open(t, root)
	a.exchanges(t, 9)
	a.end(t)
	b := open(t, copied)
	b.exchanges(t, 14)
	b.end(t)
	for _, s := range []*sealed{a, b} {
		whole(t, s.verify(t), len(s.records(t)))
	}
	r, err := tree.VerifyLog(t.Context(), b.dir, b.publicKey(t), a.outside(t, export(a.records(t))))
	if err != nil {
		t.Fatal(err)
	}
	if got := kinds(r); !slices.Equal(got, []string{string(tree.Forked)}) {
		t.Errorf("the log of one, the checkpoints of the other: %s", r)
	}
	r = b.verifyExport(t, export(b.records(t)), 0, a.outside(t, export(a.records(t))))
	if !found(r, tree.Forked) {
		t.Errorf("the export of one, the checkpoints of the other: %s", r)
	}
	r = b.verifyExport(t, export(append(a.records(t), b.records(t)...)), 0, nil)
	if !found(r, tree.Forked) || !found(r, tree.Changed) {
		t.Errorf("both in one export: %s", r)
	}
}

// An outside checkpoint raises what it covers, and finds a log that is shorter.
func TestOutside(t *testing.T) {
	s := closed(t, 12)
	records := s.records(t)
	third := export(records[:len(records)-1]) // the last is left out, and with it the newest
	r, err := tree.VerifyLog(t.Context(), s.dir, s.publicKey(t), s.outside(t, third))
	if err != nil {
		t.Fatal(err)
	}
	want := []tree.Range{{1, 16, tree.ByOutside}, {17, uint64(len(records)), tree.ByCheckpoint}}
	if len(r.Findings) > 0 || !slices.Equal(r.Ranges, want) {
		t.Errorf("%s", r)
	}
	// Root on the host cuts log and tree, and removes what tells.
	short := records[:10]
	for _, path := range s.segments(t)[1:] {
		os.Remove(path)
	}
	if err := os.WriteFile(s.segments(t)[0], []byte(export(short)), 0o600); err != nil {
		t.Fatal(err)
	}
	os.Remove(filepath.Join(tree.Dir(s.dir), "hashes"))
	os.Remove(filepath.Join(tree.Dir(s.dir), "checkpoint"))
	if r := s.verify(t); len(r.Findings) > 0 {
		t.Errorf("by itself: %s", r)
	}
	if r, err = tree.VerifyLog(t.Context(), s.dir, s.publicKey(t), s.outside(t, third)); err != nil || !found(r, tree.Truncated) {
		t.Errorf("with an outside checkpoint: %v %v", r, err)
	}
}

func TestClock(t *testing.T) {
	s := open(t, tempDir(t))
	s.exchanges(t, 5)
	d := audit.New(audit.KindDecision, audit.ClassHTTP, 3)
	d.Action = audit.ActionAllowed
	d.Time -= 3600_000
	c := audit.New(audit.KindCompletion, audit.ClassHTTP, 3)
	c.Metadata.CorrelationUID = d.ID()
	if err := s.log.Append(t.Context(), d, c); err != nil {
		t.Fatal(err)
	}
	s.exchanges(t, 1)
	s.end(t)
	for name, r := range map[string]*tree.Report{"log": s.verify(t), "export": s.verifyExport(t, export(s.records(t)), 0, nil)} {
		if len(r.Findings) != 1 || r.Findings[0].Kind != tree.Clock || r.Findings[0].First != 11 {
			t.Errorf("%s: %s", name, r)
		}
	}
}

// Lost events that the log tells of are found.
func TestGap(t *testing.T) {
	s := open(t, tempDir(t))
	for _, state := range []string{"audit-dropped", "audit-gap"} {
		e := audit.New(audit.KindLifecycle, audit.ClassLifecycle, audit.ActivityOther)
		e.Unmapped.Sallyport.State = state
		if err := s.log.Append(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	s.end(t)
	if r := s.verify(t); len(r.Findings) != 1 || r.Findings[0].Kind != tree.Gap || r.Findings[0].First != 1 || r.Gaps != 1 {
		t.Error(r)
	}
}

// Another key's checkpoints anchor nothing.
func TestForeignKey(t *testing.T) {
	s, other := closed(t, 5), closed(t, 5)
	r, err := tree.VerifyExport(t.Context(), strings.NewReader(export(s.records(t))), other.publicKey(t), 0, nil, "")
	if err != nil || !found(r, tree.Forked) || len(r.Ranges) != 1 || r.Ranges[0].Anchor != tree.ByNothing {
		t.Errorf("%v %v", r, err)
	}
	for _, err := range other.outside(t, export(s.records(t))) {
		if err == nil {
			t.Error("a checkpoint of another key was taken")
		}
	}
}

// encoded is a record in another encoding.
func encoded(t testing.TB, name, record string) string {
	t.Helper()
	encode, err := encoding.ByName(name, encoding.Origin{Log: "sallyport/a", Key: "sallyport/a+b"})
	if err != nil {
		t.Fatal(err)
	}
	e := new(audit.Event)
	if err := json.Unmarshal([]byte(record), e); err != nil {
		t.Fatal(err)
	}
	b, err := encode(auditlog.Entry{Number: e.Metadata.Sequence, JSON: []byte(record), Event: e})
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// A record whose fields are changed in an export, but not the record that the export holds
// beside them, is found.
func TestAlteredEncoding(t *testing.T) {
	s := closed(t, 6)
	for name, change := range map[string][2]string{
		"ocsf": {`"severity_id":1`, `"severity_id":3`}, "ocsf-1.8": {`"severity_id":1`, `"severity_id":3`}, "ocsf-1.5": {`"category_uid":4`, `"category_uid":6`},
		"ecs": {`"kind":"event"`, `"kind":"alert"`}, "cef": {"cat=decision", "cat=drop"},
	} {
		t.Run(name, func(t *testing.T) {
			var lines []string
			for _, r := range s.records(t) {
				lines = append(lines, encoded(t, name, r))
			}
			whole(t, s.verifyExport(t, export(lines), 0, nil), len(lines))
			altered := strings.Replace(lines[2], change[0], change[1], 1)
			if altered == lines[2] {
				t.Fatalf("%s has no %s", lines[2], change[0])
			}
			lines[2] = altered
			if r := s.verifyExport(t, export(lines), 0, nil); len(r.Findings) != 1 || r.Findings[0].Kind != tree.Changed || r.Findings[0].First != 3 {
				t.Errorf("%s", r)
			}
		})
	}
}

// Records are found in what SIEMs and collectors wrap them in.
func TestWrapped(t *testing.T) {
	s := closed(t, 6)
	text := func(v any) string {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	type m = map[string]any
	wraps := map[string]func(r string) string{
		"bare":          func(r string) string { return r },
		"Splunk":        func(r string) string { return text(m{"preview": false, "result": m{"_raw": r, "source": "http:x"}}) },
		"Splunk HEC":    func(r string) string { return text(m{"time": 1, "event": json.RawMessage(r)}) },
		"Elasticsearch": func(r string) string { return text(m{"_id": "x", "_source": json.RawMessage(r)}) },
		"ECS":           func(r string) string { return text(m{"_id": "x", "_source": m{"event": m{"original": r}}}) },
		"OCSF":          func(r string) string { return text(m{"raw_data": r}) },
		"OTLP":          func(r string) string { return text(m{"body": m{"stringValue": r}}) },
		"OTLP export": func(r string) string {
			return text(m{"resourceLogs": []m{{"scopeLogs": []m{{"logRecords": []m{{"body": m{"stringValue": r}}}}}}}})
		},
		"syslog":            func(r string) string { return "<134>1 2026-11-26T00:00:00Z host sallyport 1 audit - " + r },
		"a message":         func(r string) string { return text(m{"message": r, "host": "x"}) },
		"other order":       func(r string) string { return reordered(t, r) },
		"with its hash":     func(r string) string { return attested(t, r, r) },
		"hash, other order": func(r string) string { return reordered(t, attested(t, r, r)) },
	}
	for _, name := range encoding.Names() {
		wraps["in "+name] = func(r string) string { return encoded(t, name, r) }
		wraps["in Elasticsearch, as "+name] = func(r string) string {
			if r = encoded(t, name, r); r[0] != '{' {
				r = text(r)
			}
			return text(m{"_source": json.RawMessage(r)})
		}
		wraps["in a syslog line, as "+name] = func(r string) string {
			return "<134>1 2026-11-26T00:00:00Z host sallyport 1 audit - " + encoded(t, name, r)
		}
	}
	for name, wrap := range wraps {
		t.Run(name, func(t *testing.T) {
			var wrapped []string
			for _, r := range s.records(t) {
				wrapped = append(wrapped, wrap(r))
			}
			whole(t, s.verifyExport(t, export(wrapped), 0, nil), len(wrapped))
			wrapped[4] = wrap(strings.Replace(s.records(t)[4], `"severity_id":1`, `"severity_id":3`, 1))
			if r := s.verifyExport(t, export(wrapped), 0, nil); len(r.Findings) != 1 || r.Findings[0].Kind != tree.Changed {
				t.Errorf("changed: %s", r)
			}
			wrapped[4] = "no record"
			if r := s.verifyExport(t, export(wrapped), 0, nil); !found(r, tree.Missing) || r.Foreign != 1 {
				t.Errorf("removed: %s", r)
			}
		})
	}
	// The hash beside a record tells which it is.
	var all []string
	for i, r := range s.records(t) {
		changed := r
		if i == 4 {
			changed = strings.Replace(r, `"severity_id":1`, `"severity_id":3`, 1)
		}
		all = append(all, attested(t, changed, r))
	}
	if r := s.verifyExport(t, export(all), 0, nil); len(r.Findings) != 1 || r.Findings[0].First != 5 || r.Findings[0].Last != 5 {
		t.Errorf("a record that is not that of its hash: %s", r)
	}
}
