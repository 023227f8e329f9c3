package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"
	"github.com/open-policy-agent/opa/v1/rego"

	"sallyport/internal/test/must"
)

const root = "../../.."

func published(t *testing.T) map[string]any {
	t.Helper()
	text, err := os.ReadFile(root + "/policy/schema/sallyport.json")
	must.OK(t, err)
	var schema map[string]any
	must.OK(t, json.Unmarshal(text, &schema))
	return schema
}

// TestCurrent holds that the published schema is what the structs say.
func TestCurrent(t *testing.T) {
	got, err := os.ReadFile(root + "/policy/schema/sallyport.json")
	must.OK(t, err)
	want, err := generate(root)
	must.OK(t, err)
	if diff := cmp.Diff(string(got), string(want)); diff != "" {
		t.Errorf("run make generate, and commit: %s", diff)
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

var block = regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$")

// TestListings holds that an editor with the schema finds nothing wrong with what
// the documents show, and with the examples.
func TestListings(t *testing.T) {
	schema := published(t)
	listings := map[string]string{}
	documents, err := filepath.Glob(root + "/docs/*/*.md")
	must.OK(t, err)
	for _, file := range append(documents, root+"/README.md") {
		text, err := os.ReadFile(file)
		must.OK(t, err)
		for _, b := range block.FindAllStringSubmatch(string(text), -1) {
			if strings.HasPrefix(b[1], "inject:") { // a line is a part of a rule
				continue
			}
			listings[file+": "+b[1]] = b[1]
		}
	}
	err = filepath.WalkDir(root+"/examples", func(file string, e os.DirEntry, err error) error {
		if err != nil || e.Name() != "sallyport.yaml" || filepath.Base(filepath.Dir(file)) == "kubernetes" { // there it is objects of Kubernetes
			return err
		}
		text, err := os.ReadFile(file)
		if !strings.HasPrefix(string(text), "# yaml-language-server: $schema=") {
			t.Errorf("%s does not begin with where its schema is", file)
		}
		listings[file] = string(text)
		return err
	})
	must.OK(t, err)
	if len(listings) < 6 {
		t.Errorf("only %d listings", len(listings))
	}
	for where, text := range listings {
		if ok, why := matches(t, schema, decode(t, text)); !ok {
			t.Errorf("%s: %s", where, why)
		}
	}
}

func decode(t *testing.T, text string) any {
	t.Helper()
	var v any
	if err := yaml.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return v
}

// TestRefuses holds that an editor marks what the daemon would refuse.
func TestRefuses(t *testing.T) {
	schema := published(t)
	for _, text := range []string{
		"egres: []",
		"egress: [{name: x}]",
		"egress: [{destination: a, method: [GET]}]",
		"egress: [{destination: a, action: alow}]",
		"egress: [{destination: a, ports: [0]}]",
		"egress: [{destination: a, ports: ['443']}]",
		"egress: {destination: a}",
		"egressAuth: [{destination: a}]",
		"credentials: [{source: {}}]",
		"policy: {timeout: 5}",
		"policy: {cache: -1}",
		"network: {subnet: 10.0.0.0}",
		"limits: [{every: 1h}]",
		"limits: [{name: a, bytes: 1Mib}]",
		"limits: [{name: a, every: daily}]",
		"limits: [{name: a, hours: {days: [monday]}}]",
		"egressAuth: [{destination: a, authRef: b, inject: {header: {name: X}}}]",
	} {
		if ok, _ := matches(t, schema, decode(t, text)); ok {
			t.Errorf("%s: nothing is wrong with it", text)
		}
	}
	if ok, why := matches(t, schema, map[string]any{}); !ok {
		t.Errorf("an empty file: %s", why)
	}
}
