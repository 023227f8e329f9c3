// Package config reads sallyport.yaml.
//
// Every key has a safe default and an unknown key is an error, so that an empty
// file is a working configuration that lets nothing out. The comment of each
// field is its reference: meaning, unit and default. A change of the files, SIGHUP and
// the API reload Document, Registries, Vault, sinks and retention of Audit and the keys of SSH. Other
// changes are named in the log and take effect after a restart.
package config

import (
	"net/netip"

	"sallyport/internal/image"
	"sallyport/policy"
)

//go:generate go run ../setup/schema -o ../../policy/schema/sallyport.json

// Config is sallyport.yaml.
type Config struct {
	// Document holds egress, egressAuth, expose, credentials, policy and limits. Reloads.
	policy.Document `yaml:",inline"`

	// DataDir holds everything that lasts. Default: /var/lib/sallyport.
	// Example: /var/lib/sallyport
	DataDir string `yaml:"dataDir"`
	// RunDir holds the control socket and the root of the gateway's process. Default: /run/sallyport.
	// Example: /run/sallyport
	RunDir string `yaml:"runDir"`
	// KeyFile holds the key that DataDir's secrets are sealed with; keep it on
	// another disk or in a systemd credential. Default: $CREDENTIALS_DIRECTORY/sallyport.key
	// where systemd sets it, else /etc/sallyport/key. Made on the first start.
	// Example: /etc/sallyport/key
	KeyFile string `yaml:"keyFile"`

	// Network is where the sandboxes live.
	// Example: {bridge: sallyport0, subnet: 10.231.0.0/16}
	Network Network `yaml:"network"`
	// Engine is the Docker Engine that runs the sandboxes.
	// Example: {kind: private}
	Engine Engine `yaml:"engine"`
	// Pods is the node of Kubernetes whose pods are the sandboxes, with engine.kind: pods.
	// Example: {cluster: prod, ca: {vault: {mount: pki}}}
	Pods Pods `yaml:"pods"`
	// Sandbox holds defaults for new sandboxes.
	// Example: {runtime: runsc, pids: 4096}
	Sandbox Sandbox `yaml:"sandbox"`
	// Gateway configures the process that reads the traffic of sandboxes and upstreams.
	// Example: {drain: 30s}
	Gateway Gateway `yaml:"gateway"`
	// Proxy is the listener for sandboxes that run elsewhere.
	// Example: {listen: "127.0.0.1:3128"}
	Proxy Proxy `yaml:"proxy"`
	// Inbound is the listener for requests to exposed ports of sandboxes.
	// Example: {listen: "127.0.0.1:7080"}
	Inbound Inbound `yaml:"inbound"`
	// SSH is the server through which operators use sandboxes with ssh, scp and sftp.
	// Example: {listen: "127.0.0.1:2222"}
	SSH SSH `yaml:"ssh"`
	// Metrics is the Prometheus endpoint.
	// Example: {listen: "127.0.0.1:9464"}
	Metrics Metrics `yaml:"metrics"`
	// Registries are those of images that `sallyport image pull` logs in to. Reloads.
	// Example: [{host: registry.example.com, authRef: registry}]
	Registries []Registry `yaml:"registries"`
	// Vault is the server that vault sources read from. Reloads.
	// Example: {address: "https://vault.example.com:8200", auth: {tokenFile: vault-token}}
	Vault Vault `yaml:"vault"`
	// Audit configures the audit log.
	// Example: {segmentSize: 67108864}
	Audit Audit `yaml:"audit"`
	// Memory configures the memories of sandboxes, which they have at /memory.
	// Example: {trusted: [api.openai.com]}
	Memory Memory `yaml:"memory"`
	// API is who may use the daemon's interface besides root on its socket.
	// Example: {listen: "0.0.0.0:8443"}
	API API `yaml:"api"`
	// Webhooks are servers that are told what happens, up to 16.
	// Example: [{url: "https://hooks.example.com/sallyport", secretFile: hook.secret}]
	Webhooks []Webhook `yaml:"webhooks"`
	// Remote is the daemon that the command line speaks to, in place of the one on
	// this host.
	// Example: {host: "https://sallyport.example.com:8443", keyFile: sallyport.key}
	Remote Remote `yaml:"remote"`
}

// Registry is a registry of images that needs a login.
type Registry struct {
	// Host is the registry as names of its images begin, with its port where they have
	// one; docker.io is Docker Hub. Required.
	// Example: registry.example.com
	Host string `yaml:"host"`
	// AuthRef names the credential to log in with, which has the fields username and
	// password, or token for a registry that takes it as a bearer's. Required.
	// Example: registry
	AuthRef string `yaml:"authRef"`
}

// RegistryLogins lists, by the name of a credential, the registries that it logs in to.
func (c *Config) RegistryLogins() map[string][]string {
	logins := map[string][]string{}
	for _, r := range c.Registries {
		logins[r.AuthRef] = append(logins[r.AuthRef], r.Host)
	}
	return logins
}

// Network is where the sandboxes live.
type Network struct {
	// Bridge is the device that Sallyport makes and guards, at most 15 bytes.
	// Default: sallyport0.
	// Example: sallyport0
	Bridge string `yaml:"bridge"`
	// Subnet holds the sandboxes; its first address is the gateway's, its
	// second is never given. Default: 10.231.0.0/16.
	// Example: 10.231.0.0/16
	Subnet netip.Prefix `yaml:"subnet"`
}

// Engine is the Docker Engine that runs the sandboxes.
type Engine struct {
	// Kind is private (default: an instance of its own beside the user's),
	// existing (the one at Host, which must call Sallyport's guard as its runtime
	// runsc: `sallyport up` says what to register), pods (this host is a node of
	// Kubernetes, whose pods are the sandboxes: see pods), or none (gateway only, no
	// sandboxes here).
	// Example: existing
	Kind string `yaml:"kind"`
	// Host is the existing engine's socket: unix:///var/run/docker.sock.
	// Example: unix:///var/run/docker.sock
	Host string `yaml:"host"`
	// Runsc is the path of gVisor's runsc. Default: looked for beside the
	// sallyport binary, then on PATH.
	// Example: /usr/local/bin/runsc
	Runsc string `yaml:"runsc"`
}

// Sandbox holds defaults for new sandboxes.
type Sandbox struct {
	// Image is the default image. It has to be there, or to be imported: none is
	// fetched. Default: sallyport/base:bookworm-1.
	// Example: sallyport/base:bookworm-1
	Image string `yaml:"image"`
	// Tarball is a root file system that is imported as Image when the engine
	// has no such image. Default: base.tar beside the sallyport binary, if any.
	// Example: base.tar
	Tarball string `yaml:"tarball"`
	// Runtime is runsc (default) or runc, which shares the host's kernel.
	// Example: runsc
	Runtime string `yaml:"runtime"`
	// Pids is the default limit of processes. Default: 4096.
	// Example: 4096
	Pids int64 `yaml:"pids"`
	// CPUs is the default limit of processors. Default: none.
	// Example: 2
	CPUs float64 `yaml:"cpus"`
	// Memory is the default limit of memory, of all processes of a sandbox
	// together. Default: 4GiB.
	// Example: 4GiB
	Memory policy.Size `yaml:"memory"`
	// Disk is the default size of the file system that all goes to that a sandbox
	// writes, /memory included. It takes of the host's what was written. Default:
	// 10GiB.
	// Example: 10GiB
	Disk policy.Size `yaml:"disk"`
	// Reserve is what is kept of the data directory's file system for the host and
	// the audit: while less is left, no sandbox is made or started, and the disk that
	// grows most takes no more. While less than twice as much is left, that is so for
	// whoever has most. Default: 2GiB or a twentieth of that file system, whichever is
	// less.
	// Example: 2GiB
	Reserve policy.Size `yaml:"reserve"`
	// Pool holds sandboxes that are started before anybody asks for one.
	// Example: {size: 2}
	Pool Pool `yaml:"pool"`
	// PerTenant is how many sandboxes a tenant's keys may make, those that sleep or
	// are stopped among them. Default: 100.
	// Example: 20
	PerTenant int `yaml:"perTenant"`
	// StoragePerTenant is how much of the data directory's file system a tenant's
	// sandboxes may take, with their snapshots and their memory on disk. Default: a
	// quarter of that file system.
	// Example: 50GiB
	StoragePerTenant policy.Size `yaml:"storagePerTenant"`
	// TenantImages are the images that a tenant's keys may make sandboxes of, besides
	// Image. Each is a name with its tag or digest, in which * stands for any run of
	// characters but /, and ** for any run; names of Docker Hub are without docker.io.
	// Default: none.
	// Example: ["registry.example.com/agents/**", "debian:*"]
	TenantImages image.Patterns `yaml:"tenantImages"`
}

// Pool keeps containers started in advance, with the defaults of Sandbox. A new sandbox
// with these defaults takes one of them and starts at once.
type Pool struct {
	// Size is how many, up to 64. Each takes the memory of one that is idle.
	// Default: 0.
	// Example: 2
	Size int `yaml:"size"`
}

// Gateway configures the process that reads the traffic of sandboxes and upstreams.
type Gateway struct {
	// User is whom it runs as, a name or a number, never root. Nothing else
	// should run as that user. Default: sallyport where there is a user of that
	// name, else the number 2031023100.
	// Example: sallyport
	User string `yaml:"user"`
	// Drain is how long requests under way may go on when the daemon ends, as
	// 30s: then they are broken off. From 1s to 1m. Default: 5s.
	// Example: 30s
	Drain Duration `yaml:"drain"`
	// Found is how many times an injected secret may be found in answers of hosts
	// that it was never sent to: then nothing of the sandbox leaves until an
	// operator has looked and run `sallyport limits reset found-credentials`.
	// Such an answer shows to somebody who guesses secrets whether one is right. From
	// 1 to 1000. Default: 5.
	// Example: 5
	Found int64 `yaml:"found"`
}

// Duration is a time as [time.ParseDuration] reads it.
type Duration = policy.Duration

// Proxy is the listener for sandboxes that run elsewhere.
type Proxy struct {
	// Listen is host:port. Default: none. An address that is not loopback
	// needs Certificate and Key.
	// Example: 127.0.0.1:3128
	Listen string `yaml:"listen"`
	// Certificate and Key are PEM files, of a chain and of its key, with which
	// the listener speaks TLS.
	// Example: proxy.pem
	Certificate string `yaml:"certificate"`
	// Key is the PEM file of Certificate's key, which nobody else can read (0600).
	// Example: proxy.key
	Key string `yaml:"key"`
}

// Metrics is the Prometheus endpoint. It asks for no key, and answers where Host is an
// address, localhost, this host's own name or the name in Listen.
type Metrics struct {
	// Listen is host:port. Default: 127.0.0.1:9464. "off" turns it off.
	// Example: 127.0.0.1:9464
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
	// Example: https://vault.example.com:8200
	Address string `yaml:"address"`
	// Namespace is Vault Enterprise's or OpenBao's, for all paths. Default: none.
	// Example: engineering
	Namespace string `yaml:"namespace"`
	// Roots is a PEM file of authorities to trust. Default: the system's.
	// Example: vault.pem
	Roots string `yaml:"roots"`
	// Auth is needed in a section that is there.
	// Example: {tokenFile: /etc/sallyport/vault-token}
	Auth VaultAuth `yaml:"auth"`
}

// VaultAuth is how to log in: exactly one way is set. A token is renewed while its secrets
// are in use, and replaced by another login at the end of its longest life.
type VaultAuth struct {
	// TokenFile holds a token, read anew for each secret that is read; nobody else can
	// read it (0600).
	// Example: /etc/sallyport/vault-token
	TokenFile string `yaml:"tokenFile"`
	// AppRole logs in with a role and a secret from a file.
	// Example: {roleID: sallyport, secretIDFile: /etc/sallyport/secret-id}
	AppRole *AppRole `yaml:"appRole"`
	// Kubernetes logs in with the token of the pod's service account.
	// Example: {role: sallyport}
	Kubernetes *VaultRole `yaml:"kubernetes"`
	// JWT logs in with a JSON web token from a file, which nobody else can read (0600).
	// Example: {role: sallyport, tokenFile: /run/sallyport/identity.jwt}
	JWT *VaultRole `yaml:"jwt"`
	// Certificate logs in with a TLS client certificate.
	// Example: {certificate: /etc/sallyport/vault.pem, key: /etc/sallyport/vault-key.pem}
	Certificate *VaultCertificate `yaml:"certificate"`
	// Wrapped says that tokenFile, appRole.secretIDFile or jwt.tokenFile holds a wrapping token of Vault's.
	// It is unwrapped when it is first needed, and what was in it is kept in memory alone:
	// each start of the daemon needs a new one. Default: false.
	// Example: true
	Wrapped bool `yaml:"wrapped"`
}

// Ways lists the ways to log in that are set, by their keys.
func (a VaultAuth) Ways() (ways []string) {
	for _, way := range []struct {
		key string
		set bool
	}{
		{"tokenFile", a.TokenFile != ""}, {"appRole", a.AppRole != nil}, {"kubernetes", a.Kubernetes != nil}, {"jwt", a.JWT != nil}, {"certificate", a.Certificate != nil},
	} {
		if way.set {
			ways = append(ways, way.key)
		}
	}
	return ways
}

// VaultRole is a role of Vault's auth methods kubernetes and jwt.
type VaultRole struct {
	// Mount is the path that the method is mounted at. Default: kubernetes, or jwt.
	// Example: kubernetes
	Mount string `yaml:"mount"`
	// Role is needed.
	// Example: sallyport
	Role string `yaml:"role"`
	// TokenFile holds the token, read anew for each login. Default: for kubernetes
	// /var/run/secrets/kubernetes.io/serviceaccount/token; else needed.
	// Example: /run/sallyport/identity.jwt
	TokenFile string `yaml:"tokenFile"`
}

// VaultCertificate is a login with Vault's auth method cert.
type VaultCertificate struct {
	// Mount is the path that the method is mounted at. Default: cert.
	// Example: cert
	Mount string `yaml:"mount"`
	// Role is the name of the role. Default: the one that the certificate fits.
	// Example: sallyport
	Role string `yaml:"role"`
	// Certificate is a PEM file with the certificate and what is between it and its
	// authority, read anew for each connection; needed.
	// Example: /etc/sallyport/vault.pem
	Certificate string `yaml:"certificate"`
	// Key is the PEM file of its private key, which nobody else can read (0600); needed.
	// Example: /etc/sallyport/vault-key.pem
	Key string `yaml:"key"`
}

// AppRole is Vault's auth method of that name.
type AppRole struct {
	// Mount is the path that the method is mounted at. Default: approle.
	// Example: approle
	Mount string `yaml:"mount"`
	// RoleID is no secret; needed.
	// Example: 3f2b1c4d-0000-4000-8000-000000000000
	RoleID string `yaml:"roleID"`
	// SecretIDFile holds the secret ID, read anew for each login; needed. Nobody else
	// can read it (0600).
	// Example: /etc/sallyport/secret-id
	SecretIDFile string `yaml:"secretIDFile"`
}

// Audit configures the audit log.
type Audit struct {
	// SegmentSize is the size in bytes at which a new segment begins. Default: 64 MiB.
	// Example: 67108864
	SegmentSize int64 `yaml:"segmentSize"`
	// Sinks are receivers outside that get each record, up to 16. Reloads.
	// Example: [{name: siem, type: syslog, address: "siem.example.com:6514"}]
	Sinks []Sink `yaml:"sinks"`
	// Retention says which records are kept. Reloads.
	// Example: {keep: 90d, bytes: 100GiB}
	Retention Retention `yaml:"retention"`
}
