// Package config reads sallyport.yaml.
//
// Every key has a safe default and an unknown key is an error, so that an empty
// file is a working configuration that lets nothing out. The comment of each
// field is its reference: meaning, unit and default. A change of the files, SIGHUP
// and the API reload Document and Vault; what else has changed is named in the log, and waits for a restart.
package config

import (
	"net/netip"
	"time"

	"sallyport/policy"
)

// Config is sallyport.yaml.
type Config struct {
	// Document holds egress, egressAuth, credentials and policy. Reloads.
	policy.Document `yaml:",inline"`

	// DataDir holds everything that lasts. Default: /var/lib/sallyport.
	DataDir string `yaml:"dataDir"`
	// RunDir holds the control socket and the root of the gateway's process. Default: /run/sallyport.
	RunDir string `yaml:"runDir"`
	// KeyFile holds the key that DataDir's secrets are sealed with; keep it on
	// another disk or in a systemd credential. Default: $CREDENTIALS_DIRECTORY/sallyport.key
	// where systemd sets it, else /etc/sallyport/key. Made on the first start.
	KeyFile string `yaml:"keyFile"`

	Network Network `yaml:"network"`
	Engine  Engine  `yaml:"engine"`
	Sandbox Sandbox `yaml:"sandbox"`
	Gateway Gateway `yaml:"gateway"`
	Proxy   Proxy   `yaml:"proxy"`
	Metrics Metrics `yaml:"metrics"`
	Vault   Vault   `yaml:"vault"`
	Audit   Audit   `yaml:"audit"`
}

// Network is where the sandboxes live.
type Network struct {
	// Bridge is the device that Sallyport makes and guards, at most 15 bytes.
	// Default: sallyport0.
	Bridge string `yaml:"bridge"`
	// Subnet holds the sandboxes; its first address is the gateway's, its
	// second is never given. Default: 10.231.0.0/16.
	Subnet netip.Prefix `yaml:"subnet"`
}

// Engine is the Docker Engine that runs the sandboxes.
type Engine struct {
	// Kind is private (default: an instance of its own beside the user's),
	// existing (the one at Host, which must call Sallyport's guard as its runtime
	// runsc: `sallyport up` says what to register), or none (gateway only, no
	// sandboxes here).
	Kind string `yaml:"kind"`
	// Host is the existing engine's socket: unix:///var/run/docker.sock.
	Host string `yaml:"host"`
	// Runsc is the path of gVisor's runsc. Default: looked for beside the
	// sallyport binary, then on PATH.
	Runsc string `yaml:"runsc"`
}

// Sandbox holds defaults for new sandboxes.
type Sandbox struct {
	// Image is the default image. Default: sallyport/base:bookworm-1.
	Image string `yaml:"image"`
	// Tarball is a root file system that is imported as Image when the engine
	// has no such image. Default: base.tar beside the sallyport binary, if any.
	Tarball string `yaml:"tarball"`
	// Runtime is runsc (default) or runc, which shares the host's kernel.
	Runtime string `yaml:"runtime"`
	// Pids is the default limit of processes. Default: 4096.
	Pids int64 `yaml:"pids"`
}

// Gateway is the process that reads what sandboxes and upstreams send.
type Gateway struct {
	// User is whom it runs as, a name or a number, never root. Nothing else
	// should run as that user. Default: sallyport where there is a user of that
	// name, else the number 2031023100.
	User string `yaml:"user"`
	// Drain is how long requests under way may go on when the daemon ends, as
	// 30s: then they are broken off. From 1s to 1m. Default: 5s.
	Drain Duration `yaml:"drain"`
}

// Duration is a time as [time.ParseDuration] reads it.
type Duration time.Duration

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	*d = Duration(v)
	return err
}

// String is as time.Duration's.
func (d Duration) String() string { return time.Duration(d).String() }

// Proxy is the listener for sandboxes that run elsewhere.
type Proxy struct {
	// Listen is host:port. Default: none. An address that is not loopback
	// needs Certificate and Key.
	Listen string `yaml:"listen"`
	// Certificate and Key are PEM files, of a chain and of its key, with which
	// the listener speaks TLS.
	Certificate string `yaml:"certificate"`
	Key         string `yaml:"key"`
}

// Metrics is the Prometheus endpoint.
type Metrics struct {
	// Listen is host:port. Default: 127.0.0.1:9464. "off" turns it off.
	Listen string `yaml:"listen"`
}

// Vault is the server that vault sources read from. Where a credential lives in
// Vault and this section is left out, it is the server or the Vault Agent at
// Vault's own default address, with the token in a file beside the
// configuration:
//
//	address: https://127.0.0.1:8200
//	auth: {tokenFile: /etc/sallyport/vault-token}
type Vault struct {
	// Address is the server's URL; needed in a section that is there.
	Address string `yaml:"address"`
	// Namespace is Vault Enterprise's, for all paths. Default: none.
	Namespace string `yaml:"namespace"`
	// Roots is a PEM file of authorities to trust. Default: the system's.
	Roots string `yaml:"roots"`
	// Auth is needed in a section that is there.
	Auth VaultAuth `yaml:"auth"`
}

// VaultAuth is how to log in; exactly one is set.
type VaultAuth struct {
	// TokenFile holds a token, read anew for each secret that is read.
	TokenFile string `yaml:"tokenFile"`
	// AppRole logs in with a role and a secret from a file.
	AppRole *AppRole `yaml:"appRole"`
}

// AppRole is Vault's auth method of that name.
type AppRole struct {
	// Mount is the path that the method is mounted at. Default: approle.
	Mount string `yaml:"mount"`
	// RoleID is no secret; needed.
	RoleID string `yaml:"roleID"`
	// SecretIDFile holds the secret ID, read anew for each login; needed.
	SecretIDFile string `yaml:"secretIDFile"`
}

// Audit is the log.
type Audit struct {
	// SegmentSize is the size in bytes at which a new segment begins. Default: 64 MiB.
	SegmentSize int64 `yaml:"segmentSize"`
}
