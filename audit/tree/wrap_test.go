package tree_test

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/mod/sumdb/tlog"

	"sallyport/audit/tree"
)

// reordered is a record with its members the other way round, and spaces between them.
func reordered(t *testing.T, record string) string {
	t.Helper()
	var m map[string]json.RawMessage
	if err := json.Unmarshal([]byte(record), &m); err != nil {
		t.Fatal(err)
	}
	var parts []string
	for k, v := range m {
		parts = append(parts, fmt.Sprintf("%q : %s", k, v))
	}
	slices.Sort(parts)
	slices.Reverse(parts)
	return "{ " + strings.Join(parts, " , ") + " }"
}

// attested is a record with the leaf hash of another beside it.
func attested(t *testing.T, record, of string) string {
	t.Helper()
	h := tlog.RecordHash([]byte(of))
	list := fmt.Sprintf(`"attestation_list":[{"fingerprint":{"algorithm":"SHA-256","value":%q}}],"category_uid"`, hex.EncodeToString(h[:]))
	return strings.Replace(record, `"category_uid"`, list, 1)
}

// FuzzExport: nothing that an export holds makes the verification fail or take long.
func FuzzExport(f *testing.F) {
	s := closed(f, 2)
	for _, r := range s.records(f) {
		f.Add(r)
		f.Add(`{"result":{"_raw":` + strings.ReplaceAll(fmt.Sprintf("%q", r), `\x`, `\u00`) + `}}`)
	}
	f.Add(`[[[[[[[[[[{}]]]]]]]]]]`)
	f.Add(`<1>1 {"metadata":{"sequence":18446744073709551615},"unmapped":{}}`)
	key := s.publicKey(f)
	f.Fuzz(func(t *testing.T, text string) {
		r, err := tree.VerifyExport(t.Context(), strings.NewReader(text), key, 0, nil, "")
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range r.Ranges {
			if g.First > g.Last || g.First == 0 {
				t.Errorf("a range of %d to %d", g.First, g.Last)
			}
		}
	})
}

// FuzzCheckpoint: a note is what was signed, or an error.
func FuzzCheckpoint(f *testing.F) {
	s := closed(f, 2)
	var note string
	for c, err := range s.outside(f, export(s.records(f))) {
		if err != nil {
			f.Fatal(err)
		}
		note = c.Note
	}
	f.Add(note)
	f.Add(strings.Replace(note, "time", "more x\ntime", 1))
	f.Add(note + note)
	key := s.publicKey(f)
	f.Fuzz(func(t *testing.T, text string) {
		if c, err := tree.ParseCheckpoint(text, key); err == nil && c.Note != note {
			t.Errorf("taken for signed: %q", text)
		}
	})
}

// The base64 of a signature has two bits that mean nothing: there is one way to write it.
func TestSignatureIsStrict(t *testing.T) {
	s := closed(t, 1)
	const digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
	for c, err := range s.outside(t, export(s.records(t))) {
		if err != nil {
			t.Fatal(err)
		}
		head, ok := strings.CutSuffix(c.Note, "=\n")
		if !ok {
			t.Fatalf("%q", c.Note)
		}
		last := strings.IndexByte(digits, head[len(head)-1])
		for bits := 1; bits < 4; bits++ {
			other := head[:len(head)-1] + digits[last^bits:][:1] + "=\n"
			if _, err := tree.ParseCheckpoint(other, s.publicKey(t)); err == nil {
				t.Errorf("%q is taken for %q", other, c.Note)
			}
		}
	}
}
