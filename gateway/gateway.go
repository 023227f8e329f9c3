// Package gateway is the only way out of a sandbox.
//
// It takes the connections that the datapath steers to it (Transparent) and
// those of authenticated clients elsewhere (Explicit), finds out who is asking
// and for what, asks the policy, writes the decision down, and only then
// resolves, dials, injects and carries. goproxy carries the requests: policy,
// write-ahead and injection are its request handlers, scrubbing its response
// handler. The completion follows when it has returned.
//
// An answer is searched for all that was injected for its sandbox so far, whatever
// it answers. What was injected for other sandboxes is not looked for.
//
// It guarantees that no byte leaves for a destination before a durable allow
// decision, and that whatever cannot be decided is denied. It does not
// guarantee anything about what an allowed upstream does with a request.
package gateway

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"

	"sallyport/audit"
	"sallyport/gateway/credential"
	"sallyport/gateway/upstream"
	"sallyport/policy"
	"sallyport/policy/approval"
)

// Identity is who is behind a connection.
type Identity struct {
	policy.Sandbox
	// Address is the sandbox's own, the zero Addr for a client elsewhere.
	Address netip.Addr
}

// Identities finds the sandbox behind an address that the datapath vouches for.
type Identities interface {
	ByAddress(netip.Addr) (Identity, bool)
}

// Clients finds the sandbox elsewhere that an explicit proxy user speaks for.
type Clients interface {
	// Authenticate compares in constant time.
	Authenticate(name, token string) (Identity, bool)
	// Present tells whether the client that Authenticate found still is one. It
	// is asked for each request.
	Present(Identity) bool
}

// Decider is the policy.
type Decider interface {
	Decide(context.Context, policy.Input) policy.Decision
}

// bodyPolicy is a policy that has to see some bodies. A Decider that is none is asked
// without.
type bodyPolicy interface {
	Need(policy.Input) policy.Need
}

// Recorder is the audit log. Append returns when the events are durable, or when
// the context is done: then they may be in the log, unless the error wraps
// audit.ErrWithdrawn too. Enqueue returns when they are queued to be durable.
type Recorder interface {
	Append(context.Context, ...*audit.Event) error
	Enqueue(*audit.Event) error
}

// Names is what the sandboxes' DNS remembers.
type Names interface {
	// Name turns a synthetic address back into the name that the sandbox asked for.
	Name(sandboxID string, addr netip.Addr) (string, bool)
	// Denied says that a connection to a refused name has been recorded, so that
	// its look-up need not be.
	Denied(sandboxID, name string)
}

// Certificates ends a sandbox's TLS connection: a configuration whose leaf is
// for exactly that name (or IP address) under that sandbox's authority.
type Certificates interface {
	ServerConfig(sandboxID, name string) (*tls.Config, error)
}

// Upstreams is the only way out. Both methods resolve and classify the address
// that they connect to.
type Upstreams interface {
	RoundTripper(upstream.Route) (http.RoundTripper, error)
	Dial(context.Context, upstream.Route) (net.Conn, error)
}

// Approvals is where operators are asked, as [approval.Store] takes questions.
type Approvals interface {
	Ask(context.Context, approval.Question) (approval.Verdict, error)
	// Withdraw says that nobody waits for an answer any more. It does not block.
	Withdraw(sandboxID, id string)
	// Watch returns what receives when it is time to ask again, until stop.
	Watch(id string) (woken <-chan struct{}, stop func())
}

// Broker leases the credentials that decisions name.
type Broker interface {
	Lease(ctx context.Context, name string, to credential.Binding) (*credential.Lease, error)
}
