package sarif_test

import (
	"encoding/json"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sallyport/internal/sarif"
	"sallyport/internal/test/must"
	"sallyport/policy/finding"
)

// TestLog holds the log to what SARIF 2.1.0 asks of one. The standard's own JSON
// schema has no licence to be copied here, so its demands are spelled out.
func TestLog(t *testing.T) {
	dir := t.TempDir()
	findings := []finding.Finding{
		{Kind: finding.UnknownKey, Position: finding.Position{File: filepath.Join(dir, "a b/sallyport.yaml"), Line: 3, Column: 5}, Path: "egres", Message: "unknown key", Fix: "did you mean \"egress\"?"},
		{Kind: finding.AnyTenant, Severity: finding.Warning, Position: finding.Position{File: "/elsewhere/x.rego", Line: 1}, Message: "m"},
		{Kind: finding.Tunnelled, Severity: finding.Note, Position: finding.Position{File: filepath.Join(dir, "x.yaml")}, Message: "n"},
		{Message: "of no file"},
	}
	text, err := json.Marshal(sarif.New(findings, "v1", dir))
	must.OK(t, err)
	var log map[string]any
	must.OK(t, json.Unmarshal(text, &log))
	exactly(t, "sarifLog", log, "version", "$schema", "runs")
	if log["version"] != "2.1.0" {
		t.Errorf("version: got %v", log["version"])
	}
	run := log["runs"].([]any)[0].(map[string]any)
	exactly(t, "run", run, "tool", "columnKind", "results")
	if run["columnKind"] != "unicodeCodePoints" && run["columnKind"] != "utf16CodeUnits" {
		t.Errorf("columnKind: got %v", run["columnKind"])
	}
	driver := run["tool"].(map[string]any)["driver"].(map[string]any)
	exactly(t, "driver", driver, "name", "version", "rules")
	rules := driver["rules"].([]any)
	ids := map[any]bool{}
	for _, r := range rules {
		r := r.(map[string]any)
		exactly(t, "rule", r, "id", "name", "shortDescription", "defaultConfiguration")
		if ids[r["id"]] {
			t.Errorf("%v is there twice, and rules have to be unique", r["id"])
		}
		ids[r["id"]] = true
		level(t, r["defaultConfiguration"].(map[string]any)["level"])
		message(t, r["shortDescription"])
	}
	results := run["results"].([]any)
	var uris []string
	for i, r := range results {
		r := r.(map[string]any)
		want := []string{"ruleId", "ruleIndex", "level", "message", "partialFingerprints"}
		if findings[i].Position.File != "" {
			want = append(want, "locations")
		}
		exactly(t, "result", r, want...)
		level(t, r["level"])
		message(t, r["message"])
		rule := rules[int(r["ruleIndex"].(float64))].(map[string]any)
		if rule["id"] != r["ruleId"] {
			t.Errorf("ruleIndex leads to %v, ruleId is %v", rule["id"], r["ruleId"])
		}
		locations, _ := r["locations"].([]any)
		for _, l := range locations {
			at := l.(map[string]any)["physicalLocation"].(map[string]any)
			uri := at["artifactLocation"].(map[string]any)["uri"].(string)
			if _, err := url.Parse(uri); err != nil {
				t.Error(err)
			}
			uris = append(uris, uri)
			if region, ok := at["region"].(map[string]any); ok {
				if region["startLine"].(float64) < 1 {
					t.Errorf("region: %v", region)
				}
				if c, ok := region["startColumn"]; ok && c.(float64) < 1 {
					t.Errorf("region: %v", region)
				}
			}
		}
	}
	if diff := cmp.Diff(uris, []string{"a%20b/sallyport.yaml", "file:///elsewhere/x.rego", "x.yaml"}); diff != "" {
		t.Error(diff)
	}
	if got := results[0].(map[string]any)["level"]; got != "error" {
		t.Errorf("got %v", got)
	}
}

// TestNothing: results are an empty list and not missing, which would say that
// nothing was looked at.
func TestNothing(t *testing.T) {
	text, err := json.Marshal(sarif.New(nil, "", "/"))
	must.OK(t, err)
	if !regexp.MustCompile(`"results":\[\]`).Match(text) {
		t.Errorf("got %s", text)
	}
}

func exactly(t *testing.T, what string, o map[string]any, keys ...string) {
	t.Helper()
	var got []string
	for k := range o {
		got = append(got, k)
	}
	slices.Sort(got)
	slices.Sort(keys)
	if diff := cmp.Diff(got, keys); diff != "" {
		t.Errorf("%s: %s", what, diff)
	}
}

func level(t *testing.T, l any) {
	t.Helper()
	if l != "error" && l != "warning" && l != "note" {
		t.Errorf("level %v", l)
	}
}

func message(t *testing.T, m any) {
	t.Helper()
	if text, _ := m.(map[string]any)["text"].(string); text == "" {
		t.Errorf("message %v", m)
	}
}
