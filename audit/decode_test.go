package audit_test

import (
	"encoding/json"
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sallyport/audit"
)

// What is read of a line is what encoding/json reads of it, also after other lines
// with which it shares strings.
func TestParsesLikeJSON(t *testing.T) {
	own := audit.Own()
	all := map[string]*audit.Event{"sample": sample()}
	for name, events := range golden() {
		for _, e := range events {
			all[name+" "+string(e.Unmapped.Sallyport.Kind)] = e
		}
	}
	every := new(audit.Event)
	fill(t, reflect.ValueOf(every).Elem(), "x]}")
	every.Actor, every.App = nil, nil
	all["every field"] = every
	for name, e := range all {
		if e.App != nil || e.Actor != nil || name == "observed decision" {
			continue // left to encoding/json
		}
		e.Metadata.Version, e.Metadata.Profiles = audit.SchemaVersion, []string{"security_control"}
		e.Metadata.Product = audit.Product{Name: "Sallyport", VendorName: "Sallyport"}
		line := audit.Encode(nil, e)
		for range 2 {
			want := new(audit.Event)
			if err := json.Unmarshal(line, want); err != nil {
				t.Fatal(err)
			}
			got := own(line)
			if got == nil {
				t.Errorf("%s: a line of ours is not read as one: %s", name, line)
				continue
			}
			if diff := cmp.Diff(got, want); diff != "" {
				t.Errorf("%s: %s", name, diff)
			}
		}
	}
}

// A line in which something was altered is read as encoding/json reads it, or left
// to that.
func TestParsesWhatWasAlteredLikeJSON(t *testing.T) {
	own := audit.Own()
	e := sample()
	e.Unmapped.Sallyport.Tags = map[string]string{"a": "b", "c": "d"}
	e.Unmapped.Sallyport.Unsized, e.Unmapped.Sallyport.Clipped = true, []string{"path"}
	line := audit.Encode(nil, e)
	if own(line) == nil {
		t.Fatal("a line of ours is not read as one")
	}
	taken := 0
	check := func(b []byte) {
		t.Helper()
		got := own(b)
		if got == nil {
			return
		}
		taken++
		want := new(audit.Event)
		if err := json.Unmarshal(b, want); err != nil {
			t.Fatalf("%s: %v", b, err)
		}
		if diff := cmp.Diff(got, want); diff != "" {
			t.Fatalf("%s: %s", b, diff)
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
	if taken < 1000 {
		t.Errorf("only %d were read", taken)
	}
}

// FuzzParse: a line is read as encoding/json reads it, or left to that.
func FuzzParse(f *testing.F) {
	for _, events := range golden() {
		for _, e := range events {
			e.Metadata.Product.Version = ""
			f.Add(audit.Encode(nil, e), uint16(0), byte(0))
			f.Add(audit.Encode(nil, e), uint16(700), byte(','))
		}
	}
	f.Fuzz(func(t *testing.T, line []byte, at uint16, c byte) {
		own := audit.Own()
		other := slices.Clone(line)
		if len(other) > 0 && c != 0 {
			other[int(at)%len(other)] = c
		}
		for _, b := range [][]byte{line, other, line} {
			got := own(b)
			if got == nil {
				continue
			}
			want := new(audit.Event)
			if err := json.Unmarshal(b, want); err != nil {
				t.Fatalf("%s: %v", b, err)
			}
			if diff := cmp.Diff(got, want); diff != "" {
				t.Errorf("%s: %s", b, diff)
			}
		}
	})
}

func BenchmarkParse(b *testing.B) {
	line := audit.Encode(nil, sample())
	b.Run("own", func(b *testing.B) {
		own := audit.Own()
		b.ReportAllocs()
		b.SetBytes(int64(len(line)))
		for b.Loop() {
			if own(line) == nil {
				b.Fatal("not ours")
			}
		}
	})
	b.Run("json", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(line)))
		for b.Loop() {
			if err := json.Unmarshal(line, new(audit.Event)); err != nil {
				b.Fatal(err)
			}
		}
	})
}
