package config

import (
	"strings"
	"testing"

	"sallyport/internal/test/must"
)

// Public keys that nobody has the private ones of.
const (
	sshKey  = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBpdnfnovTSFdGdY2rVZXh9TlO4PUsfZmTi6yQ4zQrLT alice@example.com"
	sshKey2 = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEhHxZgNgTP1VDjmhHDgEsPq9z1y5qvK0mEvXQqS2b9k"
)

func TestSSH(t *testing.T) {
	entry := func(s string) string { return "ssh: {listen: \"127.0.0.1:2222\", keys: [{" + s + "}]}" }
	good := `name: alice, key: "` + sshKey + `", sandboxes: [demo]`
	for text, want := range map[string]string{
		`ssh: {listen: "127.0.0.1:2222"}`:                                                   "",
		`ssh: {listen: "0.0.0.0:2222"}`:                                                     "",
		`ssh: {listen: ":2222"}`:                                                            "has no address",
		`ssh: {listen: "127.0.0.1"}`:                                                        "not host:port",
		`ssh: {lisen: "127.0.0.1:2222"}`:                                                    `did you mean "listen"?`,
		"ssh: {listen: \"127.0.0.1:1\"}\nengine: {kind: none}":                              "of no use",
		`ssh: {idle: 30s}`:                                                                  "ssh.idle: 30s is not from 1m to 24h",
		`ssh: {keys: [{` + good + `}]}`:                                                     "ssh.listen: is missing",
		entry(good):                                                                         "",
		entry(good + `, allow: [sftp, forward], tenant: acme`):                              "",
		entry(good + `, allow: [shell]`):                                                    "allowed by every key",
		entry(good + `, allow: [sfpt]`):                                                     "did you mean sftp?",
		entry(good + `}, {name: bob, key: "` + sshKey + `", sandboxes: ["*"]`):              "is that of ssh.keys[0]",
		entry(good + `}, {name: bob, key: "` + sshKey2 + `", sandboxes: ["web-*"]`):         "",
		entry(`key: "` + sshKey + `", sandboxes: [demo]`):                                   "is not a name",
		entry(`name: alice, sandboxes: [demo]`):                                             "ssh.keys[0].key: is empty",
		entry(`name: alice, key: "` + sshKey + `"`):                                         "opens nothing",
		entry(`name: alice, key: "` + sshKey + `", sandboxes: ["[a"]`):                      "matches no name",
		entry(`name: alice, key: "` + sshKey[:40] + `", sandboxes: [demo]`):                 "is not a public key",
		entry(`name: alice, key: "no-pty ` + sshKey + `", sandboxes: [demo]`):               "has options",
		entry(`name: alice, key: "command=\"x\" ` + sshKey2 + `", sandboxes: [demo]`):       "ssh.keys[0]",
		entry(`name: alice, key: "-----BEGIN OPENSSH PRIVATE KEY-----", sandboxes: [demo]`): "is a private key",
		entry(`name: alice, key: "` + sshKey + `", sandboxes: [demo], alow: [sftp]`):        `did you mean "allow"?`,
	} {
		_, err := Parse("sallyport.yaml", []byte(text+"\n"))
		got := ""
		if err != nil {
			got = err.Error()
		}
		if want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
}

// A doubtful setting that may be meant is told of and taken.
func TestSSHWarnings(t *testing.T) {
	for text, want := range map[string]string{
		`ssh: {listen: "0.0.0.0:2222"}`:                                        "can be reached from other machines",
		`ssh: {listen: "127.0.0.1:2222"}`:                                      "no expose rule allows SSH",
		"ssh: {listen: \"127.0.0.1:2222\"}\nexpose: [{name: a, ssh: [shell]}]": "",
	} {
		_, findings := parse("sallyport.yaml", []byte(text+"\n"))
		var said []string
		for _, f := range findings {
			said = append(said, f.Error())
		}
		if got := strings.Join(said, "\n"); want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
}

func TestSSHNeedsRestart(t *testing.T) {
	parsed := func(text string) *Config {
		c, err := Parse("sallyport.yaml", []byte(text))
		must.OK(t, err)
		return c
	}
	with := func(listen, keys string) *Config {
		return parsed("ssh: {listen: \"" + listen + "\", keys: [" + keys + "]}\n")
	}
	was := with("127.0.0.1:2222", "")
	if keys := with("127.0.0.1:2222", `{name: alice, key: "`+sshKey+`", sandboxes: [demo]}`).NeedsRestart(was); keys != nil {
		t.Errorf("keys need a restart: %v", keys)
	}
	if keys := with("127.0.0.1:2223", "").NeedsRestart(was); len(keys) != 1 || keys[0] != "ssh" {
		t.Errorf("another address: %v", keys)
	}
}
