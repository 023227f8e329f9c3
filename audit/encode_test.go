package audit_test

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"sallyport/audit"
)

// reference is an event as encoding/json writes it.
func reference(t *testing.T, e audit.Event) string {
	t.Helper()
	e.Metadata.Sequence = 0
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(&e); err != nil {
		t.Fatal(err)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// fill sets every field below v, strings to text. It fails for a kind that it
// does not know, so that no field is forgotten.
func fill(t *testing.T, v reflect.Value, text string) {
	t.Helper()
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(t, v.Field(i), text)
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(t, v.Elem(), text)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			fill(t, v.Index(i), text)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for _, k := range []string{"b" + text, "a" + text} {
			v.SetMapIndex(reflect.ValueOf(k), reflect.ValueOf(text))
		}
	case reflect.String:
		v.SetString(text)
	case reflect.Int, reflect.Int64:
		v.SetInt(-42)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Uint64:
		v.SetUint(42)
	default:
		t.Fatalf("a field of kind %s", v.Kind())
	}
}

func TestEncodesLikeJSON(t *testing.T) {
	for name, text := range map[string]string{
		"plain": "a b", "quotes": `"\/`, "HTML": "<a href='x'>&", "control": "\x00\n\t\x1b\x7f", "not UTF-8": "\xff\xc3", "Unicode": "é 世 \u2028 \U0001F600",
	} {
		t.Run("every field, "+name, func(t *testing.T) {
			var e audit.Event
			fill(t, reflect.ValueOf(&e).Elem(), text)
			if got, want := string(audit.Encode(nil, &e)), reference(t, e); got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
	for name, events := range golden() {
		t.Run(name, func(t *testing.T) {
			for _, e := range events {
				if got, want := string(audit.Encode(nil, e)), reference(t, *e); got != want {
					t.Errorf("got  %s\nwant %s", got, want)
				}
			}
		})
	}
	t.Run("no field", func(t *testing.T) {
		if got, want := string(audit.Encode(nil, &audit.Event{})), reference(t, audit.Event{}); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	})
}

// TestEncodesEveryByte puts each byte at each place of a string that is read a word at a
// time, with a rest.
func TestEncodesEveryByte(t *testing.T) {
	for c := range 256 {
		var e audit.Event
		for at := range 11 {
			text := []byte("~ !#[]^azAZ")
			text[at] = byte(c)
			e.Message += string(text) // each is looked at alone as a name
			e.Unmapped.Sallyport.HeaderNames = append(e.Unmapped.Sallyport.HeaderNames, string(text))
		}
		if got, want := string(audit.Encode(nil, &e)), reference(t, e); got != want {
			t.Errorf("byte %#x:\ngot  %s\nwant %s", c, got, want)
		}
	}
}

// FuzzEncode: any event is written as encoding/json writes it.
func FuzzEncode(f *testing.F) {
	for _, events := range golden() {
		for _, e := range events {
			f.Add(audit.Encode(nil, e))
		}
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var e audit.Event
		if json.Unmarshal(raw, &e) != nil {
			return
		}
		if got, want := string(audit.Encode(nil, &e)), reference(t, e); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	})
}
