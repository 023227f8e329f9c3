package config

import (
	"strings"
	"testing"
)

func TestInbound(t *testing.T) {
	for text, want := range map[string]string{
		`inbound: {listen: "127.0.0.1:7080"}`:                      "",
		`inbound: {listen: "[::1]:7080"}`:                          "",
		`inbound: {listen: "0.0.0.0:7080"}`:                        "reached from elsewhere",
		`inbound: {listen: "localhost:7080"}`:                      "write 127.0.0.1:7080",
		`inbound: {listen: ":7080"}`:                               "reached from elsewhere",
		`inbound: {listen: "127.0.0.1"}`:                           "not host:port",
		"inbound: {listen: \"127.0.0.1:1\"}\nengine: {kind: none}": "of no use",
		`inbound: {listne: "127.0.0.1:7080"}`:                      `did you mean "listen"?`,
	} {
		_, err := Parse("sallyport.yaml", []byte(text+"\n"))
		if got := ""; err != nil {
			got = err.Error()
			if want == "" || !strings.Contains(got, want) {
				t.Errorf("%s: got %s, want %q", text, got, want)
			}
		} else if want != "" {
			t.Errorf("%s: got nothing, want %q", text, want)
		}
	}
}
