package policy

// AgentPort is where the first process of a sandbox listens for the host. No rule
// exposes it.
const AgentPort = 1023

// ExposeRule says which requests may reach a port of a sandbox. The port has to
// be exposed besides, by an operator and until a time, and who asks has to show
// that exposure's token.
type ExposeRule struct {
	// Name appears in decisions, denials and the audit, and is given once; needed.
	// Example: previews
	Name string `yaml:"name"`
	// Sandboxes selects whose ports the rule is for. Default: every sandbox.
	// Example: {tags: {team: web}}
	Sandboxes Selector `yaml:"sandboxes"`
	// Ports lists the TCP ports inside of the sandbox. Default: every port for
	// deny; needed to allow requests or forwarded connections.
	// Example: [8000, 5173]
	Ports []uint16 `yaml:"ports" json:",omitempty"`
	// Methods lists HTTP methods in upper case. Default: all.
	// Example: [GET, HEAD]
	Methods []string `yaml:"methods" json:",omitempty"`
	// Paths lists globs over the normalised path, as EgressRule's. Default: all.
	// Example: ["/docs/**"]
	Paths []string `yaml:"paths" json:",omitempty"`
	// SSH makes the rule one for SSH access in place of requests, and lists what of
	// it: shell (shells and commands), sftp (files), forward (connections to Ports).
	// Default: a rule for requests; a deny without ports, methods and paths is for
	// SSH access too.
	// Example: [shell, sftp]
	SSH []Protocol `yaml:"ssh" json:",omitempty"`
	// Action is allow (default) or deny.
	// Example: deny
	Action Action `yaml:"action" json:",omitempty"`
}

// SshProtocols are what can be asked for over SSH.
var SshProtocols = []Protocol{ProtocolShell, ProtocolSFTP, ProtocolForward}

// SSHPort is the port of a destination in PhaseSSH where what is asked for is no
// forwarded connection.
const SSHPort = 22
