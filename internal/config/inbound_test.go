package config_test

import "testing"

func TestInbound(t *testing.T) {
	refuses(t, map[string]string{
		`inbound: {listen: "127.0.0.1:7080"}`:                      "",
		`inbound: {listen: "[::1]:7080"}`:                          "",
		`inbound: {listen: "0.0.0.0:7080"}`:                        "reached from elsewhere",
		`inbound: {listen: "localhost:7080"}`:                      "write 127.0.0.1:7080",
		`inbound: {listen: ":7080"}`:                               "reached from elsewhere",
		`inbound: {listen: "127.0.0.1"}`:                           "not host:port",
		"inbound: {listen: \"127.0.0.1:1\"}\nengine: {kind: none}": "of no use",
		`inbound: {listne: "127.0.0.1:7080"}`:                      `did you mean "listen"?`,
	})
}
