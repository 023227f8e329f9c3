package policy

import (
	"errors"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
	graphql "github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/parser"
)

// maxTokens bounds a GraphQL document, whose parser is recursive.
const maxTokens = 15_000

// What a GraphQL request is refused for.
var (
	errNotGraphQL = errors.New("it is not a GraphQL request: an object with query, and besides it operationName, variables and extensions at most")
	errPersisted  = errors.New("it names a persisted query, whose text is not in it")
	errQuery      = errors.New("its query is not a GraphQL document of operations and fragments")
	errCharacter  = errors.New("its query has a character that readers of GraphQL do not agree about")
	errFragment   = errors.New("its query spreads a fragment that is not in it")
)

var (
	keyQuery      = ast.StringTerm("query")
	keyOperation  = ast.StringTerm("operationName")
	keyVariables  = ast.StringTerm("variables")
	keyExtensions = ast.StringTerm("extensions")
	keyPersisted  = ast.StringTerm("persistedQuery")
	keyOperations = ast.StringTerm("operations")
	keyFields     = ast.StringTerm("fields")
)

// readGraphQL says what a GraphQL request over HTTP asks for: all operations that
// are in it, whichever its operationName picks, with the fields that each selects
// of the root type, by their own names, through fragments.
//
//	{"operations": [{"type": "query", "name": "…", "fields": ["viewer"]}], "variables": {…}}
//
// A batch is refused, and so is a key that the protocol does not have: servers
// find persisted queries by such.
func readGraphQL(request ast.Value) (ast.Value, error) {
	o, ok := request.(ast.Object)
	if !ok {
		return nil, errNotGraphQL
	}
	known := 0
	var query ast.String
	if t := o.Get(keyQuery); t != nil {
		query, ok = t.Value.(ast.String)
		known++
	}
	if !ok || query == "" {
		if e := o.Get(keyExtensions); e != nil && e.Get(keyPersisted) != nil {
			return nil, errPersisted
		}
		return nil, errNotGraphQL
	}
	if t := o.Get(keyOperation); t != nil {
		known++
		if _, text := t.Value.(ast.String); !text && t.Value != ast.Value(ast.NullValue) {
			return nil, errNotGraphQL
		}
	}
	variables := ast.ObjectTerm()
	if t := o.Get(keyVariables); t != nil {
		known++
		switch t.Value.(type) {
		case ast.Object:
			variables = t
		case ast.Null:
		default:
			return nil, errNotGraphQL
		}
	}
	if t := o.Get(keyExtensions); t != nil {
		known++
		switch e := t.Value.(type) {
		case ast.Object:
			if e.Get(keyPersisted) != nil {
				return nil, errPersisted
			}
		case ast.Null:
		default:
			return nil, errNotGraphQL
		}
	}
	if known != o.Len() {
		return nil, errNotGraphQL
	}
	operations, err := operationsOf(string(query))
	if err != nil {
		return nil, err
	}
	return ast.NewObject([2]*ast.Term{keyOperations, ast.ArrayTerm(operations...)}, [2]*ast.Term{keyVariables, variables}), nil
}

// disputed are characters that end a line, or are none, for some readers only: a
// comment would hide an operation from one of them.
func disputed(c rune) bool {
	return c < ' ' && c != '\t' && c != '\n' && c != '\r' || c == 0x7f || c == 0x85 || c == 0x2028 || c == 0x2029 || c == 0xfeff
}

func operationsOf(query string) ([]*ast.Term, error) {
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
	list := make([]*ast.Term, 0, len(doc.Operations))
	for _, op := range doc.Operations {
		w := fieldWalk{fragments: fragments, spread: map[string]bool{}}
		if !w.selection(op.SelectionSet) {
			return nil, errFragment
		}
		slices.Sort(w.fields)
		list = append(list, ast.ObjectTerm(
			[2]*ast.Term{keyType, ast.StringTerm(string(op.Operation))},
			[2]*ast.Term{keyName, ast.StringTerm(op.Name)},
			[2]*ast.Term{keyFields, ast.NewTerm(stringArray(slices.Compact(w.fields)))},
		))
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
