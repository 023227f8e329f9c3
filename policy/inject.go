package policy

import (
	"maps"
	"net/textproto"
	"slices"
	"strings"
)

// InjectKinds are the keys of Inject.
var InjectKinds = []string{"header", "basic", "query", "cookie", "clientCertificate", "aws", "hmac", "placeholder", "tokenEndpoint", "ssh", "postgres", "redis"}

// Inject is where a credential goes in a request; exactly one field is set.
type Inject struct {
	// Header sets one header. Value is a text/template over the secret's
	// fields: "Bearer {{ .token }}".
	// Example: {name: Authorization, value: "token {{ .token }}"}
	Header *HeaderInject `yaml:"header" json:"header,omitempty"`
	// Basic sets HTTP Basic authentication (RFC 7617).
	// Example: {username: "{{ .username }}", password: "{{ .password }}"}
	Basic *BasicInject `yaml:"basic" json:"basic,omitempty"`
	// Query sets one query parameter.
	// Example: {name: key, value: "{{ .token }}"}
	Query *QueryInject `yaml:"query" json:"query,omitempty"`
	// Cookie sets one cookie (RFC 6265).
	// Example: {name: session, value: "{{ .token }}"}
	Cookie *CookieInject `yaml:"cookie" json:"cookie,omitempty"`
	// ClientCertificate shows a certificate in the TLS handshake with the destination, to
	// no other.
	// Example: {}
	ClientCertificate *ClientCertificateInject `yaml:"clientCertificate" json:"clientCertificate,omitempty"`
	// Placeholder lists where the credential takes the place of its placeholder (see
	// Credential.Placeholder): header and query (those that credentials travel in, as
	// Authorization and key), header:NAME and query:NAME (any other, whatever else is in
	// it), path, body (JSON, a form, text, and the messages of a WebSocket). The sandbox
	// decides what becomes of a secret in a body, or in what a service shows to others:
	// list no more places than the client needs, and narrow the rule by methods and paths.
	// With any other key of inject, the placeholder may stand where the credential goes,
	// and in the headers and query keys that credentials travel in, and is removed there.
	// Example: [header]
	Placeholder []string `yaml:"placeholder" json:"placeholder,omitempty"`
	// TokenEndpoint has the gateway answer in the place of the endpoint at which a
	// program in the sandbox renews its login: the program gets its placeholder, and
	// nothing leaves.
	// Example: true
	TokenEndpoint bool `yaml:"tokenEndpoint" json:"tokenEndpoint,omitempty"`
	// SSH logs in to an SSH server.
	// Example: {user: git, hostKeys: ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"]}
	SSH *SSHInject `yaml:"ssh" json:"ssh,omitempty"`
	// Postgres logs in to a PostgreSQL server.
	// Example: {username: "{{ .username }}", password: "{{ .password }}"}
	Postgres *LoginInject `yaml:"postgres" json:"postgres,omitempty"`
	// Redis logs in to a Redis server.
	// Example: {username: "{{ .username }}", password: "{{ .password }}"}
	Redis *LoginInject `yaml:"redis" json:"redis,omitempty"`
	// AWS signs requests anew (Signature Version 4 or 4a) that the sandbox's SDK has signed
	// with keys that are worth nothing.
	// Example: {service: s3, region: eu-central-1}
	AWS *AWSInject `yaml:"aws" json:"aws,omitempty"`
	// HMAC signs requests with a keyed hash (RFC 2104) of a text that is made of them.
	// Example: {key: "{{ .key }}", sign: "{method}\n{path}\n{timestamp}\n{bodySha256}", headers: {X-Signature: "{signature}", X-Timestamp: "{timestamp}"}}
	HMAC *HMACInject `yaml:"hmac" json:"hmac,omitempty"`
}

// Kinds are the keys that are set: one, or none for [Bearer].
func (i Inject) Kinds() (keys []string) {
	for n, set := range []bool{
		i.Header != nil, i.Basic != nil, i.Query != nil, i.Cookie != nil, i.ClientCertificate != nil, i.AWS != nil, i.HMAC != nil,
		i.Placeholder != nil, i.TokenEndpoint, i.SSH != nil, i.Postgres != nil, i.Redis != nil,
	} {
		if set {
			keys = append(keys, InjectKinds[n])
		}
	}
	return keys
}

// Kind is the key that is set, or [Bearer].
func (i Inject) Kind() string { return append(i.Kinds(), Bearer)[0] }

// Bearer is the kind of the zero Inject: a bearer token in Authorization (RFC 6750).
const Bearer = "bearer"

// Signs tells whether each request is signed. That comes last, when the rest of it is as
// it leaves.
func (i Inject) Signs() bool { return i.AWS != nil || i.HMAC != nil }

type HeaderInject struct {
	// Name is the header's.
	// Example: X-Api-Key
	Name string `yaml:"name" json:"name"`
	// Value is a template over the secret's fields.
	// Example: "Bearer {{ .token }}"
	Value string `yaml:"value" json:"value"`
}

type BasicInject struct {
	// Username is a template over the secret's fields, or the name itself.
	// Example: x-access-token
	Username string `yaml:"username" json:"username"`
	// Password is a template over the secret's fields.
	// Example: "{{ .password }}"
	Password string `yaml:"password" json:"password"`
}

type QueryInject struct {
	// Name is the parameter's.
	// Example: key
	Name string `yaml:"name" json:"name"`
	// Value is a template over the secret's fields.
	// Example: "{{ .token }}"
	Value string `yaml:"value" json:"value"`
}

type CookieInject struct {
	// Name is the cookie's. The sandbox's own cookie of that name is removed.
	// Example: session
	Name string `yaml:"name" json:"name"`
	// Value is a template over the secret's fields.
	// Example: "{{ .token }}"
	Value string `yaml:"value" json:"value"`
}

type ClientCertificateInject struct {
	// Certificate is a template over the secret's fields, for PEM: the certificate, and
	// those between it and its authority after it. Default: the field certificate, and
	// after it ca_chain if there is one.
	// Example: "{{ .certificate }}"
	Certificate string `yaml:"certificate" json:"certificate,omitempty"`
	// Key is a template over the secret's fields, for the PEM of its private key. Default:
	// the field private_key, or else key.
	// Example: "{{ .key }}"
	Key string `yaml:"key" json:"key,omitempty"`
}

type AWSInject struct {
	// Service is the one that requests may be signed for. Default: the one that the
	// sandbox's SDK has signed for.
	// Example: s3
	Service string `yaml:"service" json:"service,omitempty"`
	// Region is the one that requests may be signed for, with SigV4a the list of them, as
	// the SDK sends it. Default: what the sandbox's SDK has signed for.
	// Example: eu-central-1
	Region string `yaml:"region" json:"region,omitempty"`
}

// Words that an HMACInject may have.
const (
	SHA1   = "sha1"
	SHA256 = "sha256"
	SHA512 = "sha512"
	Hex    = "hex"
	Base64 = "base64"
)

type HMACInject struct {
	// Algorithm is the hash: sha1, sha256 or sha512. Default: sha256.
	// Example: sha512
	Algorithm string `yaml:"algorithm" json:"algorithm,omitempty"`
	// Key is a template over the secret's fields: the bytes that are the key.
	// Example: "{{ .key }}"
	Key string `yaml:"key" json:"key"`
	// Sign is the text that is signed. {method}, {host}, {path} (as it is sent), {query}
	// (without ?), {timestamp} (seconds since 1970), {timestampMs}, {bodySha256} (hex) and
	// {body} stand for the request's. A body that is named is read into memory first.
	// Example: "{method}\n{path}\n{timestamp}\n{bodySha256}"
	Sign string `yaml:"sign" json:"sign"`
	// Headers are set, each to a template over the secret's fields in which {signature}
	// and all of Sign's but the body stand for the request's too.
	// Example: {X-Signature: "{signature}", X-Timestamp: "{timestamp}", X-Key-Id: "{{ .keyId }}"}
	Headers map[string]string `yaml:"headers" json:"headers"`
	// Encoding is that of the signature: hex or base64. Default: hex.
	// Example: base64
	Encoding string `yaml:"encoding" json:"encoding,omitempty"`
}

// Place names where an injection goes: two into one place cannot both arrive.
// The zero Inject is the default, a bearer token.
func (i Inject) Place() string {
	switch {
	case i.Header != nil:
		return "header " + textproto.CanonicalMIMEHeaderKey(i.Header.Name)
	case i.Query != nil:
		return "query parameter " + i.Query.Name
	case i.Cookie != nil:
		return "cookie " + i.Cookie.Name
	case i.ClientCertificate != nil:
		return "TLS handshake"
	case i.Placeholder != nil:
		return "place of its placeholder"
	case i.Protocol() != ProtocolTLS:
		return string(i.Protocol()) + " login"
	case i.HMAC != nil:
		return "headers " + strings.Join(slices.Sorted(maps.Keys(i.HMAC.Headers)), ", ")
	default:
		return "header Authorization"
	}
}

// SSHInject is how to log in to an SSH server: with the secret's field privateKey (PEM, with
// a passphrase in the field passphrase where it is encrypted), and with the certificate in
// the field certificate, or signed_key, where there is one.
type SSHInject struct {
	// User is who logs in.
	// Example: git
	User string `yaml:"user" json:"user"`
	// HostKeys lists the server's public keys, as its administrator publishes them and a
	// line of known_hosts has them after the name. A server with another key is refused.
	// Example: ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"]
	HostKeys []string `yaml:"hostKeys" json:"hostKeys"`
}

// LoginInject is how to log in to a server by name and password.
type LoginInject struct {
	// Username is a template over the secret's fields, or the name itself.
	// Example: "{{ .username }}"
	Username string `yaml:"username" json:"username"`
	// Password is a template over the secret's fields.
	// Example: "{{ .password }}"
	Password string `yaml:"password" json:"password"`
}

// Methods of requests over SSH.
const (
	SSHUploadPack    = "git-upload-pack"    // clone and fetch
	SSHReceivePack   = "git-receive-pack"   // push
	SSHUploadArchive = "git-upload-archive" // git archive --remote
	SSHExec          = "exec"               // any other command
	SSHShell         = "shell"
	SSHSFTP          = "sftp"
)

// SSHMethods are the methods of requests over SSH. The path of the first three is the
// repository's, from the root; that of the others is /.
var SSHMethods = []string{SSHUploadPack, SSHReceivePack, SSHUploadArchive, SSHExec, SSHShell, SSHSFTP}

// Protocol is that of the connections which the injection is for: tls, but for a login.
func (i Inject) Protocol() Protocol {
	switch {
	case i.SSH != nil:
		return ProtocolSSH
	case i.Postgres != nil:
		return ProtocolPostgres
	case i.Redis != nil:
		return ProtocolRedis
	}
	return ProtocolTLS
}

// Port is the TCP port where servers of a protocol listen, 443 for all that is no login.
func (p Protocol) Port() uint16 {
	switch p {
	case ProtocolSSH:
		return 22
	case ProtocolPostgres:
		return 5432
	case ProtocolRedis:
		return 6379
	}
	return 443
}
