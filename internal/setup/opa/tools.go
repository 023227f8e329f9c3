//go:build tools

// Package opa pins OPA's own command line, with which the tests check, format
// and test the Rego here as a security team does. It is a module of its own, so
// that the dependencies of that command line are not Sallyport's.
package opa

import _ "github.com/open-policy-agent/opa"
