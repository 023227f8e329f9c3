// Package body reads request bodies for rules that decide by them: JSON, and GraphQL
// requests over HTTP.
//
// It accepts only documents that every reader takes alike: no duplicate names, no invalid
// UTF-8, no number beyond a double, bounded in size, depth and number of values. No error
// quotes the body.
package body

import "sallyport/policy"

// Read reads a body of which a policy has the need. text is not changed, and
// nothing of it is kept but copies.
func Read(n policy.Need, text []byte) *policy.Body {
	b := &policy.Body{Size: int64(len(text))}
	if b.Size > n.Max {
		b.Fault = policy.TooLong(n.Max)
		return b
	}
	document, err := readJSON(text)
	if b.Fault = err; err != nil {
		return b
	}
	if n.JSON {
		b.JSON = &document
	}
	if n.GraphQL {
		var operations any
		if operations, b.GraphQLFault = readGraphQL(document); b.GraphQLFault == nil {
			b.GraphQL = &operations
		}
	}
	return b
}
