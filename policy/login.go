package policy

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
