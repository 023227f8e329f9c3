package gateway

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sallyport/audit"
	"sallyport/gateway/credential"
	"sallyport/gateway/credential/sent"
	"sallyport/gateway/inbound"
	"sallyport/gateway/placeholder"
	"sallyport/gateway/upstream"
	"sallyport/gateway/wire"
	"sallyport/policy"
	"sallyport/policy/approval"
	"sallyport/policy/limit"
)

// Identity is the sandbox or client behind a connection.
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
	Authenticate(name, token string) (policy.Sandbox, bool)
	// Present tells whether the client that Authenticate found still is one. It
	// is asked for each request.
	Present(policy.Sandbox) bool
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

// Names is the memory of the sandboxes' DNS.
type Names interface {
	// Name turns a synthetic address back into the name that the sandbox asked for.
	Name(sandboxID string, addr netip.Addr) (string, bool)
	// Denied says that a connection to a refused name has been recorded, so that
	// its look-up need not be.
	Denied(sandboxID, name string)
}

// Certificates configures the end of a sandbox's TLS connection: a configuration whose leaf is
// for exactly that name (or IP address) under that sandbox's authority.
type Certificates interface {
	ServerConfig(sandboxID, name string) (*tls.Config, error)
}

// Upstreams is the only way out. Both methods resolve and classify the address
// that they connect to.
type Upstreams interface {
	RoundTripper(upstream.Route) (http.RoundTripper, error)
	Dial(context.Context, upstream.Route) (net.Conn, error)
	DialTLS(ctx context.Context, r upstream.Route, at netip.Addr, ask func(net.Conn) error) (*tls.Conn, error)
}

// Approvals asks operators, as [approval.Store] takes questions.
type Approvals interface {
	Ask(context.Context, approval.Question) (approval.Verdict, error)
	// Withdraw says that nothing waits for an answer any more. It does not block.
	Withdraw(sandboxID, id string)
	// Watch returns a channel that receives when it is time to ask again, until stop.
	Watch(id string) (woken <-chan struct{}, stop func())
}

// Broker leases the credentials that decisions name.
type Broker interface {
	Lease(ctx context.Context, name string, to credential.Binding) (*credential.Lease, error)
	// Refresh is [credential.Broker.Refresh].
	Refresh(ctx context.Context, name string, to credential.Binding, version string) (changed bool, err error)
}

// Options are the parts and bounds of a Gateway. Fields without a default are needed.
type Options struct {
	Identities   Identities // needed by ServeTransparent
	Clients      Clients    // needed by ServeExplicit
	Names        Names      // needed by ServeTransparent
	Decider      Decider
	Recorder     Recorder
	Certificates Certificates
	Upstreams    Upstreams
	Broker       Broker
	Approvals    Approvals // nil: requests that need approval are denied
	// Keep keeps what answers are searched for over restarts. Default: it ends with the
	// Gateway.
	Keep sent.Keep
	// Placeholders returns those that a sandbox may hold, nil for none. Default: no
	// sandbox has any.
	Placeholders func(sandboxID string) *placeholder.Set
	// Handlers speak the protocols that egressAuth rules log in by, ssh, postgres and redis:
	// connections of one without are denied.
	Handlers map[policy.Protocol]wire.Handler
	Logger   *slog.Logger
	Metrics  prometheus.Registerer

	// Ports and Waker are needed by ServeInbound. Dial and Loopback are as
	// [inbound.Options] has them.
	Ports    inbound.Ports
	Waker    inbound.Waker
	Dial     func(ctx context.Context, sandboxID string, to netip.AddrPort) (net.Conn, error)
	Loopback inbound.Loopback
	// Router is needed by ServeRouted, with Waker and Dial.
	Router inbound.Router
	// Budget counts the use of limits. Default: one of its own.
	Budget *limit.Book
	// Found is how many secrets may be found in answers of hosts that they were never sent
	// to, before a sandbox's requests are refused. Default: 5.
	Found int64
	// Revision is that of the policy that Decider decides by, for the records of denials
	// before it is asked. Default: none is recorded then.
	Revision func() string
	// Refusal is the address that the resolver gives for names that no rule
	// could allow. Needed by ServeTransparent.
	Refusal netip.Addr
	// FirstByteTimeout is how long a client may say nothing, since it may wait for its
	// server, before policy is asked about a connection without a protocol. Default: 2 s.
	FirstByteTimeout time.Duration
	// HandshakeTimeout bounds the time to the first bytes of a connection, the TLS
	// handshake, and each request's head. Default: 15 s.
	HandshakeTimeout time.Duration
	// IdleTimeout ends a kept-alive connection without a request, of HTTP/1.1 up to
	// an eighth later. Default: 5 min.
	IdleTimeout time.Duration
	// StallTimeout ends a transfer that makes no progress. It ends a connection whose
	// client takes nothing off it while bytes are on their way to it, as a paused sandbox
	// does: with its buffers full it holds an upstream's connection too. It ends a stream of
	// HTTP/2 that is not read while it holds memory to be decoded, and a request whose body
	// does not come while its upstream waits for it. Default: 5 min.
	StallTimeout time.Duration
	// ConnectionsPerSandbox bounds a sandbox's open connections, and its requests
	// under way on those of HTTP/2. Default: 1024.
	ConnectionsPerSandbox int
}
