package auditlog_test

import (
	"encoding/json"
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"sallyport/audit"
	"sallyport/audit/auditlog"
)

// checkDecode fails the test if a line that encoding/json reads is not read the same way.
// It reports whether encoding/json reads the line.
func checkDecode(t *testing.T, line []byte) bool {
	t.Helper()
	got, err := auditlog.Decode(line)
	want := new(audit.Event)
	if json.Unmarshal(line, want) != nil {
		return false
	}
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	if diff := cmp.Diff(got, want, cmpopts.EquateEmpty()); diff != "" {
		t.Fatalf("%s: %s", line, diff)
	}
	return true
}

func TestDecodesLikeJSON(t *testing.T) {
	for _, text := range []string{"x]}", `"\/`, "<a>&", "\x00\n\t\x1b\x7f", "\xff\xc3", "é 世 \u2028 \U0001F600", ""} {
		every := new(audit.Event)
		fill(t, reflect.ValueOf(every).Elem(), text)
		checkDecode(t, auditlog.Encode(nil, every))
	}
	for _, events := range golden() {
		for _, e := range events {
			checkDecode(t, auditlog.Encode(nil, e))
		}
	}
}

func TestDecodesAlteredLinesLikeJSON(t *testing.T) {
	e := sample()
	e.Unmapped.Sallyport.Tags = map[string]string{"a": "b", "c": "d"}
	e.Unmapped.Sallyport.Unsized, e.Unmapped.Sallyport.Clipped = true, []string{"path"}
	line := auditlog.Encode(nil, e)
	read := 0
	check := func(b []byte) {
		t.Helper()
		if checkDecode(t, b) {
			read++
		}
	}
	for i := range line {
		check(slices.Delete(slices.Clone(line), i, i+1))
		check(line[:i])
		for _, c := range []byte(`,:{}[]"0 -\t` + "\n\xff") {
			other := slices.Clone(line)
			other[i] = c
			check(other)
			check(slices.Insert(slices.Clone(line), i, c))
		}
	}
	if read < 1000 {
		t.Errorf("only %d were read", read)
	}
}

// FuzzDecode: an event, and a line of it with one byte changed, is read as encoding/json reads it.
func FuzzDecode(f *testing.F) {
	for _, events := range golden() {
		for _, e := range events {
			f.Add(auditlog.Encode(nil, e), uint16(0), byte(0))
			f.Add(auditlog.Encode(nil, e), uint16(700), byte(','))
		}
	}
	f.Fuzz(func(t *testing.T, line []byte, at uint16, c byte) {
		if len(line) > 0 && c != 0 {
			line = slices.Clone(line)
			line[int(at)%len(line)] = c
		}
		checkDecode(t, line)
	})
}

func BenchmarkDecode(b *testing.B) {
	line := auditlog.Encode(nil, sample())
	b.ReportAllocs()
	b.SetBytes(int64(len(line)))
	for b.Loop() {
		if _, err := auditlog.Decode(line); err != nil {
			b.Fatal(err)
		}
	}
}
