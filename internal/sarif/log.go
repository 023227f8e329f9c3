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

// Log is a sarifLog object (section 3.13).
type Log struct {
	Version string `json:"version"`
	Schema  string `json:"$schema"`
	Runs    []Run  `json:"runs"`
}

// Run is a run object (section 3.14).
type Run struct {
	Tool       Tool     `json:"tool"`
	ColumnKind string   `json:"columnKind"`
	Results    []Result `json:"results"`
}

// Tool is a tool object (section 3.18).
type Tool struct {
	Driver Driver `json:"driver"`
}

// Driver is a toolComponent object (section 3.19).
type Driver struct {
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	Rules   []Rule `json:"rules"`
}

// Rule is a reportingDescriptor object (section 3.49).
type Rule struct {
	ID               string        `json:"id"`
	Name             string        `json:"name"`
	ShortDescription Message       `json:"shortDescription"`
	Configuration    Configuration `json:"defaultConfiguration"`
}

// Configuration is a reportingConfiguration object (section 3.50).
type Configuration struct {
	Level string `json:"level"`
}

// Message is a message or a multiformatMessageString object (sections 3.11, 3.12).
type Message struct {
	Text string `json:"text"`
}

// Result is a result object (section 3.27).
type Result struct {
	RuleID       string            `json:"ruleId"`
	RuleIndex    int               `json:"ruleIndex"`
	Level        string            `json:"level"`
	Message      Message           `json:"message"`
	Locations    []Location        `json:"locations,omitempty"`
	Fingerprints map[string]string `json:"partialFingerprints"`
}

// Location is a location object (section 3.28).
type Location struct {
	Physical PhysicalLocation `json:"physicalLocation"`
}

// PhysicalLocation is an object of that name (section 3.29).
type PhysicalLocation struct {
	Artifact Artifact `json:"artifactLocation"`
	Region   *Region  `json:"region,omitempty"`
}

// Artifact is an artifactLocation object (section 3.4).
type Artifact struct {
	URI string `json:"uri"`
}

// Region is a region object (section 3.30); its numbers count from 1.
type Region struct {
	StartLine   int `json:"startLine"`
	StartColumn int `json:"startColumn,omitempty"`
}

// New makes a log of findings. Files below dir are named relative to it.
func New(findings []finding.Finding, version, dir string) Log {
	run := Run{
		Tool:       Tool{Driver{Name: "sallyport", Version: version}},
		ColumnKind: "unicodeCodePoints",
		Results:    []Result{},
	}
	index := map[finding.Kind]int{}
	for i, m := range finding.Meanings() {
		index[m.Kind] = i
		run.Tool.Driver.Rules = append(run.Tool.Driver.Rules, Rule{
			ID: string(m.Kind), Name: m.Name, ShortDescription: Message{m.Title}, Configuration: Configuration{m.Severity.String()},
		})
	}
	for _, f := range findings {
		i, known := index[f.Kind]
		if !known {
			f.Kind = finding.BadValue
			i = index[f.Kind]
		}
		r := Result{RuleID: string(f.Kind), RuleIndex: i, Level: f.Severity.String(), Message: Message{text(f)}}
		uri := ""
		if f.Position.File != "" {
			uri = artifact(f.Position.File, dir)
			at := Location{PhysicalLocation{Artifact: Artifact{uri}}}
			if f.Position.Line > 0 {
				at.Physical.Region = &Region{f.Position.Line, f.Position.Column}
			}
			r.Locations = []Location{at}
		}
		// The line is no part of it: a finding stays the same when it moves.
		sum := sha256.Sum256([]byte(string(f.Kind) + "\n" + uri + "\n" + f.Message))
		r.Fingerprints = map[string]string{"finding/v1": hex.EncodeToString(sum[:8])}
		run.Results = append(run.Results, r)
	}
	return Log{
		Version: "2.1.0",
		Schema:  "https://docs.oasis-open.org/sarif/sarif/v2.1.0/os/schemas/sarif-schema-2.1.0.json",
		Runs:    []Run{run},
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
