// Package library holds the Rego packages below data.sallyport.library, which a security
// team's Rego may import: what a request means to services that many use.
package library

import "embed"

// Files has NAME.rego of each package, and its tests in NAME_test.rego.
//
//go:embed *.rego
var Files embed.FS
