package main

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"strings"

	"sallyport/internal/config"
	"sallyport/policy"
	"sallyport/policy/limit"
)

// node is a JSON schema (draft 7), in the order in which a person reads it.
type node struct {
	Schema      string   `json:"$schema,omitempty"`
	Ref         string   `json:"$ref,omitempty"`
	Title       string   `json:"title,omitempty"`
	Description string   `json:"description,omitempty"`
	Type        any      `json:"type,omitempty"`
	Enum        []string `json:"enum,omitempty"`
	Pattern     string   `json:"pattern,omitempty"`
	Minimum     *int64   `json:"minimum,omitempty"`
	Maximum     *int64   `json:"maximum,omitempty"`
	Items       *node    `json:"items,omitempty"`
	Required    []string `json:"required,omitempty"`
	Properties  pairs    `json:"properties,omitempty"`
	Additional  any      `json:"additionalProperties,omitempty"` // false or *node
	Examples    []any    `json:"examples,omitempty"`
	AllOf       []*node  `json:"allOf,omitempty"`
	Definitions pairs    `json:"definitions,omitempty"`
}

// pairs is a JSON object that keeps its order.
type pairs []pair

type pair struct {
	key   string
	value any
}

func (p pairs) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, one := range p {
		if i > 0 {
			b.WriteByte(',')
		}
		key, err := json.Marshal(one.key)
		if err != nil {
			return nil, err
		}
		value, err := json.Marshal(one.value)
		if err != nil {
			return nil, err
		}
		b.Write(key)
		b.WriteByte(':')
		b.Write(value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// closed lists what a text can be, where that is not every text.
var closed = map[string][]string{
	"policy.EgressRule.Action":         {string(policy.Allow), string(policy.Deny), string(policy.Tunnel), string(policy.Approve)},
	"policy.Upstream.Resolve":          {policy.ResolveProxy},
	"policy.HMACInject.Algorithm":      {policy.SHA1, policy.SHA256, policy.SHA512},
	"policy.HMACInject.Encoding":       {policy.Hex, policy.Base64},
	"policy.Approvals.Answer":          {policy.AnswerHold, policy.AnswerPoll},
	"policy.Hours.Days":                {"mon", "tue", "wed", "thu", "fri", "sat", "sun"},
	"policy.OAuth2Exchange.Grant":      {policy.GrantClientCredentials, policy.GrantRefreshToken, policy.GrantJWTBearer},
	"policy.OAuth2Exchange.ClientAuth": {policy.ClientAuthBasic, policy.ClientAuthPost, policy.ClientAuthPrivateKeyJWT},
	"policy.Assertion.Algorithm":       policy.JWTAlgorithms(),
	"policy.JWTExchange.Algorithm":     policy.JWTAlgorithms(),
	"config.Engine.Kind":               {"private", "existing", "pods", "none"},
	"config.Sandbox.Runtime":           {"runsc", "runc"},
}

// needed lists the keys without which the decoder's caller refuses a struct.
var needed = map[string][]string{
	"policy.EgressRule":     {"destination"},
	"policy.EgressAuthRule": {"destination", "authRef"},
	"policy.Credential":     {"name"},
	"policy.Limit":          {"name"},
	"policy.Price":          {"model", "input", "output"},
	"policy.VaultSource":    {"path"},
	"policy.HeaderInject":   {"name", "value"},
	"policy.BasicInject":    {"username", "password"},
	"policy.QueryInject":    {"name", "value"},
	"policy.CookieInject":   {"name", "value"},
	"policy.HMACInject":     {"key", "sign", "headers"},
	"config.AppRole":        {"roleID", "secretIDFile"},

	"policy.OAuth2Exchange":    {"tokenURL"},
	"policy.JWTExchange":       {"algorithm"},
	"policy.GitHubAppExchange": {"appID", "installationID"},
	"policy.WorkloadIdentity":  {"provider"},
	"policy.AzureExchange":     {"tenant", "clientID", "scopes"},
	"policy.AWSExchange":       {"roleARN", "region"},
}

// ranges bounds numbers, the last included.
var ranges = map[string][2]int64{
	"policy.EgressRule.Ports":     {1, 65535},
	"policy.EgressAuthRule.Ports": {1, 65535},
	"policy.Source.Cache":         {0, 1 << 20},
	"policy.Limit.Requests":       {1, 1 << 53},
	"policy.Limit.Uses":           {1, 1 << 53},
	"policy.Limit.Concurrent":     {1, 1 << 53},
	"policy.Limit.Tokens":         {1, 1 << 53},
	"config.Sandbox.Pids":         {1, 1 << 40},
	"config.Audit.SegmentSize":    {1 << 20, 4 << 30},
}

type writer struct {
	comments    map[string]text
	made        map[string]*node // by the name of the type
	definitions pairs
	err         error
}

func (w *writer) fail(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf(format, args...)
	}
}

// structure describes a struct, those inlined in it included.
func (w *writer) structure(t reflect.Type) *node {
	n := &node{Type: "object", Description: w.comments[t.String()].description, Required: needed[t.String()], Additional: false}
	w.properties(t, n)
	for _, key := range n.Required {
		if !n.has(key) {
			w.fail("%s has no key %s", t.Name(), key)
		}
	}
	return n
}

func (n *node) has(key string) bool {
	for _, p := range n.Properties {
		if p.key == key {
			return true
		}
	}
	return false
}

func (w *writer) properties(t reflect.Type, n *node) {
	for i := range t.NumField() {
		f := t.Field(i)
		key, option, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		switch {
		case option == "inline":
			w.properties(f.Type, n)
		case key != "" && key != "-":
			n.Properties = append(n.Properties, pair{key, w.field(t.String()+"."+f.Name, f.Type)})
		}
	}
}

// field describes what a field holds. Its words about the field stand beside
// a reference to what its type says.
func (w *writer) field(name string, t reflect.Type) *node {
	n := w.value(name, t)
	said := w.comments[name]
	if n.Ref != "" {
		n = &node{AllOf: []*node{n}}
	}
	n.Description, n.Examples = said.description, said.examples
	if n.Description == "" {
		n.Description = w.comments[elem(t).String()].description
	}
	if n.Description == "" || len(n.Examples) == 0 {
		w.fail("%s needs a comment, and in it a line \"Example: \"", name)
	}
	return n
}

func elem(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	return t
}

func (w *writer) value(name string, t reflect.Type) *node {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) {
		switch t {
		case reflect.TypeFor[policy.Duration]():
			return &node{Type: "string", Pattern: `^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`}
		case reflect.TypeFor[config.Age]():
			return &node{Type: "string", Pattern: `^([0-9]+d|([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+)$`}
		case reflect.TypeFor[policy.Size]():
			return &node{Type: []string{"string", "integer"}, Pattern: `^[0-9]+ ?([KMGT]i?B|B)?$`}
		case reflect.TypeFor[limit.Money]():
			return &node{Type: []string{"string", "number"}, Pattern: `^[0-9]+(\.[0-9]{1,9})?$`}
		case reflect.TypeFor[netip.Prefix]():
			return &node{Type: "string", Pattern: `^[0-9a-fA-F.:]+/[0-9]+$`}
		}
		return &node{Type: []string{"string", "integer"}}
	}
	switch t.Kind() {
	case reflect.String:
		return &node{Type: "string", Enum: closed[name]}
	case reflect.Bool:
		return &node{Type: "boolean"}
	case reflect.Int, reflect.Int64, reflect.Uint16, reflect.Uint64, reflect.Uint32, reflect.Int32:
		n := &node{Type: "integer"}
		if r, ok := ranges[name]; ok {
			n.Minimum, n.Maximum = &r[0], &r[1]
		}
		return n
	case reflect.Float64:
		return &node{Type: "number"}
	case reflect.Slice:
		return &node{Type: "array", Items: w.value(name, t.Elem())}
	case reflect.Map:
		return &node{Type: "object", Additional: w.value(name, t.Elem())}
	case reflect.Interface:
		return &node{} // anything
	case reflect.Struct:
		ref := &node{Ref: "#/definitions/" + t.Name()}
		if w.made[t.Name()] == nil {
			w.made[t.Name()] = ref // before what refers to itself
			i := len(w.definitions)
			w.definitions = append(w.definitions, pair{key: t.Name()})
			w.definitions[i].value = w.structure(t)
		}
		return ref
	}
	w.fail("%s: nobody said how %v is written", name, t)
	return &node{}
}
