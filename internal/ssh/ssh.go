// Package ssh lets operators into sandboxes with ssh, scp and sftp.
//
// A worker process reads what operators send. It has almost no rights ([Run], in a
// jail without a network): it speaks SSH (RFC 4251 to 4254) and asks the daemon
// ([Server]) for everything else. The daemon has the host key, the operators' keys,
// the sandboxes and the audit log. Commands, SFTP and ports are served by the agent
// inside the sandbox; the daemon relays their bytes.
//
// The package guarantees:
//   - Nothing is done for a connection before its key has signed, and before the
//     daemon has found that the key, the sandbox of that name and the policy agree.
//   - Every refusal looks the same and takes the same time, whatever the reason.
//   - Each connection, and each use of it, is on record before it begins.
//   - What goes on by a key, rule or sandbox that is withdrawn ends within two seconds.
//
// It does not record what is typed, and does not interpret what a sandbox sends.
package ssh

import (
	"errors"
	"time"

	"sallyport/internal/ipc"
	"sallyport/policy"
	"sallyport/sandbox"
)

// Bounds, of the daemon's making unless they say otherwise.
const (
	maxConnections     = 256 // that are let in
	maxOfKey           = 64  // of those, by one key: others find places
	maxUses            = 16  // of a connection at once: sessions and forwarded connections
	maxOfSandbox       = 48  // of one sandbox at once; its agent has room for 64
	maxChannels        = 192 // that are open (the process's): what a client sends before it is taken stays in memory, 2 MiB of each
	channelsOfKey      = 64  // those by one key: one for each of its connections
	maxUnauthenticated = 64  // connections that are not let in yet (the process's)
	maxOfSource        = 16  // those of one address, or of 64 bits of an IPv6 one
	maxFrame           = 4 << 20
	maxAsk             = 256 << 10    // bytes of a call of the process's
	maxCalls           = 1024         // of the process's at once: those that wait for a sandbox to run among them
	callsOfKey         = maxCalls / 4 // those by one key that wait for sandboxes
	maxCommand         = 128 << 10    // bytes of a command, or of a path
	maxTries           = 6            // keys of a connection
	maxEnv             = 16           // variables
	maxEnvValue        = 256          // bytes of one

	handshakeWithin = 10 * time.Second
	refuseAfter     = 150 * time.Millisecond // since a key has signed: looking it up takes less
	answerWithin    = 10 * time.Second       // a process that is told something
	dialWithin      = 5 * time.Second        // a port of a sandbox
	takeWithin      = 10 * time.Second       // what a client sent last, by a program that listens
	checkEvery      = time.Second            // what goes on is judged anew
	keepAliveEvery  = 30 * time.Second       // a client is asked whether it is there
	keepAliveMisses = 3                      // until it is not
)

// Calls of the daemon to the process.
const (
	callServe ipc.Method = 1 + iota
	callEnd
	callStop // within a time.Duration
)

// Calls of the process to the daemon.
const (
	callSign  ipc.Method = 32 + iota // the exchange hash (RFC 4253, section 8); the answer is its signature
	callAdmit                        // the answer is the connection's number
	callLeave
	callOpen // the answer is the use's number, with a socket
	callLeftUse
	callCrowded // connections which have not signed begin to be closed, for one of this source to have a place
)

// Errors that keep their identity across the link.
var (
	errRefused = errors.New("permission denied")
	errDenied  = errors.New("it is not allowed")
)

var known = map[string]error{"refused": errRefused, "denied": errDenied}

type serveCall struct {
	HostKey []byte        `json:"hostKey"` // public, in SSH's form (RFC 4253, section 6.6)
	Idle    time.Duration `json:"idle"`
}

// endCall has a connection ended.
type endCall struct {
	Connection uint64 `json:"connection"`
	Why        string `json:"why"`
}

// admitCall asks whether a key that has signed may use a sandbox.
type admitCall struct {
	User   string `json:"user"` // the sandbox's name
	Key    []byte `json:"key"`  // public, in SSH's form
	Remote string `json:"remote"`
	Client string `json:"client"` // the software's own version line
}

// leaveCall tells that a connection has ended; one without a number is of who has not
// signed with any key.
type leaveCall struct {
	Connection uint64 `json:"connection,omitempty"`
	Remote     string `json:"remote,omitempty"`
	Flooded    bool   `json:"flooded,omitempty"` // it sent more than is kept
}

// openCall begins a use of a connection. The answer comes with a socket, over
// which a command's streams go as frames of package wire; a forwarded connection's
// bytes go towards the process in pieces ([ipc.Pieces]), from it as they are; sftp
// has none.
type openCall struct {
	Connection uint64            `json:"connection"`
	Use        policy.Protocol   `json:"use"`
	Shell      bool              `json:"shell,omitempty"` // a login shell, in place of Command
	Command    string            `json:"command,omitempty"`
	TTY        bool              `json:"tty,omitempty"`
	Size       sandbox.Size      `json:"size,omitzero"`
	Env        map[string]string `json:"env,omitempty"`
	Host       string            `json:"host,omitempty"` // of a forwarded connection
	Port       uint16            `json:"port,omitempty"`
}

// leftUseCall tells that the client has left sftp or a forwarded connection.
type leftUseCall struct {
	Connection uint64 `json:"connection"`
	Use        uint64 `json:"use"`
	Refused    bool   `json:"refused,omitempty"` // what one side has said is not passed on
}

// ending is the JSON of the frame Exit.
type ending struct {
	Code   int    `json:"code"`
	Signal string `json:"signal,omitempty"` // as in TERM
	Error  string `json:"error,omitempty"`  // why it could not be done
}
