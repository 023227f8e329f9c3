package validate_test

import (
	"testing"

	"sallyport/internal/config"
)

// A rule lists places, or the names of single headers and query parameters.
func TestPlaces(t *testing.T) {
	for places, good := range map[string]bool{
		"[header, query, path, body]":           true,
		"['header:X-Foo', 'query:foo', header]": true,
		"['query:a[b]:c']":                      true,
		"[]":                                    false,
		"[cookie]":                              false,
		"[header, header]":                      false,
		"['header:X-Foo', 'header:x-foo']":      false,
		"['header:']":                           false,
		"['header:X Foo']":                      false,
		"['header:Host']":                       false,
		"['query:']":                            false,
		"['path:a']":                            false,
		"['body:a']":                            false,
		"[\"query:a\\n\"]":                      false,
	} {
		_, err := config.Parse("sallyport.yaml", []byte("egressAuth: [{destination: a.example.com, authRef: k, inject: {placeholder: "+places+"}}]\ncredentials: [{name: k, placeholder: {env: K}}]"))
		if (err == nil) != good {
			t.Errorf("%s: %v", places, err)
		}
	}
}
