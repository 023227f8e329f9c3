package layer

import (
	"strings"
	"testing"
	"time"

	"sallyport/memory"
)

func FuzzParse(f *testing.F) {
	e := Entry{ID: "20261126T182805Z-AAAAAA", Type: Preference, Time: time.Unix(0, 0).UTC(), Session: "s", Metadata: map[string]string{"a": "b"}, Text: "text"}
	f.Add("text", "a", "b: c", e.file(map[string]string{"x": "y"}))
	f.Add("---\n---", "~", "\u2028\\", []byte("---\nid: &a [*a]\n<<: *a\n---\n"))
	f.Add("!!binary", "null", "|-\n  x", []byte("---\n? a\n: !!map {b: !!set c}\n---"))
	f.Fuzz(func(t *testing.T, text, key, value string, file []byte) {
		const name = "memories/preference/20261126T182805Z-AAAAAA.md"
		got, _ := parse(name, file, time.Time{})
		if got.Path != name || got.ID != name && got.ID != e.ID {
			t.Errorf("%+v", got)
		}
		// An entry is read as it was written.
		e := e
		e.Text, e.Session, e.Metadata = strings.TrimSpace(text), strings.ToValidUTF8(value, ""), map[string]string{"k": strings.ToValidUTF8(value, ""), strings.ToValidUTF8(key, ""): ""}
		got, _ = parse(name, e.file(nil), time.Time{})
		if len(e.file(nil))-len(e.Text) < maxFront && (got.ID != e.ID || got.Text != e.Text || got.Session != e.Session || got.Metadata["k"] != e.Metadata["k"]) {
			t.Errorf("got %+v\nwant %+v", got, e)
		}
	})
}

// Parts of INDEX.md that are not a script's stay, and its section is there once.
func FuzzIndex(f *testing.F) {
	s := Script{Name: "a.sh", Description: "d", Digest: memory.DigestOf(nil)}
	f.Add("# Scripts for common tasks\n\n## a.sh\n\n- SHA-256: x\n- Note: n\n\n## b.sh\n\ntext\n", "d")
	f.Add("\r\n## a.sh", "## a.sh - SHA-256: x")
	f.Fuzz(func(t *testing.T, text, description string) {
		s := s
		s.Description = memory.Clip(oneLine(description), maxLine)
		var whole, rest strings.Builder
		before := parseIndex(text)
		for i, p := range before {
			whole.WriteString(p.text)
			if i != before.of(s.Name) {
				rest.WriteString(p.text)
			}
		}
		if whole.String() != text {
			t.Errorf("%q became %q", text, whole.String())
		}
		first := before.with(s)
		after := parseIndex(string(first))
		i := after.of(s.Name)
		if i < 0 || after[i].script.Description != s.Description || after[i].script.Digest != s.Digest {
			t.Fatalf("%q", first)
		}
		if second := after.with(s); string(second) != string(first) && before.of(s.Name) >= 0 {
			t.Errorf("%q became %q", first, second)
		}
		for word := range strings.FieldsSeq(rest.String()) {
			if !strings.Contains(string(first), word) {
				t.Errorf("%q is lost", word)
			}
		}
	})
}
