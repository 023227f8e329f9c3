// Command extract takes from a clone of github.com/ocsf/ocsf-schema the part that
// Sallyport's events are checked against, without the descriptions.
//
//	go run ./internal/test/ocsf/extract -repo CLONE -rev COMMIT > internal/test/ocsf/testdata/VERSION.json
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
)

// events are the classes that Sallyport writes, with what they extend.
var events = []string{
	"base_event", "network/network", "network/network_activity", "network/http_activity", "network/dns_activity", "network/ssh_activity",
	"iam/iam", "iam/entity_management", "application/application", "application/api_activity", "application/application_lifecycle",
	"findings/finding", "findings/detection_finding",
}

// objects are those that its events have, with what they extend.
var objects = []string{
	"object", "_entity", "_resource", "actor", "ai_model", "analytic", "api", "attestation", "container", "device", "dns_query", "_dns", "endpoint", "evidences",
	"finding_info", "fingerprint", "firewall_rule", "http_request", "http_response", "image", "key_value_object", "managed_entity",
	"message_context", "metadata", "network_connection_info", "network_endpoint", "network_proxy", "network_traffic", "policy",
	"product", "related_event", "request", "resource_details", "response", "rule", "service", "tls", "url", "user",
}

func main() {
	repo := flag.String("repo", "", "a clone of ocsf-schema")
	rev := flag.String("rev", "", "its commit")
	flag.Parse()
	if err := run(*repo, *rev); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type tree struct{ repo, rev string }

// read decodes a file of the schema; nil if there is none.
func (t tree) read(name string) (map[string]any, error) {
	out, err := exec.Command("git", "-C", t.repo, "show", t.rev+":"+name).Output()
	if err != nil {
		return nil, nil
	}
	var v map[string]any
	if err := json.Unmarshal(out, &v); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	strip(v)
	return v, nil
}

// strip leaves out what is for people.
func strip(v any) {
	m, ok := v.(map[string]any)
	if !ok {
		return
	}
	for k, below := range m {
		_, text := below.(string)
		switch {
		case text && (k == "description" || k == "caption" || k == "group"), k == "references", k == "observable", k == "type_name":
			delete(m, k)
		default:
			strip(below)
		}
	}
}

func run(repo, rev string) error {
	t := tree{repo, rev}
	commit, err := exec.Command("git", "-C", repo, "rev-parse", rev).Output()
	if err != nil {
		return fmt.Errorf("%s has no %s: %w", repo, rev, err)
	}
	out := map[string]any{"commit": strings.TrimSpace(string(commit))}
	used := map[string]bool{}
	for folder, names := range map[string][]string{"events": events, "objects": objects} {
		kept := map[string]any{}
		for _, name := range names {
			v, err := t.read(folder + "/" + name + ".json")
			if err != nil {
				return err
			}
			if v != nil {
				kept[path.Base(name)] = v
				names, _ := v["attributes"].(map[string]any)
				for k := range names {
					used[k] = true
				}
			}
		}
		out[folder] = kept
	}
	list, err := exec.Command("git", "-C", repo, "ls-tree", "--name-only", rev, "profiles/").Output()
	if err != nil {
		return err
	}
	profiles := map[string]any{}
	for name := range strings.FieldsSeq(string(list)) {
		v, err := t.read(name)
		if err != nil {
			return err
		}
		profiles[strings.TrimSuffix(path.Base(name), ".json")] = v
		names, _ := v["attributes"].(map[string]any)
		for k := range names {
			used[k] = true
		}
	}
	out["profiles"] = profiles
	dictionary, err := t.read("dictionary.json")
	if err != nil {
		return err
	}
	attributes := dictionary["attributes"].(map[string]any)
	for k := range attributes {
		if !used[k] {
			delete(attributes, k)
		}
	}
	out["attributes"] = attributes
	out["types"] = dictionary["types"].(map[string]any)["attributes"]
	categories, err := t.read("categories.json")
	if err != nil {
		return err
	}
	out["categories"] = categories["attributes"]
	version, err := t.read("version.json")
	if err != nil {
		return err
	}
	out["version"] = version["version"]
	return write(out)
}

// write has one line for each file and attribute.
func write(out map[string]any) error {
	var b strings.Builder
	b.WriteString("{")
	for i, k := range slices.Sorted(maps.Keys(out)) {
		if i > 0 {
			b.WriteString(",")
		}
		fmt.Fprintf(&b, "\n%q: ", k)
		below, ok := out[k].(map[string]any)
		if !ok {
			line, err := json.Marshal(out[k])
			if err != nil {
				return err
			}
			b.Write(line)
			continue
		}
		b.WriteString("{")
		for i, name := range slices.Sorted(maps.Keys(below)) {
			line, err := json.Marshal(below[name])
			if err != nil {
				return err
			}
			if i > 0 {
				b.WriteString(",")
			}
			fmt.Fprintf(&b, "\n  %q: %s", name, line)
		}
		b.WriteString("\n}")
	}
	b.WriteString("\n}\n")
	_, err := os.Stdout.WriteString(b.String())
	return err
}
