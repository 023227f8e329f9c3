// Package ocsf checks events against the published schema of the Open Cybersecurity
// Schema Framework (https://github.com/ocsf/ocsf-schema), of which testdata has the part
// that Sallyport's events use.
//
// It checks what the schema's own validation does: that all that is required is there,
// that nothing is which the class, its profiles and its objects do not have or have
// deprecated, that values are of the attribute's type and enumeration, and that
// constraints hold. Recommended fields are not asked for.
package ocsf

import (
	"embed"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"strings"
)

//go:embed testdata/*.json
var files embed.FS

// Versions are those that there are: the file of each in testdata.
var Versions = map[string]string{"1.5.0": "1.5.0", "1.8.0": "1.8.0", "1.9.0": "1.9.0-dev"}

// Schema is one version.
type Schema struct {
	version string
	classes map[int]*definition
	objects map[string]*definition
	types   map[string]scalar
	enums   map[string]map[string]json.RawMessage // of the dictionary, by attribute
}

// definition is a class or an object, with what it inherits and includes.
type definition struct {
	name        string
	uid         int // of a class
	attributes  map[string]attribute
	constraints map[string][]string
	profiles    map[string]bool
}

// attribute is the dictionary's, with what its class or object says of it.
type attribute struct {
	Type        string                     `json:"type"`
	Array       bool                       `json:"is_array"`
	Requirement string                     `json:"requirement"`
	Enum        map[string]json.RawMessage `json:"enum"`
	Sibling     string                     `json:"sibling"`
	Deprecated  *struct {
		Message string `json:"message"`
	} `json:"@deprecated"`
	profile string // that it is there with
}

// scalar is a type that is no object.
type scalar struct {
	Type  string  `json:"type"` // that it is a kind of
	Regex string  `json:"regex"`
	Range []int64 `json:"range"`
	Max   int     `json:"max_len"`

	pattern *regexp.Regexp
}

// file is a class, an object or a profile as it is published.
type file struct {
	Name        string                     `json:"name"`
	Extends     string                     `json:"extends"`
	Category    string                     `json:"category"`
	UID         int                        `json:"uid"`
	Attributes  map[string]json.RawMessage `json:"attributes"`
	Annotations json.RawMessage            `json:"annotations"`
	Constraints map[string][]string        `json:"constraints"`
	Profiles    []string                   `json:"profiles"`
}

// source is a version as it is published.
type source struct {
	Version    string                     `json:"version"`
	Attributes map[string]json.RawMessage `json:"attributes"`
	Types      map[string]scalar          `json:"types"`
	Events     map[string]file            `json:"events"`
	Objects    map[string]file            `json:"objects"`
	Profiles   map[string]file            `json:"profiles"`
	Categories map[string]struct {
		UID int `json:"uid"`
	} `json:"categories"`
}

// Load compiles a version of the schema.
func Load(version string) (*Schema, error) {
	b, err := files.ReadFile("testdata/" + Versions[version] + ".json")
	if err != nil {
		return nil, fmt.Errorf("there is no schema %q: %w", version, err)
	}
	var src source
	if err := json.Unmarshal(b, &src); err != nil {
		return nil, err
	}
	s := &Schema{version: version, classes: map[int]*definition{}, objects: map[string]*definition{}, types: src.Types}
	for name, t := range s.types {
		if t.Regex != "" {
			if t.pattern, err = regexp.Compile(t.Regex); err != nil {
				return nil, fmt.Errorf("type %s: %w", name, err)
			}
			s.types[name] = t
		}
	}
	for name, f := range src.Events {
		d, category, err := src.compile(src.Events, name)
		if err != nil {
			return nil, fmt.Errorf("class %s: %w", name, err)
		}
		if f.UID != 0 {
			d.uid = src.Categories[category].UID*1000 + f.UID
			s.classes[d.uid] = d
		}
	}
	for name := range src.Objects {
		if s.objects[name], _, err = src.compile(src.Objects, name); err != nil {
			return nil, fmt.Errorf("object %s: %w", name, err)
		}
	}
	return s, nil
}

// compile resolves what a class or an object extends and includes.
func (src *source) compile(from map[string]file, name string) (d *definition, category string, err error) {
	f, ok := from[name]
	if !ok {
		return nil, "", fmt.Errorf("%s is not kept", name)
	}
	d = &definition{attributes: map[string]attribute{}, constraints: map[string][]string{}, profiles: map[string]bool{}}
	if f.Extends != "" {
		if d, category, err = src.compile(from, f.Extends); err != nil {
			return nil, "", err
		}
	}
	d.name = f.Name
	if f.Category != "" {
		category = f.Category
	}
	if f.Constraints != nil {
		d.constraints = f.Constraints
	}
	for _, p := range f.Profiles {
		d.profiles[p] = true
	}
	if raw, ok := f.Attributes["$include"]; ok {
		if err := src.include(d, raw); err != nil {
			return nil, "", err
		}
	}
	for key, raw := range f.Attributes {
		if key == "$include" {
			continue
		}
		a, err := src.attribute(d, key, raw)
		if err != nil {
			return nil, "", err
		}
		d.attributes[key] = a
	}
	return d, category, nil
}

// include adds the attributes of profiles.
func (src *source) include(d *definition, raw json.RawMessage) error {
	var paths []string
	if err := json.Unmarshal(raw, &paths); err != nil {
		var path string
		if err := json.Unmarshal(raw, &path); err != nil {
			return err
		}
		paths = []string{path}
	}
	for _, path := range paths {
		name := strings.TrimSuffix(strings.TrimPrefix(path, "profiles/"), ".json")
		p, ok := src.Profiles[name]
		if !ok {
			return fmt.Errorf("%s is not kept", path)
		}
		d.profiles[name] = true
		for key, raw := range p.Attributes {
			a, err := src.attribute(d, key, p.Annotations, raw)
			if err != nil {
				return err
			}
			a.profile = name
			d.attributes[key] = a
		}
	}
	return nil
}

// attribute is one as it is inherited, or as the dictionary has it, with what is said of
// it in addition.
func (src *source) attribute(d *definition, key string, said ...json.RawMessage) (attribute, error) {
	a, ok := d.attributes[key]
	if !ok {
		if err := json.Unmarshal(src.Attributes[key], &a); err != nil {
			return a, fmt.Errorf("%s in the dictionary: %w", key, err)
		}
	}
	a.Enum = maps.Clone(a.Enum)
	for _, raw := range said {
		if raw == nil {
			continue
		}
		if err := json.Unmarshal(raw, &a); err != nil { // merges enumerations
			return a, fmt.Errorf("%s: %w", key, err)
		}
		var own struct {
			Profile json.RawMessage `json:"profile"`
		}
		if err := json.Unmarshal(raw, &own); err != nil {
			return a, err
		}
		if own.Profile != nil {
			a.profile = ""
			if err := json.Unmarshal(own.Profile, &a.profile); err != nil {
				return a, err
			}
		}
	}
	return a, nil
}
