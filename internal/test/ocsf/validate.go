package ocsf

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Validate says what of an event the schema does not have.
func (s *Schema) Validate(event []byte) error {
	d := json.NewDecoder(bytes.NewReader(event))
	d.UseNumber()
	var e map[string]any
	if err := d.Decode(&e); err != nil {
		return err
	}
	uid, _ := e["class_uid"].(json.Number)
	n, _ := strconv.Atoi(uid.String())
	class := s.classes[n]
	if class == nil {
		return fmt.Errorf("no class %s is kept of %s", uid, s.version)
	}
	v := &validation{schema: s, class: class, profiles: map[string]bool{}}
	metadata, _ := e["metadata"].(map[string]any)
	if metadata["version"] != s.version {
		v.fail("metadata.version", "is %v", metadata["version"])
	}
	named, _ := metadata["profiles"].([]any)
	for _, p := range named {
		v.profiles[fmt.Sprint(p)] = true
	}
	if !slices.IsSortedFunc(named, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) }) {
		v.fail("metadata.profiles", "are not sorted: %v", named)
	}
	v.used = maps.Clone(class.profiles)
	v.object("", class, e)
	for p := range v.profiles {
		if !v.used[p] {
			v.fail("metadata.profiles", "%s is none of %s, and of no object that is there", p, class.name)
		}
	}
	v.number(e, "category_uid", n/1000)
	activity, _ := e["activity_id"].(json.Number)
	a, _ := strconv.Atoi(activity.String())
	v.number(e, "type_uid", n*100+a)
	return errors.Join(v.errs...)
}

type validation struct {
	schema   *Schema
	class    *definition
	profiles map[string]bool // that the event names
	used     map[string]bool // that its class and objects have
	errs     []error
}

func (v *validation) fail(path, format string, args ...any) {
	v.errs = append(v.errs, fmt.Errorf("%s %s: %s", v.class.name, path, fmt.Sprintf(format, args...)))
}

// number checks what follows from the class and the activity.
func (v *validation) number(e map[string]any, key string, want int) {
	if got := fmt.Sprint(e[key]); got != strconv.Itoa(want) {
		v.fail(key, "is %s, not %d", got, want)
	}
}

func (v *validation) object(path string, d *definition, o map[string]any) {
	for p := range d.profiles {
		v.used[p] = true
	}
	for _, key := range slices.Sorted(maps.Keys(o)) {
		at := strings.TrimPrefix(path+"."+key, ".")
		a, ok := d.attributes[key]
		switch {
		case !ok:
			v.fail(at, "there is no such attribute")
			continue
		case a.profile != "" && !v.profiles[a.profile]:
			v.fail(at, "is of profile %s, which the event does not name", a.profile)
		case a.Deprecated != nil:
			v.fail(at, "is deprecated: %s", a.Deprecated.Message)
		}
		if a.Array {
			list, ok := o[key].([]any)
			if !ok {
				v.fail(at, "is no array")
			}
			for i, x := range list {
				v.value(fmt.Sprintf("%s[%d]", at, i), key, a, x)
			}
			continue
		}
		v.value(at, key, a, o[key])
		if n, ok := o[key].(json.Number); ok && n.String() == "99" && a.Sibling != "" && o[a.Sibling] == nil {
			v.fail(at, "is 99, and %s does not say what", a.Sibling)
		}
	}
	for key, a := range d.attributes {
		if _, ok := o[key]; !ok && a.Requirement == "required" && (a.profile == "" || v.profiles[a.profile]) {
			v.fail(path, "has no %s", key)
		}
	}
	for kind, of := range d.constraints {
		n := 0
		for _, key := range of {
			if _, ok := o[key]; ok {
				n++
			}
		}
		if kind == "at_least_one" && n < 1 || kind == "just_one" && n != 1 {
			v.fail(path, "has %d of %v: %s", n, of, kind)
		}
	}
}

func (v *validation) value(path, key string, a attribute, x any) {
	if x == nil {
		v.fail(path, "is null")
		return
	}
	if len(a.Enum) > 0 && key != "class_uid" && key != "category_uid" {
		if _, ok := a.Enum[fmt.Sprint(x)]; !ok {
			v.fail(path, "is %v, which is none of the enumeration", x)
		}
	}
	if _, ok := v.schema.types[a.Type]; ok {
		v.scalar(path, a.Type, x)
		return
	}
	o, ok := x.(map[string]any)
	switch d := v.schema.objects[a.Type]; {
	case !ok:
		v.fail(path, "is no %s", a.Type)
	case a.Type == "object": // anything
	case d == nil:
		v.fail(path, "no object %s is kept", a.Type)
	default:
		v.object(path, d, o)
	}
}

func (v *validation) scalar(path, name string, x any) {
	t := v.schema.types[name]
	base := name
	if t.Type != "" {
		base = t.Type
	}
	n, number := x.(json.Number)
	text, isText := x.(string)
	switch base {
	case "json_t":
		return
	case "boolean_t":
		if _, ok := x.(bool); !ok {
			v.fail(path, "is no boolean: %v", x)
		}
		return
	case "float_t":
		if !number {
			v.fail(path, "is no number: %v", x)
		}
		return
	case "integer_t", "long_t":
		i, err := strconv.ParseInt(n.String(), 10, map[string]int{"integer_t": 32, "long_t": 64}[base])
		if !number || err != nil {
			v.fail(path, "is no %s: %v", base, x)
		}
		if len(t.Range) == 2 && (i < t.Range[0] || i > t.Range[1]) {
			v.fail(path, "is not within %v: %d", t.Range, i)
		}
		return
	}
	switch {
	case !isText:
		v.fail(path, "is no text: %v", x)
	case t.pattern != nil && !t.pattern.MatchString(text), t.Max > 0 && utf8.RuneCountInString(text) > t.Max:
		v.fail(path, "is no %s: %q", name, text)
	}
}
