package body

import (
	"errors"
	"slices"
	"strings"

	graphql "github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/parser"
)

// maxTokens bounds a GraphQL document, whose parser is recursive.
const maxTokens = 15_000

// Reasons to refuse a GraphQL request.
var (
	errNotGraphQL = errors.New("it is not a GraphQL request: an object with query, and besides it operationName, variables and extensions at most")
	errPersisted  = errors.New("it names a persisted query, whose text is not in it")
	errQuery      = errors.New("its query is not a GraphQL document of operations and fragments")
	errCharacter  = errors.New("its query has a character that readers of GraphQL do not agree about")
	errFragment   = errors.New("its query spreads a fragment that is not in it")
)

// readGraphQL says what a GraphQL request over HTTP asks for: all operations that
// are in it, whichever its operationName picks, with the fields that each selects
// of the root type, by their own names, through fragments.
//
//	{"operations": [{"type": "query", "name": "…", "fields": ["viewer"]}], "variables": {…}}
//
// A batch is refused, and so is a key that the protocol does not have: servers
// find persisted queries by such.
func readGraphQL(request any) (any, error) {
	o, _ := request.(map[string]any)
	query, _ := o["query"].(string)
	extensions, object := o["extensions"].(map[string]any)
	if _, persisted := extensions["persistedQuery"]; persisted {
		return nil, errPersisted
	}
	variables, ok := o["variables"].(map[string]any)
	if !ok {
		variables = map[string]any{}
	}
	_, text := o["operationName"].(string)
	switch {
	case query == "",
		!text && o["operationName"] != nil,
		!ok && o["variables"] != nil,
		!object && o["extensions"] != nil:
		return nil, errNotGraphQL
	}
	for key := range o {
		if !slices.Contains([]string{"query", "operationName", "variables", "extensions"}, key) {
			return nil, errNotGraphQL
		}
	}
	operations, err := operationsOf(query)
	if err != nil {
		return nil, err
	}
	return map[string]any{"operations": operations, "variables": variables}, nil
}

// disputed are characters that end a line, or are none, for some readers only: a
// comment would hide an operation from one of them.
func disputed(c rune) bool {
	return c < ' ' && c != '\t' && c != '\n' && c != '\r' || c == 0x7f || c == 0x85 || c == 0x2028 || c == 0x2029 || c == 0xfeff
}

func operationsOf(query string) ([]any, error) {
	if strings.ContainsFunc(query, disputed) {
		return nil, errCharacter
	}
	doc, err := parser.ParseQueryWithTokenLimit(&graphql.Source{Input: query}, maxTokens)
	if err != nil || len(doc.Operations) == 0 {
		return nil, errQuery // err quotes it
	}
	fragments := make(map[string]*graphql.FragmentDefinition, len(doc.Fragments))
	for _, f := range doc.Fragments {
		if fragments[f.Name] != nil {
			return nil, errFragment
		}
		fragments[f.Name] = f
	}
	list := make([]any, 0, len(doc.Operations))
	for _, op := range doc.Operations {
		w := fieldWalk{fragments: fragments, spread: map[string]bool{}}
		if !w.selection(op.SelectionSet) {
			return nil, errFragment
		}
		slices.Sort(w.fields)
		fields := []any{}
		for _, name := range slices.Compact(w.fields) {
			fields = append(fields, name)
		}
		list = append(list, map[string]any{"type": string(op.Operation), "name": op.Name, "fields": fields})
	}
	return list, nil
}

// fieldWalk collects the fields of a root type.
type fieldWalk struct {
	fragments map[string]*graphql.FragmentDefinition
	spread    map[string]bool // they may spread one another in circles
	fields    []string
}

func (w *fieldWalk) selection(set graphql.SelectionSet) bool {
	for _, s := range set {
		switch s := s.(type) {
		case *graphql.Field:
			w.fields = append(w.fields, s.Name)
		case *graphql.InlineFragment:
			if !w.selection(s.SelectionSet) {
				return false
			}
		case *graphql.FragmentSpread:
			f := w.fragments[s.Name]
			if f == nil {
				return false
			}
			if w.spread[s.Name] {
				continue
			}
			w.spread[s.Name] = true
			if !w.selection(f.SelectionSet) {
				return false
			}
		default:
			return false
		}
	}
	return true
}
