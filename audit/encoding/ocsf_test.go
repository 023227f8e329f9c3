package encoding_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/mod/sumdb/tlog"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/audit/encoding"
	"sallyport/internal/test/must"
	"sallyport/internal/test/ocsf"
	"sallyport/internal/test/stories"
)

var update = flag.Bool("update", false, "write the golden files")

var origin = encoding.Origin{Log: "sallyport/0192f0c1", Key: "sallyport/0192f0c1+a1b2c3d4"}

// entry is an event as the log has it under a number.
func entry(t testing.TB, e *audit.Event, number uint64) auditlog.Entry {
	t.Helper()
	own := *e
	own.Metadata.Sequence = number
	b, err := json.Marshal(&own)
	must.OK(t, err)
	v := jsontext.Value(b)
	must.OK(t, v.Canonicalize())
	return auditlog.Entry{Number: number, JSON: v, Event: &own}
}

func encode(t testing.TB, name string, r auditlog.Entry) []byte {
	t.Helper()
	e, err := encoding.ByName(name, origin)
	must.OK(t, err)
	b, err := e(r)
	must.OK(t, err)
	return b
}

// TestGolden pins what a SIEM parses.
func TestGolden(t *testing.T) {
	all := stories.Events()
	for _, name := range encoding.Names() {
		t.Run(name, func(t *testing.T) {
			var got bytes.Buffer
			n := uint64(0)
			for _, story := range slices.Sorted(maps.Keys(all)) {
				for _, e := range all[story] {
					n++
					line := encode(t, name, entry(t, e, n))
					if again := encode(t, name, entry(t, e, n)); !bytes.Equal(line, again) {
						t.Errorf("%s: not the same twice", story)
					}
					if bytes.ContainsAny(line, "\n\r") {
						t.Errorf("%s: more than a line", story)
					}
					got.WriteString(story + "\t")
					got.Write(append(line, '\n'))
				}
			}
			path := filepath.Join("testdata", name+".golden")
			if *update {
				must.OK(t, os.WriteFile(path, got.Bytes(), 0o644))
			}
			want, err := os.ReadFile(path)
			must.OK(t, err)
			if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got.String(), "\n")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestSchema: each version of OCSF is as it is published, and holds the record.
func TestSchema(t *testing.T) {
	for name, version := range map[string]string{"ocsf": "1.9.0", "ocsf-1.8": "1.8.0", "ocsf-1.5": "1.5.0"} {
		s, err := ocsf.Load(version)
		must.OK(t, err)
		for story, events := range stories.Events() {
			for _, e := range events {
				t.Run(name+" "+story, func(t *testing.T) {
					r := entry(t, e, 7)
					line := encode(t, name, r)
					if err := s.Validate(line); err != nil {
						t.Errorf("%v\n%s", err, line)
					}
				})
			}
		}
	}
}

// TestStored: what was stored is found again in what was sent, also once a receiver has
// formatted it, and its hash is the leaf's.
func TestStored(t *testing.T) {
	check := func(t *testing.T, r auditlog.Entry, sent []byte) {
		t.Helper()
		line, hash, err := encoding.Stored(sent)
		if err != nil || !bytes.Equal(line, r.JSON) {
			t.Fatalf("%v: got %s\nwant %s", err, line, r.JSON)
		}
		if leaf := tlog.RecordHash(r.JSON); hash != hex.EncodeToString(leaf[:]) {
			t.Errorf("the hash is %s", hash)
		}
	}
	for story, events := range stories.Events() {
		for _, e := range events {
			t.Run(story, func(t *testing.T) {
				r := entry(t, e, 7)
				sent := encode(t, "ocsf", r)
				check(t, r, sent)
				var other any
				must.OK(t, json.Unmarshal(sent, &other))
				formatted, err := json.MarshalIndent(other, "", "\t")
				must.OK(t, err)
				check(t, r, formatted)
			})
		}
	}
	t.Run("an older line", func(t *testing.T) {
		line := []byte(`{"metadata":{"version":"1.5.0","uid":"a","sequence":1},"time":1,"message":"\u2028"}`)
		e := new(audit.Event)
		must.OK(t, json.Unmarshal(line, e))
		r := auditlog.Entry{Number: 1, JSON: line, Event: e}
		check(t, r, encode(t, "ocsf", r))
	})
}

func TestByName(t *testing.T) {
	if _, err := encoding.ByName("leef", origin); err == nil || !strings.Contains(err.Error(), `"leef": use ocsf, ocsf-1.8`) {
		t.Errorf("got %v", err)
	}
}
