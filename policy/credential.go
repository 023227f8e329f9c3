package policy

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
	// AllowShort names fields of the secret that may be injected although they are
	// shorter than 16 bytes, as a public part beside a token, or a PIN that a service
	// gives. Such a request is else refused with 503: a short secret can be guessed,
	// and answers that have its characters by chance are changed; one shorter than 8
	// bytes is not looked for in answers at all. A username beside a password needs no
	// such name. Default: none.
	// Example: [pin]
	AllowShort []string `yaml:"allowShort"`
}

// CredentialSource has at most one field set.
type CredentialSource struct {
	// Vault is HashiCorp Vault, or what speaks its API.
	// Example: {path: secret/data/openai, field: token}
	Vault *VaultSource `yaml:"vault"`
}

// VaultSource is a secret in a Vault KV version 2 mount.
type VaultSource struct {
	// Path is the API path, with "data": secret/data/openai.
	// Example: secret/data/openai
	Path string `yaml:"path"`
	// Field picks one field. Default: all of them, for templates.
	// Example: token
	Field string `yaml:"field"`
}
