package bypass

import "time"

// Job is one connection, or one datagram, of the probe. Jobs are JSON, one
// after the other; each has a Result, in any order.
type Job struct {
	ID int
	// Network is tcp or udp.
	Network string
	// Address is host:port. A name is looked up as the sandbox's programs do.
	Address string
	// Before is sent first, as to a proxy, and answered with a head. The rest is
	// done if that says 200; else the head is all that was read.
	Before []byte
	// TLS is nil for none.
	TLS   *Handshake
	Speak Speech
	Steps []Step
	// UntilClosed waits for the end of the connection after the last step.
	UntilClosed bool
	// Limit of it all. Default: 20 s.
	Limit time.Duration
}

// Speech says how answers are told apart.
type Speech int

const (
	Raw   Speech = iota // not at all: any byte is one
	HTTP1               // responses but 1xx other than 101
	HTTP2               // ended and reset streams
)

// Step sends and waits.
type Step struct {
	Send  [][]byte
	Pause time.Duration // after each of Send
	Ends  int           // answers to wait for
}

// Handshake is a ClientHello and how it is cut. Certificates are not verified:
// the sandbox is hostile.
type Handshake struct {
	Name     string // in SNI; "" sends none
	ALPN     []string
	Min, Max uint16 // versions, as crypto/tls has them; 0 is its default
	Curves   []uint16
	ECH      []byte // an ECHConfigList, for an inner hello of Name
	Record   int    // bytes of the hello in each TLS record; 0 leaves it whole
	Segment  int    // bytes of the hello in each write
	Session  *Session
}

// Session is a TLS session to resume.
type Session struct{ Ticket, State []byte }

// Result is what came of a Job.
type Result struct {
	ID int
	// Stage is where it ended early: dial, handshake or write; "" when nothing
	// did. Error says why, or how reading ended.
	Stage, Error string
	Remote       string // the address that was connected to
	Data         []byte // all that was read
	Closed       bool   // by the other side
	Took         time.Duration

	Names   []string // in the certificate
	ALPN    string
	Resumed bool
	Session *Session // the last one that was given
}
