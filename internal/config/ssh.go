package config

import (
	"fmt"
	"net/netip"
	"path"
	"slices"
	"time"

	"sallyport/internal/ssh/key"
	"sallyport/policy"
)

// SSH configures the server for ssh, scp and sftp into sandboxes. An expose rule must
// allow each use too.
type SSH struct {
	// Listen is host:port. Default: none, and there is no SSH.
	// Example: 127.0.0.1:2222
	Listen string `yaml:"listen"`
	// Idle is for how long a connection may carry nothing, as 30m, from 1m to 24h:
	// then it ends. Default: 8h.
	// Example: 30m
	Idle Duration `yaml:"idle"`
	// Keys are who may log in, up to 256. Reloads: what goes on by a key that is
	// gone or says something else ends.
	// Example: [{name: alice, key: "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBpdnfnovTSFdGdY2rVZXh9TlO4PUsfZmTi6yQ4zQrLT", sandboxes: ["demo"]}]
	Keys []SSHKey `yaml:"keys"`
}

// SSHKey is an operator's public key and the sandboxes that it opens.
type SSHKey struct {
	// Name is who logs in with it, as the audit has it; several keys may have the
	// same. Needed.
	// Example: alice
	Name string `yaml:"name"`
	// Key is the public key as a line of an authorized_keys file, without options.
	// Needed.
	// Example: ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBpdnfnovTSFdGdY2rVZXh9TlO4PUsfZmTi6yQ4zQrLT
	Key string `yaml:"key"`
	// Sandboxes are those that it opens, by name; * stands for any run of
	// characters. Needed.
	// Example: ["web-*"]
	Sandboxes []string `yaml:"sandboxes"`
	// Tenant confines it to the sandboxes of one tenant, as an API key's does.
	// Default: none.
	// Example: acme
	Tenant string `yaml:"tenant"`
	// Allow lists what it may do besides shells and commands: sftp (files, which scp
	// uses too) and forward (connections to ports of the sandbox). Default: neither.
	// Example: [sftp, forward]
	Allow []policy.Protocol `yaml:"allow"`
}

const maxSSHKeys = 256

// Bounds and default of SSH.Idle.
const (
	leastIdle   = time.Minute
	mostIdle    = 24 * time.Hour
	defaultIdle = 8 * time.Hour
)

func (v *validator) ssh(s SSH, engine string, rules []policy.ExposeRule) {
	if s.Listen == "" {
		if len(s.Keys) > 0 {
			v.fail("ssh.listen", "is missing, so the keys are of no use", `write listen: "127.0.0.1:2222"`)
		}
	} else {
		v.sshListen(s, engine, rules)
	}
	between(v, "ssh.idle", time.Duration(s.Idle), leastIdle, mostIdle, "from 1m to 24h", "write a time as 30m, or leave it out for 8h")
	if len(s.Keys) > maxSSHKeys {
		v.fail("ssh.keys", fmt.Sprintf("are %d, more than %d", len(s.Keys), maxSSHKeys), "remove those that nobody uses")
		return
	}
	seen := map[string]string{}
	for i, k := range s.Keys {
		at := fmt.Sprintf("ssh.keys[%d]", i)
		v.sshKey(at, k)
		if p, err := key.Parse(k.Key); err == nil {
			if other, there := seen[key.Fingerprint(p)]; there {
				v.fail(at+".key", "is that of "+other, "write all that it is good for in one entry")
			}
			seen[key.Fingerprint(p)] = at
		}
	}
}

func (v *validator) sshListen(s SSH, engine string, rules []policy.ExposeRule) {
	host, ok := v.listen("ssh.listen", s.Listen)
	if !ok {
		return
	}
	addr, err := netip.ParseAddr(host)
	if err != nil {
		v.fail("ssh.listen", fmt.Sprintf("%q has no address", s.Listen), `write one as "127.0.0.1:2222"`)
	} else if !addr.IsLoopback() {
		v.warn("ssh.listen", fmt.Sprintf("%s can be reached from other machines", s.Listen), "listen on 127.0.0.1, unless that is meant")
	}
	if engine == "none" {
		v.fail("ssh.listen", "is of no use without sandboxes here (engine.kind: none)", "remove it")
	}
	if !slices.ContainsFunc(rules, func(r policy.ExposeRule) bool { return r.SSH != nil && r.Action != policy.Deny }) {
		v.warn("ssh.listen", "lets nobody in, since no expose rule allows SSH", "add a rule, as in expose: [{name: ssh, ssh: [shell]}]")
	}
}

func (v *validator) sshKey(at string, k SSHKey) {
	if k.Name == "" || len(k.Name) > 64 || !printable(k.Name) {
		v.fail(at+".name", fmt.Sprintf("%q is not a name", k.Name), "write up to 64 visible ASCII characters, as in alice")
	}
	if _, err := key.Parse(k.Key); err != nil {
		v.fail(at+".key", err.Error(), "`ssh-keygen -t ed25519` makes one")
	}
	if len(k.Sandboxes) == 0 {
		v.fail(at+".sandboxes", "is missing, so the key opens nothing", `write names, as in ["demo"], or ["*"] for all there are`)
	}
	for i, g := range k.Sandboxes {
		if _, err := path.Match(g, ""); err != nil || g == "" || len(g) > 255 {
			v.fail(fmt.Sprintf("%s.sandboxes[%d]", at, i), fmt.Sprintf("%q matches no name", g), "write a name, where * may stand for any run of characters")
		}
	}
	for i, a := range k.Allow {
		switch {
		case a == policy.ProtocolShell:
			v.fail(fmt.Sprintf("%s.allow[%d]", at, i), "is allowed by every key", "remove it")
		default:
			v.oneOf(fmt.Sprintf("%s.allow[%d]", at, i), string(a), string(policy.ProtocolSFTP), string(policy.ProtocolForward))
		}
	}
}

func printable(s string) bool {
	return !slices.ContainsFunc([]byte(s), func(c byte) bool { return c <= ' ' || c >= 0x7f })
}
