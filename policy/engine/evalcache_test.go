package engine

import (
	"math/rand/v2"
	"testing"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"
)

// TestEvalCache holds that an evalCache remembers what OPA's own cache does, with more refs
// than its list takes, inside of `with` and out, and also after it was used before.
func TestEvalCache(t *testing.T) {
	refs := make([]ast.Ref, 3*maxCachedValues)
	for i := range refs {
		refs[i] = ast.MustParseRef("data.a").Append(ast.InternedTerm(i % 7)).Append(ast.ArrayTerm(ast.InternedTerm(i)))
	}
	random := rand.New(rand.NewPCG(1, 2))
	var m evalCache
	for round := range 50 {
		own := topdown.NewVirtualCache()
		depth := 0
		for range 400 {
			ref := refs[random.IntN(len(refs))]
			switch random.IntN(12) {
			case 0:
				m.Push()
				own.Push()
				depth++
			case 1:
				if depth > 0 {
					m.Pop()
					own.Pop()
					depth--
				}
			case 2, 3, 4, 5, 6:
				if v, undefined := own.Get(ref); v != nil || undefined {
					break // known for good
				}
				var value *ast.Term
				if random.IntN(4) > 0 {
					value = ast.InternedTerm(random.IntN(100))
				}
				// The evaluator uses the slice of its ref again.
				reused := append(ast.Ref{}, ref...)
				m.Put(reused, value)
				clear(reused)
				own.Put(ref, value)
			}
			got, gotUndefined := m.Get(ref)
			want, wantUndefined := own.Get(ref)
			if got != want || gotUndefined != wantUndefined {
				t.Fatalf("round %d: %v is %v, %v; want %v, %v", round, ref, got, gotUndefined, want, wantUndefined)
			}
			if got, want := len(m.Keys()), len(own.Keys()); got != want {
				t.Fatalf("round %d: %d keys, want %d", round, got, want)
			}
		}
		m.reset()
	}
}
