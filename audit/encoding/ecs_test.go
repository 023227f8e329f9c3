package encoding_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"sallyport/internal/test/must"
	"sallyport/internal/test/stories"
)

// fields are those of a version of ECS, with their types.
func fields(t *testing.T, version string) map[string][]string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "ecs", version+".tsv"))
	must.OK(t, err)
	all := map[string][]string{}
	for line := range strings.Lines(string(b)) {
		name, typ, _ := strings.Cut(strings.TrimSpace(line), "\t")
		all[name] = strings.Split(typ, "\t")
	}
	return all
}

// leaves calls f with each field below v.
func leaves(at string, v any, f func(path string, v any)) {
	if m, ok := v.(map[string]any); ok {
		for k, below := range m {
			leaves(strings.TrimPrefix(at+"."+k, "."), below, f)
		}
		return
	}
	f(at, v)
}

// allowed are the values of ECS that sort events.
var allowed = map[string][]string{
	"event.kind":     {"alert", "event"},
	"event.outcome":  {"failure", "success", "unknown"},
	"event.category": {"api", "authentication", "configuration", "iam", "intrusion_detection", "network", "process", "session", "web"},
	"event.type":     {"access", "allowed", "change", "connection", "creation", "deletion", "denied", "end", "error", "info", "start"},
}

var macForm = regexp.MustCompile(`^[0-9A-F]{2}(-[0-9A-F]{2}){5}$`)

// TestECS: each field is one of the schema, of its type, or below sallyport and labels.
func TestECS(t *testing.T) {
	for _, version := range []string{"8.17.0", "9.3.0"} {
		known := fields(t, version)
		for story, events := range stories.Events() {
			for _, e := range events {
				t.Run(version+" "+story, func(t *testing.T) {
					var doc any
					must.OK(t, json.Unmarshal(encode(t, "ecs", entry(t, e, 7)), &doc))
					leaves("", doc, func(path string, v any) {
						if strings.HasPrefix(path, "sallyport.") || strings.HasPrefix(path, "labels.") || version == "8.17.0" && strings.HasPrefix(path, "gen_ai.") {
							return
						}
						typ, ok := known[path]
						if !ok {
							t.Errorf("%s is no field of ECS %s", path, version)
							return
						}
						values, list := v.([]any)
						if list != (len(typ) > 1) {
							t.Errorf("%s: an array is %v", path, len(typ) > 1)
						}
						if !list {
							values = []any{v}
						}
						for _, v := range values {
							checkType(t, path, typ[0], v)
							if all := allowed[path]; all != nil && !slices.Contains(all, fmt.Sprint(v)) {
								t.Errorf("%s: %v is none of %v", path, v, all)
							}
						}
					})
				})
			}
		}
	}
}

func checkType(t *testing.T, path, typ string, v any) {
	t.Helper()
	text, isText := v.(string)
	n, isNumber := v.(float64)
	ok := isText
	switch typ {
	case "date":
		_, err := time.Parse(time.RFC3339, text)
		ok = ok && err == nil
	case "ip":
		_, err := netip.ParseAddr(text)
		ok = ok && err == nil
	case "long", "integer":
		ok = isNumber && n == float64(int64(n))
	}
	if strings.HasSuffix(path, ".mac") {
		ok = ok && macForm.MatchString(text)
	}
	if !ok {
		t.Errorf("%s: %v is no %s", path, v, typ)
	}
}
