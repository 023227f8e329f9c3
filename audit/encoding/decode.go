package encoding

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"sallyport/audit"
	"sallyport/audit/auditlog"
)

var errNoRecord = errors.New("it holds no record")

// DiffersError says that an encoded record has another value than the record that it holds.
type DiffersError struct{ Field string }

func (e *DiffersError) Error() string {
	return fmt.Sprintf("%s is not as in the record that it holds", e.Field)
}

// Original returns the line of the log that a record was encoded from, in any encoding.
// With a *DiffersError the encoded record has been changed: it is not what that line is
// encoded as. A receiver may have changed the order of fields, and added such as the
// encoding never has.
func Original(encoded []byte) (line []byte, err error) {
	name, line, err := unwrap(encoded)
	if err != nil || name == "ocsf" { // which is that line
		return line, err
	}
	e := new(audit.Event)
	if err := json.Unmarshal(line, e); err != nil {
		return line, fmt.Errorf("%w: %w", errNoRecord, err)
	}
	var o Origin
	var got any
	if name == "cef" {
		o.Log = logOf(string(encoded))
	} else {
		if err := json.Unmarshal(encoded, &got); err != nil {
			return line, err
		}
		o.Log = logIn(got)
	}
	encode, err := ByName(name, o)
	if err != nil {
		return line, err
	}
	again, err := encode(auditlog.Entry{Number: e.Metadata.Sequence, JSON: line, Event: e})
	if err != nil {
		return line, err
	}
	if name == "cef" {
		before, ok := bytes.CutSuffix(bytes.TrimRight(encoded, "\r\n"), again)
		if !ok || bytes.Contains(before, []byte("CEF:")) { // the first header is the one that is read
			return line, &DiffersError{"the line"}
		}
		return line, nil
	}
	var want any
	if err := json.Unmarshal(again, &want); err != nil {
		return line, err
	}
	own := ownOCSF
	if name == "ecs" {
		own = ownECS
	}
	if path := own.differs("", want, got); path != "" {
		return line, &DiffersError{path}
	}
	return line, nil
}

// logIn is the log that an encoded record names.
func logIn(encoded any) string {
	for _, name := range []string{"unmapped", "sallyport"} {
		if m, ok := encoded.(map[string]any); ok {
			if m, ok := m[name].(map[string]any); ok {
				if log, ok := m["log"].(string); ok {
					return log
				}
			}
		}
	}
	return ""
}

// fields are those that an encoding has: nobody may add to them. A receiver adds others,
// and some below these.
type fields struct {
	own   []string
	added []string
}

var (
	ownOCSF = fields{own: append(names(reflect.TypeFor[audit.Event]()), rawData)}
	ownECS  = fields{
		own: []string{
			"@timestamp", "container", "destination", "dns", "ecs", "error", "event", "gen_ai", "http", "labels", "message", "network", "observer",
			"organization", "related", "rule", "sallyport", "source", "tls", "url", "user",
		},
		added: []string{
			"destination.as", "destination.geo", "event.agent_id_status", "event.created", "event.ingested", "source.as", "source.geo",
		},
	}
)

// names are those of a struct's fields in JSON.
func names(t reflect.Type) (all []string) {
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		all = append(all, name)
	}
	return all
}

// differs is the first field below want that got has another value for, or none, or that
// got has and want has not.
func (f fields) differs(at string, want, got any) string {
	wanted, ok := want.(map[string]any)
	if !ok {
		if reflect.DeepEqual(want, got) {
			return ""
		}
		return at
	}
	other, ok := got.(map[string]any)
	if !ok {
		return at
	}
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		if path := f.differs(below(at, name), wanted[name], other[name]); path != "" {
			return path
		}
	}
	for _, name := range slices.Sorted(maps.Keys(other)) {
		path := below(at, name)
		first, _, _ := strings.Cut(path, ".") // a receiver may take a dot for a level
		if _, ok := wanted[name]; ok || other[name] == nil || !slices.Contains(f.own, first) || slices.Contains(f.added, path) {
			continue
		}
		if _, ok := other[name].(map[string]any); !ok {
			return path
		}
		if path := f.differs(path, map[string]any{}, other[name]); path != "" {
			return path
		}
	}
	return ""
}

func below(at, name string) string { return strings.TrimPrefix(at+"."+name, ".") }

// unwrap tells which encoding a record has, and returns the line in it.
func unwrap(encoded []byte) (name string, line []byte, err error) {
	if jsontext.Value(encoded).Kind() != '{' {
		line, err := FromCEF(string(encoded))
		return "cef", []byte(line), err
	}
	var x struct {
		Attestations json.RawMessage `json:"attestation_list"`
		ECS          json.RawMessage `json:"ecs"`
		Event        struct {
			Original *string `json:"original"`
		} `json:"event"`
		Metadata *struct {
			Version string `json:"version"`
		} `json:"metadata"`
		Raw *string `json:"raw_data"`
	}
	if !jsontext.Value(encoded).IsValid() { // also if it says something twice
		return "", nil, errNoRecord
	}
	if err := json.Unmarshal(encoded, &x); err != nil {
		return "", nil, fmt.Errorf("%w: %w", errNoRecord, err)
	}
	switch {
	case x.Metadata == nil && x.ECS != nil && x.Event.Original != nil:
		return "ecs", []byte(*x.Event.Original), nil
	case x.Metadata == nil:
		return "", nil, errNoRecord
	case x.Raw != nil && x.Attestations == nil:
		for name, to := range map[string]older{"ocsf-1.8": ocsf18, "ocsf-1.5": ocsf15} {
			if x.Metadata.Version == to.version {
				return name, []byte(*x.Raw), nil
			}
		}
		return "", nil, errNoRecord
	}
	line, _, err = Stored(encoded)
	return "ocsf", line, err
}
