package body

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/open-policy-agent/opa/v1/ast"
)

func TestReadGraphQL(t *testing.T) {
	request := func(query string) string {
		b, _ := json.Marshal(map[string]any{"query": query})
		return string(b)
	}
	one := func(kind, name, fields string) string {
		return `{"operations": [{"fields": [` + fields + `], "name": "` + name + `", "type": "` + kind + `"}], "variables": {}}`
	}
	for _, test := range []struct {
		name, text, want string
		err              error
	}{
		{name: "shorthand", text: request(`{ viewer { login } }`), want: one("query", "", `"viewer"`)},
		{name: "a mutation", text: request(`mutation Drop($id: ID!) { deleteRepository(id: $id) { id } }`), want: one("mutation", "Drop", `"deleteRepository"`)},
		{name: "a subscription", text: request(`subscription { issues { id } }`), want: one("subscription", "", `"issues"`)},
		{name: "aliases are seen through", text: request(`{ viewer: secrets ok: viewer }`), want: one("query", "", `"secrets", "viewer"`)},
		{name: "a field twice", text: request(`{ viewer a: viewer }`), want: one("query", "", `"viewer"`)},
		{name: "fragments", text: request(`query { ...A ... on Query { b } ... { c } ...A } fragment A on Query { a ...B } fragment B on Query { d ...A }`),
			want: one("query", "", `"a", "b", "c", "d"`)},
		{name: "fragments below the root", text: request(`{ viewer { ...U } } fragment U on User { login }`), want: one("query", "", `"viewer"`)},
		{name: "directives", text: request(`{ viewer @skip(if: true) }`), want: one("query", "", `"viewer"`)},
		{name: "introspection", text: request(`{ __schema { types { name } } }`), want: one("query", "", `"__schema"`)},
		{name: "variables", text: `{"query": "{ a }", "variables": {"x": [1]}, "operationName": null, "extensions": {}}`,
			want: `{"operations": [{"fields": ["a"], "name": "", "type": "query"}], "variables": {"x": [1]}}`},
		{name: "all operations, whichever is picked", text: `{"query": "query A { a } mutation B { b }", "operationName": "A"}`,
			want: `{"operations": [{"fields": ["a"], "name": "A", "type": "query"}, {"fields": ["b"], "name": "B", "type": "mutation"}], "variables": {}}`},
		{name: "what a comment does not hide", text: request("query A { a } # \r mutation B { b }"),
			want: `{"operations": [{"fields": ["a"], "name": "A", "type": "query"}, {"fields": ["b"], "name": "B", "type": "mutation"}], "variables": {}}`},
		{name: "what a comment hides", text: request("{ a } # mutation { b }"), want: one("query", "", `"a"`)},
		{name: "braces in strings", text: request(`{ a(x: "} mutation { b", y: """ } "" \""" { """) }`), want: one("query", "", `"a"`)},

		{name: "a line of another kind in a comment", text: request("{ a } # \u2028 mutation { b }"), err: errCharacter},
		{name: "a NUL", text: request("{ a } \x00"), err: errCharacter},
		{name: "a mark", text: request("\ufeff{ a }"), err: errCharacter},
		{name: "no query", text: `{}`, err: errNotGraphQL},
		{name: "an empty one", text: `{"query": ""}`, err: errNotGraphQL},
		{name: "no text", text: `{"query": ["{ a }"]}`, err: errNotGraphQL},
		{name: "a batch", text: `[{"query": "{ a }"}]`, err: errNotGraphQL},
		{name: "a key besides", text: `{"query": "{ a }", "doc_id": "7"}`, err: errNotGraphQL},
		{name: "a query in capitals", text: `{"QUERY": "{ a }"}`, err: errNotGraphQL},
		{name: "variables as text", text: `{"query": "{ a }", "variables": "{}"}`, err: errNotGraphQL},
		{name: "a number for a name", text: `{"query": "{ a }", "operationName": 1}`, err: errNotGraphQL},
		{name: "extensions as text", text: `{"query": "{ a }", "extensions": "{}"}`, err: errNotGraphQL},
		{name: "a persisted query", text: `{"extensions": {"persistedQuery": {"version": 1, "sha256Hash": "00"}}}`, err: errPersisted},
		{name: "one with a text", text: `{"query": "{ a }", "extensions": {"persistedQuery": {"version": 1, "sha256Hash": "00"}}}`, err: errPersisted},
		{name: "no GraphQL", text: request(`{ a `), err: errQuery},
		{name: "a schema", text: request(`type Query { a: Int }`), err: errQuery},
		{name: "fragments alone", text: request(`fragment A on Query { a }`), err: errQuery},
		{name: "an empty selection", text: request(`{ }`), err: errQuery},
		{name: "a fragment that is not there", text: request(`{ ...A }`), err: errFragment},
		{name: "a fragment twice", text: request(`{ ...A } fragment A on Query { a } fragment A on Query { b }`), err: errFragment},
		{name: "many tokens", text: request("{" + strings.Repeat("a ", maxTokens) + "}"), err: errQuery},
		{name: "nested", text: request(strings.Repeat("{a", maxTokens)), err: errQuery},
	} {
		document, err := readJSON([]byte(test.text))
		if err != nil {
			t.Fatalf("%s: %v", test.name, err)
		}
		v, err := readGraphQL(document)
		if !errors.Is(err, test.err) || err == nil && ast.MustInterfaceToValue(v).String() != test.want {
			t.Errorf("%s: got %v, %v; want %s, %v", test.name, v, err, test.want, test.err)
		}
	}
}
