// Package schema holds the JSON schemas of what Rego and editors see: input.json of the
// document input, data.json of data, sallyport.json of sallyport.yaml.
package schema

import "embed"

// Files has input.json and data.json.
//
//go:embed input.json data.json
var Files embed.FS
