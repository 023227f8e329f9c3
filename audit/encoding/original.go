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
)

var errNoRecord = errors.New("it holds no record")

// DiffersError says that an encoded record has another value than the record that it holds.
type DiffersError struct{ Field string }

func (e *DiffersError) Error() string {
	return fmt.Sprintf("%s is not as in the record that it holds", e.Field)
}

// Original returns the line of the log that a record was encoded from, in any encoding.
// With a *DiffersError the encoded record has been changed: it is not what that line is
// encoded as. A receiver may have added fields and changed their order.
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
	if name == "cef" {
		o.Log = logOf(string(encoded))
	}
	encode, err := ByName(name, o)
	if err != nil {
		return line, err
	}
	again, err := encode(audit.Entry{Number: e.Metadata.Sequence, JSON: line, Event: e})
	if err != nil {
		return line, err
	}
	if name == "cef" {
		if !bytes.HasSuffix(bytes.TrimRight(encoded, "\r\n"), again) {
			return line, &DiffersError{"the line"}
		}
		return line, nil
	}
	var want, got any
	if err := errors.Join(json.Unmarshal(again, &want), json.Unmarshal(encoded, &got)); err != nil {
		return line, err
	}
	if path := differs("", want, got); path != "" {
		return line, &DiffersError{path}
	}
	return line, nil
}

// differs is the first field below want that got has another value for, or none.
func differs(at string, want, got any) string {
	fields, ok := want.(map[string]any)
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
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if path := differs(strings.TrimPrefix(at+"."+name, "."), fields[name], other[name]); path != "" {
			return path
		}
	}
	return ""
}

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
