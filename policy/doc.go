// Package policy holds the nouns of a policy: the [Document] that sallyport.yaml has, the
// [Input] that a decision is made on, and the [Decision].
//
// The rooms below it do the work. Package rule compiles rules, validate checks a document,
// rego loads a security team's Rego, engine decides, check lists findings, learn and replay
// work on recorded decisions, limit counts, approval holds what waits for a person, and
// regotest runs a team's tests; package finding says what is wrong with a document. This
// package imports none of them but limit and finding, and no OPA.
//
// A policy is a document and a team's Rego, which joins the decision through the sets deny,
// approve, allow, inject and limit of packages below sallyport.team. Precedence, from
// deny over approve to allow, is engine/decision.rego. A request that no rule allows is
// denied.
package policy

import (
	"embed"
)

// Schemas holds the JSON schemas of what Rego sees: schema/input.json of the document
// input, and schema/data.json of data.
//
//go:embed schema/input.json schema/data.json
var Schemas embed.FS
