package engine

import (
	"github.com/open-policy-agent/opa/v1/ast"
)

// inputField is a set of parts of the document input.
type inputField uint32

const (
	fieldPhase inputField = 1 << iota
	fieldProtocol
	fieldSandboxName
	fieldSandboxID
	fieldSandboxSession
	fieldSandboxTags
	fieldHost
	fieldPort
	fieldMethod
	fieldScheme
	fieldPath
	fieldRawPath
	fieldQueryKeys
	fieldHeaders
	fieldSize
	FieldBody
	fieldRules

	fieldCount = 17

	fieldSandbox     = fieldSandboxName | fieldSandboxID | fieldSandboxSession | fieldSandboxTags
	fieldDestination = fieldHost | fieldPort
	fieldRequest     = fieldMethod | fieldScheme | fieldPath | fieldRawPath | fieldQueryKeys | fieldHeaders | fieldSize | FieldBody

	everyField = fieldPhase | fieldProtocol | fieldSandbox | fieldDestination | fieldRequest | fieldRules
)

// fieldPaths says where each field is.
var fieldPaths = map[inputField][2]*ast.Term{
	fieldPhase:          {keyPhase},
	fieldProtocol:       {keyProtocol},
	fieldSandboxName:    {keySandbox, keyName},
	fieldSandboxID:      {keySandbox, keyID},
	fieldSandboxSession: {keySandbox, keySession},
	fieldSandboxTags:    {keySandbox, keyTags},
	fieldHost:           {keyDestination, keyHost},
	fieldPort:           {keyDestination, keyPort},
	fieldMethod:         {keyRequest, keyMethod},
	fieldScheme:         {keyRequest, keyScheme},
	fieldPath:           {keyRequest, keyPath},
	fieldRawPath:        {keyRequest, keyRawPath},
	fieldQueryKeys:      {keyRequest, keyQueryKeys},
	fieldHeaders:        {keyRequest, keyHeaders},
	fieldSize:           {keyRequest, keySize},
	FieldBody:           {keyRequest, keyBody},
	fieldRules:          {keyRules},
}

// FieldsOf is the fields that a ref into input may read: those on its way, below it,
// or above it. Parts after one that is known only later count for nothing.
func FieldsOf(ref ast.Ref) inputField {
	var read inputField
	for f, path := range fieldPaths {
		if meets(ref[1:], path) {
			read |= f
		}
	}
	return read
}

func meets(ref []*ast.Term, path [2]*ast.Term) bool {
	for i, key := range path {
		if i == len(ref) || key == nil {
			return true
		}
		if _, known := ref[i].Value.(ast.String); !known {
			return true
		}
		if !ref[i].Equal(key) {
			return false
		}
	}
	return true
}

// fieldsRead is the fields of input that the evaluation of a query may read, by
// all rules that it leads to.
func fieldsRead(compiler *ast.Compiler, query ast.Body) inputField {
	var read inputField
	var visitor *ast.GenericVisitor
	seen := map[*ast.Rule]bool{}
	follow := func(ref ast.Ref) {
		for _, r := range compiler.GetRulesDynamicWithOpts(ref, ast.RulesOptions{IncludeHiddenModules: true}) {
			if !seen[r] {
				seen[r] = true
				visitor.Walk(r)
			}
		}
	}
	visitor = ast.NewGenericVisitor(func(x any) bool {
		switch x := x.(type) {
		case ast.Ref:
			switch {
			case x[0].Equal(ast.InputRootDocument):
				read |= FieldsOf(x)
			case x[0].Equal(ast.DefaultRootDocument):
				follow(x)
			}
			for _, t := range x[1:] {
				visitor.Walk(t)
			}
			return true
		case ast.Var:
			if x.Equal(ast.InputRootDocument.Value) {
				read = everyField
			}
			if x.Equal(ast.DefaultRootDocument.Value) {
				read = everyField
			}
		}
		return false
	})
	visitor.Walk(query)
	return read
}
