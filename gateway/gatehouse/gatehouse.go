// Package gatehouse runs the gateway in a process of its own that has no
// privileges, and looks after it.
//
// The daemon is root: it holds the engine, the datapath's programs, the keys of
// the certificate authorities and the secrets' sources. What sandboxes and
// upstreams send is parsed by [Run], in a cell (internal/jail). The [Warden] is
// the daemon's side: it starts the process, answers it, and starts it again when
// it dies. Between them is one socket (internal/ipc).
//
// The process is given the listeners and the audit log's last segment, once, and
// the policy and who the sandboxes and clients are, whenever that changes. It asks
// the Warden
//
//   - to lease a credential, for one destination, 256 uses and a second at most:
//     the broker checks the binding of credential, host and port against its own
//     policy and revision, whatever the process says. What it has of the last lease it keeps, unused,
//     so that nothing derived from the secret is made twice, for at most 15
//     seconds;
//   - to lease a proxy's login, each time that the proxy is dialled;
//   - to sign a certificate: keys of authorities never come here;
//   - for the next segment of the log;
//   - to give a name its synthetic address, durably;
//   - for this host's addresses, before each connection upstream;
//   - who an exposed sandbox is, and to run it, before it carries a request to it;
//   - for a connection to an exposed port, at the sandbox's own address or as nobody but
//     the sandbox itself reaches it;
//   - for an operator's approval of a request, in the name of a running sandbox or
//     a client: the store bounds what waits, and the answer is a call of the
//     Warden's, so that what waits for a person keeps nothing else waiting.
//
// What limits bound is counted by the process, and kept by the [Ledger].
//
// All that it says is taken for hostile: bounded, checked, and ending the
// process when it is not of the protocol.
//
// One request, from its sandbox: the process accepts the connection from the
// shared listener, finds the identity in its table, the name behind the address
// in its own (or asks), decides by its policy, has a leaf signed (once a day),
// reads the request, decides, appends the decision to the log and waits for the
// disk, asks for the lease, resolves, asks for this host's addresses, dials,
// injects, scrubs and records the completion.
//
// While there is no process nothing can leave: connections wait in the
// listener's queue, which the Warden keeps open, and the Warden writes the log.
//
// What was injected it keeps beyond the lease, by sandbox, to find it in answers:
// see credential.Exposure. The Warden says when a sandbox has gone.
//
// A process that has been taken over can do more than its sandboxes may do all
// together: lease every credential that a rule binds, whether a sandbox asks or
// not, which is to learn the secret and send it anywhere, the bounds of a lease
// being kept by itself; give itself a certificate for any name in the eyes of any
// sandbox; read and rewrite the last segment of the log; send bytes anywhere; ask
// for approval of what nobody wants, and use a grant for something else. It
// cannot keep a policy out: see [Warden.Prepare]. It cannot read a secret that no rule binds, the authorities'
// keys, or earlier segments; nor touch engine, datapath, files or other
// processes.
package gatehouse

import (
	"net/netip"
	"time"

	"sallyport/audit"
	"sallyport/gateway"
	"sallyport/gateway/credential"
	"sallyport/gateway/resolver"
	"sallyport/internal/ipc"
	"sallyport/policy"
)

// What the Warden calls.
const (
	MethodStart ipc.Method = 1 + iota
	MethodServe
	MethodPrepare
	MethodUse
	MethodIdentity
	MethodClients
	MethodForget
	MethodRevoke
	MethodAppend
	MethodStats
	MethodGather
	MethodStop
	MethodAnswered
	MethodCounts
	MethodRestore
	MethodReset
	MethodSuspend
	MethodPublished
)

// What the process calls.
const (
	MethodLease ipc.Method = 64 + iota
	MethodLogin
	MethodSign
	MethodAssign
	MethodName
	MethodLocal
	MethodSegment
	MethodAsk
	MethodWithdraw
	MethodIdentify
	MethodWake
	MethodLoopback
	MethodDial
)

// Errors are the errors that are the same on both sides.
var Errors = map[string]error{
	"unknown":     credential.ErrUnknown,
	"not-bound":   credential.ErrNotBound,
	"stale":       credential.ErrStale,
	"no-secret":   credential.ErrNoSecret,
	"unavailable": credential.ErrUnavailable,
	"refused":     credential.ErrRefused,
	"table-full":  resolver.ErrTableFull,

	"no-listener":    gateway.ErrNoListener,
	"inside-busy":    gateway.ErrInsideBusy,
	"inside-earlier": gateway.ErrInsideEarlier,
}

// Names of the descriptors that the process is given, from 4 on; 3 is the link.
const (
	FileTransparent = "transparent" // listener of the datapath's
	FileExplicit    = "explicit"    // listener of the explicit proxy
	FileInbound     = "inbound"     // listener of what comes in
	FileDNS         = "dns"         // UDP
	FileDNSTCP      = "dns-tcp"
	FileLog         = "log" // last segment
)

// StartRequest is what the process needs to know before it can serve.
type StartRequest struct {
	Files       []string
	Certificate []byte // PEM, of the explicit proxy; none: plain
	Key         []byte // PEM
	Policy      string // revision; see Prepare
	Next        uint64 // event
	Size        int64  // of FileLog
	SegmentSize int64
	Found       int64 // see gateway.Options
	Level       int   // of slog
}

type PolicyRequest struct{ Policy string }

type IdentityRequest struct {
	Address netip.Addr
	Sandbox *policy.Sandbox // nil: nobody has the address
}

// ServeRequest makes the tables whole before the first connection is taken.
type ServeRequest struct {
	Identities map[netip.Addr]policy.Sandbox
	Clients    []gateway.Client
	Exposures  []gateway.Exposure
}

type PublishedRequest struct{ Exposures []gateway.Exposure }

type ClientsRequest struct{ Clients []gateway.Client }

type ForgetRequest struct{ ID string }

type StopRequest struct{ Within time.Duration }

// StopReply says whether something had to be broken off.
type StopReply struct {
	Log  audit.Stats
	Late bool
}

type LeaseRequest struct {
	Credential string
	Host       string
	Port       uint16
	TLS        bool
	Policy     string
	Have       []byte `json:",omitempty"` // mark of what it has
}

// LeaseReply has no material where that is what the caller has.
type LeaseReply struct {
	Mark    []byte
	Uses    int
	For     time.Duration
	Version string            `json:",omitempty"`
	Fields  map[string]string `json:",omitempty"`
	Expires time.Time         `json:",omitzero"`
}

type LoginRequest struct{ Credential, Proxy string }

type LoginReply struct{ Username, Password string }

type SignRequest struct {
	Sandbox, Name string
	Public        []byte // uncompressed point on P-256 (SEC 1, 2.3.3)
}

type SignReply struct{ Chain [][]byte }

type NameRequest struct {
	Sandbox string
	Name    string     `json:",omitempty"`
	Address netip.Addr `json:",omitzero"`
}

type NameReply struct {
	Name    string     `json:",omitempty"`
	Address netip.Addr `json:",omitzero"`
	Known   bool       `json:",omitempty"`
}

type LocalReply struct{ Prefixes []netip.Prefix }

type SegmentRequest struct{ First uint64 }

type GatherReply struct{ Text string }
