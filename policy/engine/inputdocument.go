package engine

import (
	"maps"
	"math/bits"
	"slices"
	"strconv"

	"sallyport/policy"
	"sallyport/policy/rule"

	"github.com/open-policy-agent/opa/v1/ast"
)

// The keys of the input document. Terms are never changed once made, but for
// those of an inputDocument.
var (
	keyPhase       = ast.StringTerm("phase")
	keyProtocol    = ast.StringTerm("protocol")
	keySandbox     = ast.StringTerm("sandbox")
	keyDestination = ast.StringTerm("destination")
	keyRequest     = ast.StringTerm("request")
	keyName        = ast.StringTerm("name")
	keyID          = ast.StringTerm("id")
	keySession     = ast.StringTerm("session")
	keyTags        = ast.StringTerm("tags")
	keyKeys        = ast.StringTerm("keys")
	keyRules       = ast.StringTerm("rules")
	keyHost        = ast.StringTerm("host")
	keyPort        = ast.StringTerm("port")
	keyMethod      = ast.StringTerm("method")
	keyScheme      = ast.StringTerm("scheme")
	keyPath        = ast.StringTerm("path")
	keyRawPath     = ast.StringTerm("raw_path")
	keyQueryKeys   = ast.StringTerm("query_keys")
	keyHeaders     = ast.StringTerm("headers")
	keySize        = ast.StringTerm("size")
	keyBody        = ast.StringTerm("body")
)

// inputDocument is the document input of one evaluation after another: of one phase, and
// with those fields alone that Rego looks at. Its shape is schema/input.json. It is
// made without a detour over JSON, and a field that is as it was is left alone.
type inputDocument struct {
	phase   policy.Phase
	fields  inputField // those that Rego looks at
	filled  inputField // those that hold a value
	changed bool       // since the part was put into the root

	root                          ast.Object
	sandbox, destination, request *ast.Term

	terms     [fieldCount]ast.Term // by the bit of a field
	port      uint16
	size      int64
	tags      map[string]string
	queryKeys []string
	headers   []string
	matches   []rule.Match
	last      bool // it holds what the next input would not replace
}

func newInputDocument(phase policy.Phase, fields inputField) *inputDocument {
	switch phase {
	case policy.PhaseDNS:
		fields &^= fieldProtocol | fieldPort | fieldRequest
	case policy.PhaseConnect:
		fields &^= fieldRequest
	case policy.PhaseSSH:
		fields &^= fieldRequest | fieldRules
	case policy.PhaseInbound:
		fields &^= fieldRules // which are of what leaves
	}
	return &inputDocument{
		phase: phase, fields: fields, root: ast.NewObject(),
		sandbox: ast.ObjectTerm(), destination: ast.ObjectTerm(), request: ast.ObjectTerm(),
	}
}

// set makes s the input.
func (v *inputDocument) set(p *Policy, s rule.ParsedInput) {
	var near [8]rule.Match
	var matches []rule.Match
	if v.fields&fieldRules != 0 {
		matches = p.matches(near[:0], s)
	}
	v.setWith(p.terms, matches, s)
}

// setWith makes s the input, with the rules that are said to match.
func (v *inputDocument) setWith(terms ruleTerms, matches []rule.Match, s rule.ParsedInput) {
	v.text(v.root, fieldPhase, keyPhase, string(s.Phase))
	protocol := s.Protocol
	if s.Phase == policy.PhaseConnect && protocol.IsOther() {
		protocol = policy.ProtocolOther // whichever it is: what the rules make of it is in input.rules
	}
	v.text(v.root, fieldProtocol, keyProtocol, string(protocol))
	v.changed = false
	if v.fields&fieldSandbox != 0 {
		v.setSandbox(s.Sandbox)
	}
	if v.fields&fieldDestination != 0 {
		v.setDestination(s)
	}
	if v.fields&fieldRequest != 0 {
		v.setRequest(s)
	}
	if v.fields&fieldRules != 0 {
		v.setMatches(terms, matches)
	}
}

func (v *inputDocument) setSandbox(s policy.Sandbox) {
	o := v.sandbox.Value.(ast.Object)
	v.text(o, fieldSandboxName, keyName, s.Name)
	v.text(o, fieldSandboxID, keyID, s.ID)
	v.text(o, fieldSandboxSession, keySession, s.Session)
	if v.differs(fieldSandboxTags, maps.Equal(v.tags, s.Tags)) {
		v.tags = maps.Clone(s.Tags)
		tags := make([][2]*ast.Term, 0, len(s.Tags))
		for tag, value := range s.Tags {
			tags = append(tags, [2]*ast.Term{ast.StringTerm(tag), ast.StringTerm(value)})
		}
		v.put(o, fieldSandboxTags, keyTags, ast.NewObject(tags...))
	}
	v.place(keySandbox, v.sandbox)
}

func (v *inputDocument) setDestination(s rule.ParsedInput) {
	o := v.destination.Value.(ast.Object)
	v.text(o, fieldHost, keyHost, s.Host)
	if v.differs(fieldPort, v.port == s.Destination.Port) {
		v.port = s.Destination.Port
		v.put(o, fieldPort, keyPort, ast.InternedTerm(int(v.port)).Value)
	}
	v.place(keyDestination, v.destination)
}

func (v *inputDocument) setRequest(s rule.ParsedInput) {
	o, r := v.request.Value.(ast.Object), s.Request
	v.text(o, fieldMethod, keyMethod, r.Method)
	v.text(o, fieldScheme, keyScheme, r.Scheme)
	v.text(o, fieldPath, keyPath, r.Path)
	v.text(o, fieldRawPath, keyRawPath, s.SentPath)
	if v.differs(fieldQueryKeys, slices.Equal(v.queryKeys, r.QueryKeys)) {
		v.queryKeys = append(v.queryKeys[:0], r.QueryKeys...)
		v.put(o, fieldQueryKeys, keyQueryKeys, stringArray(r.QueryKeys))
	}
	if v.differs(fieldHeaders, slices.Equal(v.headers, r.Headers)) {
		v.headers = append(v.headers[:0], r.Headers...)
		v.put(o, fieldHeaders, keyHeaders, stringArray(r.Headers))
	}
	if v.differs(fieldSize, v.size == r.Size) {
		v.size = r.Size
		v.put(o, fieldSize, keySize, ast.Number(strconv.FormatInt(r.Size, 10)))
	}
	if v.fields&FieldBody != 0 && shown(r) {
		v.put(o, FieldBody, keyBody, r.Body.Form(func() any { return bodyValue(r.Body) }).(ast.Value))
		v.last = true // the next request may have none
	}
	v.place(keyRequest, v.request)
}

func (v *inputDocument) setMatches(terms ruleTerms, list []rule.Match) {
	if v.differs(fieldRules, slices.Equal(v.matches, list)) {
		v.matches = append(v.matches[:0], list...)
		v.put(v.root, fieldRules, keyRules, terms.grouped(list))
	}
	v.changed = false
}

// differs reports whether the field is looked at and is not what it was.
func (v *inputDocument) differs(f inputField, same bool) bool {
	return v.fields&f != 0 && !(same && v.filled&f != 0)
}

func (v *inputDocument) text(o ast.Object, f inputField, key *ast.Term, text string) {
	if v.fields&f == 0 {
		return
	}
	if old, filled := v.term(f).Value.(ast.String); !filled || string(old) != text {
		v.put(o, f, key, ast.String(text))
	}
}

// put changes a field. Its object is told, for its hash.
func (v *inputDocument) put(o ast.Object, f inputField, key *ast.Term, value ast.Value) {
	t := v.term(f)
	t.Value = value
	o.Insert(key, t)
	v.filled |= f
	v.changed = true
}

// place tells the root that a part of it has changed.
func (v *inputDocument) place(key, part *ast.Term) {
	if v.changed {
		v.root.Insert(key, part)
		v.changed = false
	}
}

func (v *inputDocument) term(f inputField) *ast.Term {
	return &v.terms[bits.TrailingZeros32(uint32(f))]
}

func stringArray(list []string) *ast.Array {
	terms := make([]*ast.Term, len(list))
	for i, s := range list {
		terms[i] = ast.StringTerm(s)
	}
	return ast.NewArray(terms...)
}
