package policy

import "embed"

// Schemas holds the JSON schemas of what Rego sees: schema/input.json of the document
// input, and schema/data.json of data.
//
//go:embed schema/input.json schema/data.json
var Schemas embed.FS
