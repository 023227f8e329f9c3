// Package wire is the joint between the gateway and those who speak a protocol beside HTTP
// with a sandbox and log in to its server: SSH, PostgreSQL, Redis.
//
// A [Handler] knows the protocol and nothing else. The gateway decides, records, leases,
// dials, counts, revokes and completes: see [Conn] and [Grant].
package wire

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"sallyport/gateway/credential"
	"sallyport/gateway/credential/scrub"
	"sallyport/policy"
)

// Errors to end a Grant with, beside those of connections.
var (
	// ErrImpostor says that the server is not the one that the rule names: it is told as a
	// finding.
	ErrImpostor = errors.New("the server has another key than those that the rule pins")
	// ErrRefused says that the server did not take the login.
	ErrRefused = errors.New("the server refused the login")
	// ErrNoTLS says that the server has no TLS, without which nobody logs in.
	ErrNoTLS = errors.New("the server does not offer TLS, which a login needs")
	// ErrSecret says that the credential's secret is not what the login needs.
	ErrSecret = errors.New("the credential's secret cannot log in")
	// ErrProtocol says that the server does not speak the protocol as it should.
	ErrProtocol = errors.New("the server's answer could not be read")
)

// Without is a text of a server without the secret that it was sent, for the log.
func Without(text, secret string) string {
	return scrub.New([]scrub.Value{{Text: secret}}).Texts(nil).String(text)
}

// Handler speaks one protocol.
type Handler interface {
	// Serve carries a sandbox's connection until it ends, and returns when all that it
	// has begun is over. It is done when ctx is. The gateway closes the connection.
	Serve(ctx context.Context, c Conn)
}

// Refuser is a Handler that can tell a client why its connection is not carried at all.
type Refuser interface {
	// Tell says so on a connection of which no more is carried. The gateway closes it.
	Tell(c Conn, reason string)
}

// Conn is a connection of a sandbox that an egressAuth rule logs in for. Bytes that have
// been read already are read again.
type Conn interface {
	net.Conn
	// Destination is where the connection goes, as the policy knows it.
	Destination() policy.Destination
	// Sandbox is the ID of the connection's sandbox.
	Sandbox() string
	// InTLS tells whether the client has begun TLS, for Secure to end. The connection's bytes
	// are TLS else, too.
	InTLS() bool
	// Secure ends TLS with the sandbox, by a certificate of its authority for the
	// destination, and returns the connection inside of it. protocols are what a client may
	// name by ALPN (RFC 7301). After an error the connection is closed.
	Secure(protocols ...string) (net.Conn, error)
	// HandshakeTimeout is how long the sandbox may take until it has asked for something.
	HandshakeTimeout() time.Duration
	// Ask decides on a request and records the decision. It waits for an operator where
	// that is needed. The permission ends with Grant.End. The error is a *Denied where it
	// is not carried; any other says that the sandbox is gone.
	Ask(ctx context.Context, r Request) (Grant, error)
	// Refuse records a denial, whatever the policy says, of what has no place in a
	// Request or is never allowed. rule is its short name in the audit log.
	Refuse(r Request, rule, reason string) *Denied
	// Reserve takes n bytes of the memory that the sandbox may hold, until release.
	Reserve(n int64) (release func(), err error)
	// Go runs f in a goroutine of work. A panic in it is logged and closes the connection.
	Go(work *sync.WaitGroup, f func())
}

// Request is what the sandbox wants. Path is in the form of [urlpath.Normalize]: one
// reading, without percent signs. The scheme is the connection's protocol.
// Command is what an operator is shown of it besides, if there is anything: the policy and
// the audit log do not see it.
type Request struct{ Method, Path, Command string }

// Denied is the error of what is not carried. Its text is for the sandbox.
type Denied struct {
	ID     string // of the decision
	Reason string
}

func (e *Denied) Error() string { return "denied: " + e.Reason }

// Grant is a request that is allowed. Its decision is on disk. It is not safe for concurrent
// use, but for Sent, Received and the writers of Scrub.
type Grant interface {
	// ID is the decision's.
	ID() string
	// Context is done when the grant is revoked or the connection ends. Dial's connection is
	// closed then.
	Context() context.Context
	// Injection is the one login that the rule gives.
	Injection() policy.Injection
	// Lease leases the credential for the injection, and has what is sent to the sandbox
	// searched for its values from now on: see [credential.Lease.LogIn].
	Lease(ctx context.Context) (map[string]credential.Secret, error)
	// Hold ends the request when the lease of what it logged in with ends, unless it is
	// renewed, until stop is called. Not every server ends a session then.
	Hold() (stop func())
	// Dial connects to the destination. Call it after Lease.
	Dial(ctx context.Context) (net.Conn, error)
	// DialTLS is Dial, with TLS to the destination's host: see [upstream.Pool.DialTLS].
	DialTLS(ctx context.Context, at netip.Addr, ask func(net.Conn) error) (*tls.Conn, error)
	// Sent and Received count bytes on their way to the upstream and from it. On an error
	// the caller ends the request.
	Sent(n int) error
	Received(n int) error
	// Scrub returns a writer to the sandbox: see [scrub.Scrubber.Writer]. Its hits are
	// recorded with the completion.
	Scrub(dst io.Writer, pause time.Duration) *scrub.Writer
	// Texts is Scrub for texts whose ends the caller knows: see [scrub.Texts].
	Texts() *scrub.Texts
	// End ends the request and records its completion. err is what ended it, nil for a
	// regular end. It returns what the sandbox may be told of err, empty for nothing.
	End(err error) string
}
