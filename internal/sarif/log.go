// Package sarif writes findings in the Static Analysis Results Interchange
// Format (SARIF 2.1.0, an OASIS standard), which code scanners and editors read.
package sarif

import (
	"crypto/sha256"
	"encoding/hex"
	"net/url"
	"path/filepath"
	"strings"

	"sallyport/policy/finding"
)

type object = map[string]any

// New makes a sarifLog object (section 3.13) of findings. Files below dir are named relative
// to it.
func New(findings []finding.Finding, version, dir string) any {
	index := map[finding.Kind]int{}
	var rules []object // reportingDescriptor objects (section 3.49)
	for i, m := range finding.Meanings() {
		index[m.Kind] = i
		rules = append(rules, object{
			"id": m.Kind, "name": m.Name, "shortDescription": object{"text": m.Title}, "defaultConfiguration": object{"level": m.Severity.String()},
		})
	}
	results := []object{} // section 3.27
	for _, f := range findings {
		if _, known := index[f.Kind]; !known {
			f.Kind = finding.BadValue
		}
		r := object{"ruleId": f.Kind, "ruleIndex": index[f.Kind], "level": f.Severity.String(), "message": object{"text": text(f)}}
		uri := ""
		if f.Position.File != "" {
			uri = artifact(f.Position.File, dir)
			at := object{"artifactLocation": object{"uri": uri}}
			if f.Position.Line > 0 {
				region := object{"startLine": f.Position.Line} // section 3.30: numbers count from 1
				if f.Position.Column > 0 {
					region["startColumn"] = f.Position.Column
				}
				at["region"] = region
			}
			r["locations"] = []object{{"physicalLocation": at}}
		}
		// The line is no part of it: a finding stays the same when it moves.
		sum := sha256.Sum256([]byte(string(f.Kind) + "\n" + uri + "\n" + f.Message))
		r["partialFingerprints"] = object{"finding/v1": hex.EncodeToString(sum[:8])}
		results = append(results, r)
	}
	driver := object{"name": "sallyport", "rules": rules} // section 3.19
	if version != "" {
		driver["version"] = version
	}
	return struct { // which says first what it is
		Version string   `json:"version"`
		Schema  string   `json:"$schema"`
		Runs    []object `json:"runs"`
	}{
		"2.1.0", "https://docs.oasis-open.org/sarif/sarif/v2.1.0/os/schemas/sarif-schema-2.1.0.json",
		[]object{{"tool": object{"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}},
	}
}

func text(f finding.Finding) string {
	var b strings.Builder
	if f.Path != "" {
		b.WriteString(f.Path + ": ")
	}
	b.WriteString(f.Message)
	if f.Fix != "" {
		b.WriteString("; " + f.Fix)
	}
	return b.String()
}

// artifact is a file's URI reference (RFC 3986): relative below dir, else absolute.
func artifact(file, dir string) string {
	abs, err := filepath.Abs(file)
	if err != nil {
		return (&url.URL{Path: filepath.ToSlash(file)}).String()
	}
	if rel, err := filepath.Rel(dir, abs); err == nil && filepath.IsLocal(rel) {
		return (&url.URL{Path: filepath.ToSlash(rel)}).String()
	}
	return (&url.URL{Scheme: "file", Path: filepath.ToSlash(abs)}).String()
}
