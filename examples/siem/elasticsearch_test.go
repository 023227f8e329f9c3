package siem_test

import (
	"encoding/json"
	"net/netip"
	"os"
	"path"
	"testing"

	"sallyport/audit"
	"sallyport/internal/test/must"
)

type mapping struct {
	Type       string
	Path       string
	Properties map[string]mapping
}

// Each field of each record gets the type that its values are to be searched by.
func TestElasticsearch(t *testing.T) {
	b, err := os.ReadFile("elasticsearch/index-template.json")
	must.OK(t, err)
	var in struct {
		Template struct {
			Mappings struct {
				mapping
				Dynamic []map[string]struct {
					Of      string `json:"match_mapping_type"`
					Path    string `json:"path_match"`
					Mapping mapping
				} `json:"dynamic_templates"`
			}
		}
	}
	must.OK(t, json.Unmarshal(b, &in))
	m := in.Template.Mappings
	// typeOf is Elasticsearch's: what is mapped, else the first dynamic template, else the default.
	typeOf := func(field, kind string) string {
		at := m.mapping
		for _, key := range splitPath(field) {
			next, ok := at.Properties[key]
			if !ok {
				break
			}
			if at = next; at.Type != "" {
				return at.Type
			}
		}
		for _, named := range m.Dynamic {
			for _, d := range named {
				if ok, _ := path.Match(d.Path, field); d.Of == kind && (ok || d.Path == "") {
					return d.Mapping.Type
				}
			}
		}
		return kind
	}
	if alias := m.Properties["@timestamp"]; alias.Type != "alias" || m.Properties[alias.Path].Type != "date" {
		t.Errorf("@timestamp is %+v", alias)
	}
	tagged := audit.New(audit.KindDecision, audit.ClassHTTP, 3)
	tagged.Unmapped.Sallyport.Tags = map[string]string{"team": "a"}
	tagged.Unmapped.Sallyport.Checkpoint = "sallyport/…"
	records := recordsOf(t, []*audit.Event{tagged})
	for _, all := range golden(t) {
		for _, r := range all {
			records = append(records, parse(t, r))
		}
	}
	fields := 0
	for _, r := range records {
		delete(r, "event_hour") // is no record's
		for field, values := range r {
			for _, v := range values {
				fields++
				want := ""
				switch v := v.(type) {
				case bool:
					want = typeOf(field, "boolean")
					if want != "boolean" {
						t.Errorf("%s is %s", field, want)
					}
				case float64:
					want = "long"
					if v > 1.5e12 && v < 2.5e12 { // milliseconds since the Unix epoch
						want = "date"
					}
					if got := typeOf(field, "long"); got != want {
						t.Errorf("%s of %v is %s, want %s", field, v, got, want)
					}
				case string:
					want = "keyword"
					if _, err := netip.ParseAddr(v); err == nil {
						want = "ip"
					}
					switch splitPath(field)[len(splitPath(field))-1] {
					case "message":
						want = "text"
					case "team":
						want = "flattened"
					}
					if got := typeOf(field, "string"); got != want {
						t.Errorf("%s of %.40q is %s, want %s", field, v, got, want)
					}
				}
			}
		}
	}
	if fields < 500 {
		t.Errorf("%d values", fields)
	}
}
