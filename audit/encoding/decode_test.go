package encoding_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"

	"sallyport/audit/encoding"
	"sallyport/internal/test/must"
	"sallyport/internal/test/stories"
)

// TestOriginal: every encoding holds the record, also behind a syslog header and once a
// receiver has formatted it.
func TestOriginal(t *testing.T) {
	for _, name := range encoding.Names() {
		for story, events := range stories.Events() {
			for _, e := range events {
				t.Run(name+" "+story, func(t *testing.T) {
					r := entry(t, e, 7)
					sent := encode(t, name, r)
					forms := map[string][]byte{"as it was sent": sent}
					if name == "cef" {
						forms["syslog"] = append([]byte("<134>1 2026-11-20T13:24:34Z host sallyport - - - "), append(sent, '\n')...)
					} else {
						var doc map[string]any
						must.OK(t, json.Unmarshal(sent, &doc))
						doc["received"] = map[string]any{"by": "siem"}
						forms["formatted"], _ = json.MarshalIndent(doc, "", " ")
						if name == "ocsf" {
							delete(doc, "received") // which would be part of what is hashed
							forms["formatted"], _ = json.MarshalIndent(doc, "", " ")
						}
					}
					for form, b := range forms {
						if got, err := encoding.Original(b); err != nil || !bytes.Equal(got, r.JSON) {
							t.Errorf("%s: %v: %s", form, err, got)
						}
					}
				})
			}
		}
	}
}

// TestOriginalFindsChanges: a field that was changed beside the record is told, each byte
// of it.
func TestOriginalFindsChanges(t *testing.T) {
	r := entry(t, stories.Events()["allow"][1], 7)
	for _, name := range encoding.Names()[1:] {
		t.Run(name, func(t *testing.T) {
			e, err := encoding.ByName(name, encoding.Origin{}) // which the record does not say
			must.OK(t, err)
			sent, err := e(r)
			must.OK(t, err)
			for i := range sent {
				changed := bytes.Clone(sent)
				changed[i] ^= 1
				line, err := encoding.Original(changed)
				var differs *encoding.DiffersError
				// A line that is no longer a record, or another record, is found by its hash.
				if err == nil && bytes.Equal(line, r.JSON) {
					t.Errorf("byte %d, %q: not told", i, around(sent, i))
				}
				if errors.As(err, &differs) && differs.Field == "" {
					t.Errorf("byte %d: it does not say where", i)
				}
			}
		})
	}
}

func around(b []byte, i int) []byte { return b[max(0, i-10):min(len(b), i+10)] }

func TestNoOriginal(t *testing.T) {
	for _, text := range []string{"", "{}", "[]", "{", "CEF", `{"metadata":{"version":"1.8.0"},"raw_data":7}`, `{"ecs":{},"event":{"original":"x"}}`, `{"metadata":{"version":"1.7.0"},"raw_data":"{}"}`} {
		if got, err := encoding.Original([]byte(text)); err == nil {
			t.Errorf("%s: %s", text, got)
		}
	}
}
