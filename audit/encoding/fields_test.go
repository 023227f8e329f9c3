package encoding_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/internal/test/must"
)

const fieldsPage = "../../docs/reference/audit-fields.md"

// aside are fields that hold the record, or a hash of it.
var aside = []string{"event.original", "event.hash", "rawEvent", "cs6", "raw_data", "unmapped.leaf_hash"}

// flat is an encoded record as a list of fields with their values.
func flat(t *testing.T, name string, r auditlog.Entry) map[string]string {
	t.Helper()
	line := encode(t, name, r)
	all := map[string]string{}
	if name == "cef" {
		header, ext := parseCEF(t, string(line))
		for i, field := range []string{"", "Device Vendor", "Device Product", "Device Version", "Signature ID", "Name", "Severity"} {
			if i > 0 {
				all[field] = header[i]
			}
		}
		for k, v := range ext {
			if !strings.HasSuffix(k, "Label") {
				all[k] = v
			}
		}
	} else {
		var doc any
		must.OK(t, json.Unmarshal(line, &doc))
		leaves("", doc, func(path string, v any) {
			b, _ := json.Marshal(v)
			all[path] = string(b)
			if list, ok := v.([]any); ok && len(list) > 0 {
				for _, one := range list {
					leaves(path+"[]", one, func(path string, v any) {
						b, _ := json.Marshal(v)
						all[path] = string(b)
					})
				}
			}
		})
	}
	for _, path := range aside {
		delete(all, path)
	}
	return all
}

// added are the fields that one event has in an encoding, and another has not, or with
// another value.
func added(with, without map[string]string) (paths []string) {
	for _, path := range slices.Sorted(maps.Keys(with)) {
		if v, ok := without[path]; !ok || v != with[path] {
			list := path + "[]"
			if _, below := with[list]; below || slices.ContainsFunc(slices.Collect(maps.Keys(with)), func(p string) bool { return strings.HasPrefix(p, list+".") }) {
				continue // its elements say more
			}
			paths = append(paths, path)
		}
	}
	return paths
}

// field is a field of an event, which reach finds in one, with the structs that it is in.
type field struct {
	path  string
	reach func(e reflect.Value) reflect.Value
}

// eachField lists the fields below a type, in the order of their keys.
func eachField(at string, typ reflect.Type, reach func(reflect.Value) reflect.Value) (all []field) {
	switch typ.Kind() {
	case reflect.Pointer:
		return eachField(at, typ.Elem(), func(e reflect.Value) reflect.Value {
			v := reach(e)
			if v.IsNil() {
				v.Set(reflect.New(typ.Elem()))
			}
			return v.Elem()
		})
	case reflect.Slice:
		return eachField(at+"[]", typ.Elem(), func(e reflect.Value) reflect.Value {
			v := reach(e)
			if v.Len() == 0 {
				v.Set(reflect.MakeSlice(typ, 1, 1))
			}
			return v.Index(0)
		})
	case reflect.Struct:
		for i := range typ.NumField() {
			key, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
			all = append(all, eachField(strings.TrimPrefix(at+"."+key, "."), typ.Field(i).Type, func(e reflect.Value) reflect.Value { return reach(e).Field(i) })...)
		}
		return all
	}
	return []field{{at, reach}}
}

// values are those of fields that only some values show.
var values = map[string]string{"http_request.http_method": "PUT", "unmapped.sallyport.http_method": "FETCH", "unmapped.sallyport.kind": "drop", "evidences[].http_request.http_method": "PUT"}

func setField(path string, v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString("x")
		if value, ok := values[path]; ok {
			v.SetString(value)
		}
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Map:
		v.Set(reflect.ValueOf(map[string]string{"NAME": "x"}))
	case reflect.Uint64:
		v.SetUint(2)
	default:
		v.SetInt(1)
		if path == "severity_id" {
			v.SetInt(4)
		}
	}
}

// TestFields: the page of fields says what becomes of each field in each encoding, as the
// encoders have it.
func TestFields(t *testing.T) {
	plain := func() *audit.Event {
		e := audit.New(audit.KindDecision, audit.ClassHTTP, 3)
		e.Metadata.UID, e.Metadata.Profiles, e.Time, e.StatusID = "id", nil, 0, audit.StatusFailure
		e.Metadata.Product = audit.Product{}
		return e
	}
	names := []string{"ocsf-1.8", "ocsf-1.5", "ecs", "cef"}
	var b strings.Builder
	b.WriteString("| OCSF 1.9.0 | 1.8.0, 1.5.0 | ECS | CEF |\n|---|---|---|---|\n")
	for _, f := range eachField("", reflect.TypeFor[audit.Event](), func(e reflect.Value) reflect.Value { return e }) {
		without, with := plain(), plain()
		f.reach(reflect.ValueOf(without).Elem()) // has the structs that it is in
		setField(f.path, f.reach(reflect.ValueOf(with).Elem()))
		number := uint64(1)
		if f.path == "metadata.sequence" {
			number = 2
		}
		got := map[string][]string{}
		for _, name := range names {
			got[name] = added(flat(t, name, entry(t, with, number)), flat(t, name, entry(t, without, 1)))
		}
		b.WriteString("| `" + f.path + "`")
		b.WriteString(" | " + older(f.path, got["ocsf-1.8"], got["ocsf-1.5"]))
		b.WriteString(" | " + quoted(got["ecs"]) + " | " + quoted(got["cef"]) + " |\n")
	}
	text, err := os.ReadFile(fieldsPage)
	must.OK(t, err)
	const begin, end = "<!-- fields -->\n", "<!-- end of fields -->"
	before, rest, ok := strings.Cut(string(text), begin)
	_, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatal("the page has no place for the table")
	}
	want := before + begin + b.String() + end + after
	if *update {
		must.OK(t, os.WriteFile(fieldsPage, []byte(want), 0o644))
		return
	}
	if diff := cmp.Diff(strings.Split(string(text), "\n"), strings.Split(want, "\n")); diff != "" {
		t.Errorf("%s is not what the encoders do: run the test with -update (-page +encoders):\n%s", fieldsPage, diff)
	}
}

// older says whether older versions of OCSF have a field.
func older(path string, in18, in15 []string) string {
	if path == "unmapped.sallyport.tags" {
		path += ".NAME"
	}
	switch has18, has15 := slices.Contains(in18, path), slices.Contains(in15, path); {
	case has18 && has15:
		return "same"
	case has18:
		return "1.8.0 only"
	case path == "metadata.version":
		return "its own"
	}
	return "none"
}

func quoted(paths []string) string {
	for i, p := range paths {
		paths[i] = fmt.Sprintf("`%s`", p)
	}
	return strings.Join(paths, " ")
}
