package tree_test

import (
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"testing"

	"sallyport/audit/tree"
)

// A line that a receiver takes for a record, and that cannot be checked as one, is found:
// else anybody could insert such lines. Other lines of an export are none of ours.
func TestNearRecords(t *testing.T) {
	s := closed(t, 6)
	records := s.records(t)
	forged := strings.Replace(records[4], `"severity_id":1`, `"severity_id":3`, 1)
	twice := strings.Replace(forged, `{`, `{"status_id":1,"status_id":2,`, 1)
	quoted := func(r string) string { return strings.ReplaceAll(strings.ReplaceAll(r, `\`, `\\`), `"`, `\"`) }
	near := map[string]string{
		"a member twice":          twice,
		"likewise, wrapped":       `{"result":{"_raw":"` + quoted(twice) + `"}}`,
		"likewise, after syslog":  `<134>1 - host sallyport - audit - ` + twice,
		"likewise, beside a good": `[` + records[3] + `,` + twice + `]`,
		"likewise, escaped":       strings.ReplaceAll(twice, "metadata", `\u006detadata`),
		"without its end":         forged[:len(forged)-1],
		"another text as its own": strings.Replace(forged, `{`, `{"raw_data":"x",`, 1),
		"a number that is a text": strings.Replace(forged, `"sequence":5`, `"sequence":"5"`, 1),
		"in many wraps":           strings.Repeat(`{"event":`, 20) + forged + strings.Repeat(`}`, 20),
		"too long":                strings.Replace(forged, `{`, `{"a":"`+strings.Repeat("x", 5<<20)+`",`, 1),
	}
	for name, line := range near {
		r := s.verifyExport(t, export(slices.Insert(slices.Clone(records), 5, line)), 0, nil)
		if len(r.Findings) != 1 || r.Findings[0].Kind != tree.Changed || r.Findings[0].Where != "line 6" {
			t.Errorf("%s: %s", name, r)
		}
	}
	for name, line := range map[string]string{
		"text": "hello", "text with a brace": "hello {name}", "another object": `{"index":{"_id":"x"}}`, "another's message": `{"message":"{{.Name}}"}`,
		"a header": `_time,_raw`, "a number": `7`,
	} {
		r := s.verifyExport(t, export(slices.Insert(slices.Clone(records), 5, line)), 0, nil)
		if len(r.Findings) > 0 || r.Foreign != 1 {
			t.Errorf("%s: %s", name, r)
		}
	}
}

// endless is a text that has no end.
type endless struct {
	begin string
	n     int
}

func (e *endless) Read(b []byte) (int, error) {
	if e.n++; e.n > 1<<14 {
		return 0, io.EOF
	}
	n := copy(b, e.begin)
	e.begin = ""
	for i := range b[n:] {
		b[n+i] = 'x'
	}
	return len(b), nil
}

// A copy of checkpoints cannot take the memory.
func TestEndlessCheckpoint(t *testing.T) {
	s := closed(t, 1)
	for _, begin := range []string{"sallyport/", "sallyport/1\n\n"} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		failed := false
		for _, err := range tree.Checkpoints(&endless{begin: begin}, s.publicKey(t)) {
			failed = failed || err != nil
		}
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; !failed || took > 8<<20 {
			t.Errorf("%q: failed %v, took %d bytes", begin, failed, took)
		}
	}
}

// A checkpoint's record proves itself once: under another number it is inserted.
func TestCheckpointTwice(t *testing.T) {
	s := closed(t, 40)
	part := s.records(t)[60:]
	renumbered := func(i, to int) string {
		return strings.Replace(part[i], fmt.Sprintf(`"sequence":%d,`, 61+i), fmt.Sprintf(`"sequence":%d,`, to), 1)
	}
	first := slices.IndexFunc(part, func(r string) bool { return strings.Contains(r, `"state":"checkpoint"`) })
	last := len(part) - 1
	for name, lines := range map[string][]string{
		"before it": slices.Insert(slices.Clone(part), 0, renumbered(first, 60)),
		"after it":  append(slices.Clone(part), renumbered(last, 62+last)),
	} {
		r := s.verifyExport(t, export(lines), 0, nil)
		number := map[string]uint64{"before it": 60, "after it": uint64(62 + last)}[name]
		for _, g := range r.Ranges {
			if g.Anchor != tree.ByNothing && g.First <= number && number <= g.Last {
				t.Errorf("%s: it is anchored: %s", name, r)
			}
		}
	}
}

// An export that shows anything beside a record but the record's encoding is found, however it
// came there.
func TestForgedBeside(t *testing.T) {
	s := closed(t, 6)
	records := s.records(t)
	doc := func(record string) map[string]any {
		var m map[string]any
		if err := json.Unmarshal([]byte(record), &m); err != nil {
			t.Fatal(err)
		}
		return m
	}
	text := func(v any) string {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	in := func(name string, change func(m map[string]any)) func(record string) string {
		return func(record string) string {
			m := doc(encoded(t, name, record))
			change(m)
			return text(m)
		}
	}
	for name, forge := range map[string]func(record string) string{
		"the record in raw_data, too": func(record string) string {
			m := doc(encoded(t, "ocsf", record))
			m["raw_data"], m["severity_id"] = record, 5
			return text(m)
		},
		"an unknown version": in("ocsf-1.8", func(m map[string]any) {
			m["metadata"].(map[string]any)["version"], m["severity_id"] = "1.7.0", 5
		}),
		"no version":        in("ocsf-1.8", func(m map[string]any) { delete(m, "metadata"); m["severity_id"] = 5 }),
		"no version of ECS": in("ecs", func(m map[string]any) { delete(m, "ecs"); m["message"] = "forged" }),
		"a flat original":   func(record string) string { return text(map[string]any{"event.original": record, "message": "forged"}) },
		"an answer that there was not": in("ecs", func(m map[string]any) {
			m["http"] = map[string]any{"response": map[string]any{"status_code": 200}}
		}),
		"likewise, within":      in("ecs", func(m map[string]any) { m["event"].(map[string]any)["provider"] = "forged" }),
		"likewise, in OCSF":     in("ocsf-1.5", func(m map[string]any) { m["http_response"] = map[string]any{"code": 200} }),
		"likewise, in unmapped": in("ocsf-1.5", func(m map[string]any) { m["unmapped"].(map[string]any)["allowed"] = true }),
		"another header": func(record string) string {
			return "CEF:0|Sallyport|Sallyport||1|Forged|10|act=forged msg=" + encoded(t, "cef", record)
		},
		"another header in a syslog line": func(record string) string {
			return "<134>1 - host sallyport - - - CEF:0|Sallyport|Sallyport||1|Forged|10|act=forged msg=" + encoded(t, "cef", record)
		},
	} {
		lines := slices.Clone(records)
		lines[4] = forge(records[4])
		if r := s.verifyExport(t, export(lines), 0, nil); len(r.Findings) != 1 || r.Findings[0].Kind != tree.Changed || r.Findings[0].Where != "line 5" {
			t.Errorf("%s: %s\n%s", name, r, lines[4])
		}
	}
	// A receiver adds what says where it comes from, and leaves out all but the record.
	for name, add := range map[string]func(record string) string{
		"ECS": in("ecs", func(m map[string]any) {
			m["agent"], m["host"], m["tags"], m["user"] = map[string]any{"id": "x"}, "x", []string{"x"}, nil
			m["event"].(map[string]any)["ingested"] = "2026-12-01T00:00:00Z"
			m["destination"] = map[string]any{"geo": map[string]any{"country": "x"}}
		}),
		"OCSF": in("ocsf-1.8", func(m map[string]any) { m["enrichments"] = []string{"x"} }),
		"the record": func(record string) string {
			return text(map[string]any{"_source": map[string]any{"event": map[string]any{"original": record}}})
		},
		"likewise, flat": func(record string) string {
			return text(map[string]any{"_id": "x", "_source": map[string]any{"event.original": record}})
		},
		"likewise, of OCSF": func(record string) string { return text(map[string]any{"raw_data": record}) },
	} {
		lines := slices.Clone(records)
		lines[4] = add(records[4])
		if r := s.verifyExport(t, export(lines), 0, nil); len(r.Findings) > 0 || r.Records != uint64(len(records)) {
			t.Errorf("%s: %s\n%s", name, r, lines[4])
		}
	}
}
