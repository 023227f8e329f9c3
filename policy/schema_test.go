package policy_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/open-policy-agent/opa/v1/rego"

	"sallyport/internal/test/must"
)

// TestSchemas holds that every key of every published schema has a description
// and an example, and that each example is what the key may hold.
func TestSchemas(t *testing.T) {
	files, err := filepath.Glob("schema/*.json")
	if err != nil || len(files) < 3 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		must.OK(t, err)
		var schema map[string]any
		must.OK(t, json.Unmarshal(text, &schema))
		var walk func(at string, n map[string]any)
		walk = func(at string, n map[string]any) {
			properties, _ := n["properties"].(map[string]any)
			for key, p := range properties {
				p, at := p.(map[string]any), at+"."+key
				if s, _ := p["description"].(string); s == "" {
					t.Errorf("%s has no description", at)
				}
				examples, _ := p["examples"].([]any)
				if len(examples) == 0 {
					t.Errorf("%s has no example", at)
				}
				alone := map[string]any{"properties": map[string]any{"it": p}, "definitions": schema["definitions"]}
				if alone["definitions"] == nil {
					delete(alone, "definitions")
				}
				for _, e := range examples {
					if ok, why := matches(t, alone, map[string]any{"it": e}); !ok {
						t.Errorf("%s: the example %v: %s", at, e, why)
					}
				}
				walk(at, p)
			}
		}
		walk(file, schema)
		definitions, _ := schema["definitions"].(map[string]any)
		for name, n := range definitions {
			walk(file+" "+name, n.(map[string]any))
		}
	}
}

// matches is OPA's validator of JSON schemas.
func matches(t *testing.T, schema, document any) (bool, string) {
	t.Helper()
	rs, err := rego.New(rego.Query("json.match_schema(input.document, input.schema)"),
		rego.Input(map[string]any{"document": document, "schema": schema})).Eval(t.Context())
	if err != nil || len(rs) != 1 {
		t.Fatalf("%v, %v", rs, err)
	}
	pair := rs[0].Expressions[0].Value.([]any)
	why, _ := json.Marshal(pair[1])
	return pair[0].(bool), string(why)
}
