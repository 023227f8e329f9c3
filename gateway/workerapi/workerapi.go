// Package workerapi defines the calls between the gateway's worker, which has no
// privileges, and its supervisor, which is the daemon: methods, messages, bounds
// and the checks of what a worker says. Calls travel over one socket
// (internal/ipc); an unknown method or a message that is too large ends the
// connection.
package workerapi

import (
	"time"

	"sallyport/gateway/credential"
	"sallyport/gateway/inbound"
	"sallyport/gateway/resolver"
	"sallyport/internal/ipc"
)

// Methods that the supervisor calls.
const (
	MethodStart ipc.Method = 1 + iota
	MethodServe
	MethodPrepare
	MethodUse
	MethodTables
	MethodForget
	MethodForgetLeaves
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
)

// Methods that the worker calls.
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
	MethodCertify
	MethodSaved
	MethodSave
	MethodFind
)

// Bounds of one message, in bytes.
const (
	MaxFrame = 4 << 20  // of either side; an event may have 1 MiB
	MaxCall  = 16 << 10 // of a call that the worker makes: names, addresses, a key
)

// AnswerWithin is how long either side waits for an answer, except to Start and
// Prepare. The supervisor ends a worker that is slower.
const AnswerWithin = 10 * time.Second

// Errors are the errors that keep their identity across the connection, by the
// name that is sent.
var Errors = map[string]error{
	"unknown":     credential.ErrUnknown,
	"not-bound":   credential.ErrNotBound,
	"stale":       credential.ErrStale,
	"no-secret":   credential.ErrNoSecret,
	"unavailable": credential.ErrUnavailable,
	"refused":     credential.ErrRefused,
	"table-full":  resolver.ErrTableFull,

	"no-listener":    inbound.ErrNoListener,
	"inside-busy":    inbound.ErrLoopbackBusy,
	"inside-earlier": inbound.ErrLoopbackEarlier,
	"not-placed":     inbound.ErrNotPlaced,
}

// Names of the files that a worker inherits, from descriptor 4 on. Descriptor 3
// is the connection.
const (
	FileTransparent = "transparent" // listener of the datapath's
	FileExplicit    = "explicit"    // listener of the explicit proxy
	FileInbound     = "inbound"     // listener of connections to published ports
	FileRouted      = "routed"      // listener of a router's clients
	FileDNS         = "dns"         // UDP
	FileDNSTCP      = "dns-tcp"
	FileLog         = "log" // last segment of the audit log
)

// MetricsPrefix begins the names of the worker's own metrics.
const MetricsPrefix = "sallyport_gateway_"
