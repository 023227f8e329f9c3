package engine

import (
	"encoding/binary"
	"slices"
	"sync/atomic"

	"sallyport/policy/rego"
	"sallyport/policy/rule"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/open-policy-agent/opa/v1/ast"
)

const (
	// defaultCacheSize is how many answers are kept where policy.cache does not say.
	defaultCacheSize = 4096
	// maxCacheKey bounds what an answer is kept by, in bytes: a sandbox chooses
	// its paths.
	maxCacheKey = 1 << 10
)

// decisionCache keeps answers by all that the Rego sees of an input, which is what they
// are made of: it has an answer only where an evaluation would come to the same.
// There is none for a policy that reads the clock, nor where a team's Rego limits, nor
// is one kept for a request whose body is shown.
type decisionCache struct {
	answers *lru.Cache[string, ast.Value]
	hits    atomic.Uint64
	fields  inputField // that an answer may depend on
	team    bool       // a team's Rego takes part, whose answers may hold parts of the input
}

// newDecisionCache returns nil where nothing can be kept.
func newDecisionCache(size int, e *evaluator, team *rego.Team) *decisionCache {
	if size == 0 || e.limits != nil || readsClock(team.Modules) {
		return nil
	}
	r := &decisionCache{fields: e.fields, team: len(team.Sets) > 0}
	r.answers, _ = lru.New[string, ast.Value](size) // fails for a size below 1
	return r
}

// readsClock tells whether some module has a built-in function that does not
// answer alike each time.
func readsClock(modules map[string]*ast.Module) bool {
	found := false
	visitor := ast.NewGenericVisitor(func(x any) bool {
		if ref, ok := x.(ast.Ref); ok {
			if b := ast.BuiltinMap[ref.String()]; b != nil && b.Nondeterministic {
				found = true
			}
		}
		return found
	})
	for _, m := range modules {
		visitor.Walk(m)
	}
	return found
}

// key is what the answer for s depends on, or nothing where that is too much.
func (r *decisionCache) key(room []byte, matches []rule.Match, s rule.ParsedInput) []byte {
	k := append(room, string(s.Phase)...)
	text := func(t string) {
		k = binary.AppendUvarint(k, uint64(len(t)))
		k = append(k, t...)
	}
	list := func(l []string) {
		k = binary.AppendUvarint(k, uint64(len(l)))
		for _, t := range l {
			text(t)
		}
	}
	text(string(s.Protocol))
	k = binary.AppendUvarint(k, uint64(len(matches)))
	for _, m := range matches {
		k = append(binary.AppendUvarint(k, uint64(m.Rule.Index)), byte(m.Does))
	}
	sees := func(f inputField) bool { return r.fields&f != 0 }
	if sees(fieldSandbox) {
		text(s.Sandbox.Name)
		text(s.Sandbox.ID)
		text(s.Sandbox.Session)
		if sees(fieldSandboxTags) {
			list(pairs(s.Sandbox.Tags))
		}
	}
	if sees(fieldDestination) {
		text(s.Host)
		k = binary.LittleEndian.AppendUint16(k, s.Destination.Port)
	}
	if q := s.Request; q != nil {
		if sees(fieldMethod | fieldPath) {
			text(q.Method)
			text(q.Path)
		}
		if sees(fieldRawPath) {
			text(s.SentPath)
		}
		if sees(fieldScheme) {
			text(q.Scheme)
		}
		if sees(fieldQueryKeys) {
			list(q.QueryKeys)
		}
		if sees(fieldHeaders) {
			list(q.Headers)
		}
		if sees(fieldSize) {
			k = binary.AppendVarint(k, q.Size)
		}
	}
	if len(k) > maxCacheKey {
		return nil
	}
	return k
}

// pairs are tags in an order that is always the same.
func pairs(tags map[string]string) []string {
	list := make([]string, 0, 2*len(tags))
	for tag := range tags {
		list = append(list, tag)
	}
	slices.Sort(list)
	for _, tag := range list[:len(tags):len(tags)] {
		list = append(list, tags[tag])
	}
	return list
}

func (r *decisionCache) get(key []byte) ast.Value {
	answer, ok := r.answers.Get(string(key))
	if !ok {
		return nil
	}
	r.hits.Add(1)
	return answer
}

// put keeps an answer. The input that a team's may hold parts of changes.
func (r *decisionCache) put(key []byte, answer ast.Value) {
	if r.team {
		answer = ast.NewTerm(answer).Copy().Value
	}
	r.answers.Add(string(key), answer)
}
