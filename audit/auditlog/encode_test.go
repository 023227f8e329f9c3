package auditlog_test

import (
	"encoding/json"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/internal/test/must"
)

// reference is an event as encoding/json writes it, in the canonical form.
func reference(t *testing.T, e audit.Event) string {
	t.Helper()
	e.Metadata.Sequence = 0
	b, err := json.Marshal(&e)
	must.OK(t, err)
	v := jsontext.Value(b)
	must.OK(t, v.Canonicalize())
	return string(v)
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
		for _, k := range []string{"b" + text, "a" + text, "sequence", "\uffee", "\U0001F600"} {
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

func TestEncodesCanonically(t *testing.T) {
	for name, text := range map[string]string{
		"plain": "a b", "quotes": `"\/`, "HTML": "<a href='x'>&", "control": "\x00\b\f\n\r\t\x1b\x7f", "not UTF-8": "\xff\xc3 \xed\xa0\x80",
		"Unicode": "é 世 \u2028\u2029 \U0001F600", "a key": `"sequence":7,`,
	} {
		t.Run("every field, "+name, func(t *testing.T) {
			var e audit.Event
			fill(t, reflect.ValueOf(&e).Elem(), text)
			if got, want := string(auditlog.Encode(nil, &e)), reference(t, e); got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
	for name, events := range golden() {
		t.Run(name, func(t *testing.T) {
			for _, e := range events {
				if got, want := string(auditlog.Encode(nil, e)), reference(t, *e); got != want {
					t.Errorf("got  %s\nwant %s", got, want)
				}
			}
		})
	}
	t.Run("no field", func(t *testing.T) {
		if got, want := string(auditlog.Encode(nil, &audit.Event{})), reference(t, audit.Event{}); got != want {
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
		if got, want := string(auditlog.Encode(nil, &e)), reference(t, e); got != want {
			t.Errorf("byte %#x:\ngot  %s\nwant %s", c, got, want)
		}
	}
}

// TestFieldsAreSorted: encoding/json writes fields in their order, and so does go-json.
func TestFieldsAreSorted(t *testing.T) {
	seen := map[reflect.Type]bool{}
	var look func(reflect.Type)
	look = func(typ reflect.Type) {
		switch typ.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Map:
			look(typ.Elem())
		case reflect.Struct:
			if seen[typ] {
				return
			}
			seen[typ] = true
			var keys []string
			for i := range typ.NumField() {
				key, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
				keys = append(keys, key)
				look(typ.Field(i).Type)
			}
			if !slices.IsSorted(keys) {
				t.Errorf("%s: %v", typ, keys)
			}
		}
	}
	look(reflect.TypeFor[audit.Event]())
}

// eachInt sets all integers of some kinds below v that are not nil.
func eachInt(v reflect.Value, set func(int64) int64, kinds ...reflect.Kind) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			eachInt(v.Field(i), set, kinds...)
		}
	case reflect.Pointer:
		if !v.IsNil() {
			eachInt(v.Elem(), set, kinds...)
		}
	case reflect.Slice:
		for i := range v.Len() {
			eachInt(v.Index(i), set, kinds...)
		}
	}
	if slices.Contains(kinds, v.Kind()) {
		v.SetInt(set(v.Int()))
	}
}

// TestIntegersAreExact: a reader may take numbers for doubles, as JavaScript does. A number
// that a client declares is stored as the nearest double.
func TestIntegersAreExact(t *testing.T) {
	const largest = 1<<53 - 1
	for _, c := range []struct{ in, want int64 }{
		{math.MaxInt64, largest}, {math.MinInt64, -largest}, {largest + 1, largest}, {largest, largest}, {-largest - 1, -largest}, {7, 7},
	} {
		var e audit.Event
		v := reflect.ValueOf(&e).Elem()
		fill(t, v, "a")
		eachInt(v, func(int64) int64 { return c.want }, reflect.Int64)
		want := reference(t, e)
		eachInt(v, func(int64) int64 { return c.in }, reflect.Int64)
		if got := string(auditlog.Encode(nil, &e)); got != want {
			t.Errorf("%d:\ngot  %s\nwant %s", c.in, got, want)
		}
		if e.HTTPRequest.Length != c.in {
			t.Errorf("%d: the caller's event has changed", c.in)
		}
	}
}

// TestEqualNames: two tags that are the same once they are UTF-8 are no record.
func TestEqualNames(t *testing.T) {
	e := event("tags")
	e.Unmapped.Sallyport.Tags = map[string]string{"\xff": "1", "\xfe": "2"}
	l, err := auditlog.Open(t.TempDir(), auditlog.Options{})
	must.OK(t, err)
	defer l.Close()
	if err := l.Append(t.Context(), e); err == nil {
		t.Error("they are recorded")
	}
}

// FuzzEncode: any event is written in canonical form.
func FuzzEncode(f *testing.F) {
	for _, events := range golden() {
		for _, e := range events {
			f.Add(auditlog.Encode(nil, e))
		}
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var e audit.Event
		if json.Unmarshal(raw, &e) != nil {
			return
		}
		const largest = 1<<53 - 1
		eachInt(reflect.ValueOf(&e), func(n int64) int64 { return min(max(n, -largest), largest) }, reflect.Int, reflect.Int64)
		if got, want := string(auditlog.Encode(nil, &e)), reference(t, e); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	})
}
