package config

import (
	"cmp"
	"errors"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sallyport/policy/finding"
)

// Load reads and checks the file at path; see [Parse].
func Load(path string) (*Config, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return Parse(path, data)
}

// Parse reads and checks a configuration. Paths in it are relative to the folder
// of name. Its error joins a [finding.Finding] for each thing that is wrong.
func Parse(name string, data []byte) (*Config, error) {
	c, findings := parse(name, data)
	return c, joined(findings)
}

func parse(name string, data []byte) (*Config, []finding.Finding) {
	c := &Config{}
	positions, findings := decode(name, data, c)
	c.Positions = positions
	c.fill()
	c.resolve(filepath.Dir(name))
	return c, append(findings, c.findings()...)
}

// RunDir returns the runDir of a configuration that has errors elsewhere, for reaching a
// daemon that runs.
func RunDir(path string) string {
	c := &Config{}
	data, _ := os.ReadFile(path) // what cannot be read says nothing
	for line := range strings.Lines(string(data)) {
		if strings.HasPrefix(line, "runDir:") {
			_, _ = decode(path, []byte(line), c)
		}
	}
	c.fill()
	c.resolve(filepath.Dir(path))
	return c.RunDir
}

func joined(findings []finding.Finding) error {
	var errs []error
	for _, f := range findings {
		if f.Severity == finding.Error {
			errs = append(errs, f)
		}
	}
	return errors.Join(errs...)
}

// fill sets every default.
func (c *Config) fill() {
	c.DataDir = cmp.Or(c.DataDir, "/var/lib/sallyport")
	c.RunDir = cmp.Or(c.RunDir, "/run/sallyport")
	if c.KeyFile == "" {
		c.KeyFile = "/etc/sallyport/key"
		if dir := os.Getenv("CREDENTIALS_DIRECTORY"); dir != "" {
			c.KeyFile = filepath.Join(dir, "sallyport.key")
		}
	}
	c.Network.Bridge = cmp.Or(c.Network.Bridge, "sallyport0")
	if !c.Network.Subnet.IsValid() {
		c.Network.Subnet = netip.MustParsePrefix("10.231.0.0/16")
	}
	c.SSH.Idle = cmp.Or(c.SSH.Idle, Duration(defaultIdle))
	c.Engine.Kind = cmp.Or(c.Engine.Kind, "private")
	c.Pods.fill(c.Engine.Kind)
	c.Sandbox.Image = cmp.Or(c.Sandbox.Image, "sallyport/base:bookworm-1")
	c.Sandbox.Runtime = cmp.Or(c.Sandbox.Runtime, "runsc")
	c.Sandbox.Pids = cmp.Or(c.Sandbox.Pids, 4096)
	c.Sandbox.PerTenant = cmp.Or(c.Sandbox.PerTenant, 100)
	c.Sandbox.Memory = cmp.Or(c.Sandbox.Memory, 4<<30)
	c.Sandbox.Disk = cmp.Or(c.Sandbox.Disk, 10<<30)
	c.Gateway.Found = cmp.Or(c.Gateway.Found, 5)
	c.Gateway.Drain = cmp.Or(c.Gateway.Drain, Duration(5*time.Second))
	c.Metrics.Listen = cmp.Or(c.Metrics.Listen, "127.0.0.1:9464")
	c.Audit.SegmentSize = cmp.Or(c.Audit.SegmentSize, 64<<20)
	if c.Vault == (Vault{}) && fromVault(c.Credentials) {
		c.Vault = Vault{Address: "https://127.0.0.1:8200", Auth: VaultAuth{TokenFile: "/etc/sallyport/vault-token"}}
	}
	for i := range c.Audit.Sinks {
		c.Audit.Sinks[i].fill()
	}
	c.Elsewhere = slices.Sorted(maps.Keys(c.RegistryLogins()))
	c.Elsewhere = slices.AppendSeq(c.Elsewhere, maps.Keys(c.SinkLogins()))
	auth := c.Vault.Auth
	if role := auth.AppRole; role != nil {
		role.Mount = cmp.Or(role.Mount, "approle")
	}
	if role := auth.Kubernetes; role != nil {
		role.Mount = cmp.Or(role.Mount, "kubernetes")
		role.TokenFile = cmp.Or(role.TokenFile, "/var/run/secrets/kubernetes.io/serviceaccount/token")
	}
	if role := auth.JWT; role != nil {
		role.Mount = cmp.Or(role.Mount, "jwt")
	}
	if own := auth.Certificate; own != nil {
		own.Mount = cmp.Or(own.Mount, "cert")
	}
}

// resolve makes paths absolute, from the folder of the configuration.
func (c *Config) resolve(dir string) {
	if abs, err := filepath.Abs(dir); err == nil {
		dir = abs
	}
	paths := []*string{
		&c.DataDir, &c.RunDir, &c.KeyFile, &c.Engine.Runsc, &c.Sandbox.Tarball, &c.Proxy.Certificate, &c.Proxy.Key,
		&c.Pods.Kubeconfig, &c.Pods.CA.Certificate, &c.Pods.CA.Key, &c.Pods.Router.Certificate, &c.Pods.Router.Key,
		&c.Vault.Roots, &c.Vault.Auth.TokenFile, &c.Policy.Dir,
		&c.Memory.TokenFile,
		&c.API.Certificate, &c.API.Key, &c.Remote.KeyFile,
	}
	for i := range c.Pods.Router.Clients {
		paths = append(paths, &c.Pods.Router.Clients[i].TokenFile)
	}
	for i := range c.Webhooks {
		paths = append(paths, &c.Webhooks[i].SecretFile)
	}
	for i := range c.Audit.Sinks {
		paths = append(paths, c.Audit.Sinks[i].paths()...)
	}
	if b := c.Policy.Bundle; b != nil {
		paths = append(paths, &b.File, &b.Key, &b.Roots)
	}
	for i := range c.Credentials {
		paths = append(paths, &c.Credentials[i].Source.File)
	}
	auth := &c.Vault.Auth
	if role := auth.AppRole; role != nil {
		paths = append(paths, &role.SecretIDFile)
	}
	for _, role := range []*VaultRole{auth.Kubernetes, auth.JWT} {
		if role != nil {
			paths = append(paths, &role.TokenFile)
		}
	}
	if own := auth.Certificate; own != nil {
		paths = append(paths, &own.Certificate, &own.Key)
	}
	for _, u := range c.Upstreams() {
		paths = append(paths, &u.Roots, &u.ProxyRoots)
	}
	for i := range c.Credentials {
		paths = append(paths, c.Credentials[i].Exchange.Roots()...)
	}
	for _, p := range paths {
		if *p != "" && !filepath.IsAbs(*p) {
			*p = filepath.Join(dir, *p)
		}
	}
}
