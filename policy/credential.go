package policy

import (
	"slices"
	"strings"
)

// Credential is a named reference to a secret.
type Credential struct {
	// Name is what an authRef says.
	// Example: openai-api-key
	Name string `yaml:"name"`
	// Source says where the secret lives. Default: the embedded store.
	// Example: {vault: {path: secret/data/openai, field: token}}
	Source CredentialSource `yaml:"source"`
	// Exchange trades the secret for a short-lived token, which requests get in its
	// place. Default: none, so that they get the secret.
	// Example: {githubApp: {appID: "12345", installationID: "67890"}}
	Exchange *Exchange `yaml:"exchange" json:",omitempty"`
	// Grace is how long the secret is used on after its source was last asked with success
	// and the time of cache more (or what the source says), while the source cannot be reached. It
	// is never used past its own expiry, nor where the source refuses it. At most 24h.
	// Default: 0, so that requests fail then.
	// Example: 10m
	Grace Duration `yaml:"grace" json:",omitzero"`
	// Cache is how long a secret in a KV mount of Vault, or that a command prints, is used
	// before its source is asked again. With 0s the source is asked for each request, and
	// requests at the same time share an answer: each waits for it, and each reading is an
	// event. At most 24h. Default: 30s. Whatever it is, an upstream that answers 401 has the
	// source asked at once.
	// Example: 0s
	Cache *Duration `yaml:"cache" json:",omitempty"`
	// AllowShort names fields of the secret that may be injected although they are
	// shorter than 16 bytes, as a public part beside a token, or a PIN that a service
	// gives. Such a request is else refused with 503: a short secret can be guessed,
	// and answers that have its characters by chance are changed; one shorter than 8
	// bytes is not looked for in answers at all. A username beside a password needs no
	// such name. Default: none.
	// Example: [pin]
	AllowShort []string `yaml:"allowShort"`
	// Destinations are where the credential may go, written as in rules. A rule that sends it
	// elsewhere is an error, so that the author of a rule cannot take it further than the
	// keeper of the secret has meant. Default: where rules send it.
	// Example: [api.openai.com, "*.openai.azure.com"]
	Destinations []string `yaml:"destinations" json:",omitempty"`
	// Kinds are the ways in which it may be given: keys of inject, and bearer for a rule that
	// has no inject. A rule that gives it otherwise is an error, and such an answer of a team's
	// Rego is denied. Default: any.
	// Example: [bearer]
	Kinds []string `yaml:"kinds" json:",omitempty"`
	// Placeholder is what sandboxes hold in the secret's place, where a rule gives them
	// the credential, for clients that insist on a key. Default: nothing.
	// Example: {env: OPENAI_API_KEY, like: sk-proj-}
	Placeholder *Placeholder `yaml:"placeholder" json:",omitempty"`
}

// CredentialSource has at most one field set.
type CredentialSource struct {
	// Vault is HashiCorp Vault, or what speaks its API.
	// Example: {path: secret/data/openai, field: token}
	Vault *VaultSource `yaml:"vault"`
	// Env names a variable of the daemon's environment, whose value is the field token. It is
	// read when the daemon starts, and taken out of the environment of what it starts.
	// Example: OPENAI_API_KEY
	Env string `yaml:"env" json:",omitempty"`
	// File is a file, whose content without a final newline is the field token; or a folder
	// with a file for each field, as Kubernetes mounts a secret. Nobody else can read the
	// files (0600). Their contents are used within a second.
	// Example: /run/secrets/openai-api-key
	File string `yaml:"file" json:",omitempty"`
	// Command is a program and its arguments, run without a shell when a request needs the
	// secret, and at most every 30 seconds (see cache). It prints one line, which is the field token, or an ExecCredential, as
	// plugins of kubectl do, with the fields token, certificate and key. It is ended after 10 seconds.
	// Example: [pass, show, openai-api-key]
	Command []string `yaml:"command" json:",omitempty"`
}

// Embedded reports whether the secret is in the embedded store.
func (s CredentialSource) Embedded() bool {
	return s.Vault == nil && s.Env == "" && s.File == "" && len(s.Command) == 0
}

// String says where the secret is: "vault secret/data/openai". It names no argument of a
// command.
func (s CredentialSource) String() string {
	switch {
	case s.Vault != nil:
		return "vault " + s.Vault.Path
	case s.Env != "":
		return "env " + s.Env
	case s.File != "":
		return "file " + s.File
	case len(s.Command) > 0:
		return "command " + s.Command[0]
	}
	return "embedded"
}

// VaultSource is a secret in Vault: one that is kept in a KV mount, or one that an engine
// makes for each sandbox and that ends with it.
type VaultSource struct {
	// Path is the API path: secret/data/openai in a KV version 2 mount (with "data"),
	// kv/openai in one of version 1; else that of an engine: database/creds/ROLE,
	// aws/creds/ROLE, aws/sts/ROLE, ssh/sign/ROLE or pki/issue/ROLE, below any mount.
	// Example: secret/data/openai
	// Example: database/creds/readonly
	Path string `yaml:"path"`
	// Field picks one field. Default: all of them, for templates.
	// Example: token
	Field string `yaml:"field"`
	// Parameters are what an engine is asked with: pki wants common_name, ssh takes
	// valid_principals, aws a role_arn, and most of them ttl. Default: none.
	// Example: {common_name: agent.example.com, ttl: 1h}
	Parameters map[string]string `yaml:"parameters" json:",omitempty"`
}

// Engine is the word before the role in the path of an engine that makes secrets: creds,
// sts, sign or issue. It is empty for one that keeps them.
func (s VaultSource) Engine() string {
	mount, role, ok := cutLast(s.Path)
	if !ok || role == "" || strings.Contains(s.Path, "/data/") {
		return ""
	}
	switch _, word, ok := cutLast(mount); {
	case ok && slices.Contains([]string{"creds", "sts", "sign", "issue"}, word):
		return word
	}
	return ""
}

// Makes reports whether each sandbox has a secret of its own.
func (s VaultSource) Makes() bool { return s.Engine() != "" }

func cutLast(path string) (before, last string, ok bool) {
	i := strings.LastIndexByte(path, '/')
	if i < 0 {
		return path, "", false
	}
	return path[:i], path[i+1:], true
}
