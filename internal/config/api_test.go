package config_test

import (
	"strings"
	"testing"
)

// A setting that would protect nothing, or would never work, is told of at load.
func TestAPI(t *testing.T) {
	refuses(t, map[string]string{
		"api: {listen: '0.0.0.0:8443', users: {alice: [read, approve]}}": "",
		"api: {listen: 'nowhere'}":                                       "host:port",
		"api: {certificate: a.pem, key: a.key}":                          "api.listen",
		"api: {listen: '0.0.0.0:8443', key: a.key}":                      "one of certificate and key",
		"api: {users: {alice: []}}":                                      "has no scope",
		"api: {users: {alice: [aprove]}}":                                "did you mean approve?",
		"remote: {host: 'https://a.example.com:8443', keyFile: k, fingerprint: 'sha256:" + strings.Repeat("ab", 32) + "'}": "",
		"remote: {host: 'http://a.example.com', keyFile: k}":                                                               "https://host:port",
		"remote: {host: 'https://a.example.com'}":                                                                          "remote.keyFile",
		"remote: {keyFile: k}": "remote.host",
		"remote: {host: 'https://a.example.com', keyFile: k, fingerprint: 'ab:cd'}":                                    "fingerprint",
		"webhooks: [{url: 'https://a.example.com/h', events: ['sandbox.*'], secretFile: s}]":                           "",
		"webhooks: [{url: 'http://10.0.0.1/h', secretFile: s, addresses: [10.0.0.0/8]}]":                               "",
		"webhooks: [{url: 'http://a.example.com/h', secretFile: s}]":                                                   "in the clear",
		"webhooks: [{url: 'ftp://a.example.com/h', secretFile: s}]":                                                    "not a URL",
		"webhooks: [{url: 'https://a.example.com/h'}]":                                                                 "secretFile",
		"webhooks: [{url: 'https://a.example.com/h', secretFile: s, events: ['[']}]":                                   "not a type of events",
		"webhooks: [{url: 'https://a.example.com/h', secretFile: s}, {url: 'https://a.example.com/h', secretFile: s}]": "twice",
	})
}
