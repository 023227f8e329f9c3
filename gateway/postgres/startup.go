// Package postgres answers the start-up of PostgreSQL's protocol 3.0 to a client, which is
// never asked for a password, and logs in at a server in its place.
// https://www.postgresql.org/docs/current/protocol-flow.html
//
// It guarantees that the server gets the user that [Login] was given and no parameter but
// those that [Accept] lets pass, that the client's key to cancel queries is not the
// server's, and that all that the server says is searched for secrets: its messages keep
// their boundaries and lengths. It reads no query: what a session may do is for the
// database to permit.
package postgres

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgproto3"

	"sallyport/gateway/wire"
)

// Codes that a client begins with instead of a version of the protocol.
const (
	codeCancel = 80877102
	codeTLS    = 80877103
	codeGSS    = 80877104
)

// maxStartup bounds a client's first message, in bytes, as the server's own
// MAX_STARTUP_PACKET_LENGTH does.
const maxStartup = 10000

// passed are the parameters that a client may set as it starts, in lower case: those of
// drivers, which a SET could change as well.
var passed = []string{
	"application_name", "client_encoding", "datestyle", "extra_float_digits", "idle_in_transaction_session_timeout",
	"intervalstyle", "lock_timeout", "search_path", "statement_timeout", "timezone",
}

// prefix begins all that the gateway says in the place of a server.
const prefix = "sallyport: "

// Refusal is why a session is not begun, as the client is told.
type Refusal struct {
	Code   string // an SQLSTATE
	Reason string
}

func (r *Refusal) Error() string { return r.Reason }

// SQLSTATEs of Refusals: https://www.postgresql.org/docs/current/errcodes-appendix.html
const (
	CodeProtocol    = "08P01" // protocol_violation
	CodeUnsupported = "0A000" // feature_not_supported
	CodeLogin       = "28000" // invalid_authorization_specification
	CodeDenied      = "42501" // insufficient_privilege
	CodeUnreachable = "08006" // connection_failure
	CodeEnded       = "57P01" // admin_shutdown
)

// Opening is what a client wants.
type Opening struct {
	User     string // by which it asked, and which nobody is told
	Database string // empty: none named
	// Parameters are those that may pass, by their names in lower case.
	Parameters map[string]string
	// Cancel is set where the client wants a query of another session to be cancelled, and
	// nothing else.
	Cancel *Key

	newer   bool     // it asked for a later minor version
	unknown []string // options of the protocol that it asked for
}

// Key is what a client shows to have a query cancelled.
type Key struct{ PID, Secret uint32 }

// Accept reads a client's start-up. secure ends TLS with a client that asks for it, and
// returns the connection inside; with nil the client is told that there is none. The
// connection that Accept returns is the one to go on with. An error that is a *Refusal is
// for Refuse.
func Accept(c net.Conn, secure func(net.Conn) (net.Conn, error)) (net.Conn, *Opening, error) {
	for asked := map[uint32]bool{}; ; {
		body, err := readStartup(c)
		if err != nil {
			return c, nil, err
		}
		code := binary.BigEndian.Uint32(body)
		switch {
		case code == codeTLS && !asked[codeTLS] && len(body) == 4:
			answer := byte('N')
			if secure != nil {
				answer = 'S'
			}
			if _, err := c.Write([]byte{answer}); err != nil {
				return c, nil, err
			}
			if secure != nil {
				inside, err := secure(c)
				if err != nil {
					return c, nil, err
				}
				c, secure = inside, nil
			}
		case code == codeGSS && !asked[codeGSS] && len(body) == 4:
			if _, err := c.Write([]byte{'N'}); err != nil {
				return c, nil, err
			}
		case code == codeCancel:
			var m pgproto3.CancelRequest
			if err := m.Decode(body); err != nil || len(m.SecretKey) != 4 {
				return c, nil, protocolError("a bad request to cancel")
			}
			return c, &Opening{Cancel: &Key{m.ProcessID, binary.BigEndian.Uint32(m.SecretKey)}}, nil
		case code>>16 == 3:
			o, err := parseStartup(body)
			return c, o, err
		default:
			return c, nil, protocolError("not a start-up of protocol version 3")
		}
		asked[code] = true
	}
}

func protocolError(reason string) *Refusal { return &Refusal{CodeProtocol, prefix + reason} }

// readStartup reads a message without a type: its length, of at least 8 with itself, and
// what follows.
func readStartup(r io.Reader) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n < 8 || n > maxStartup {
		return nil, protocolError(fmt.Sprintf("a start-up message has 8 to %d bytes", maxStartup))
	}
	body := make([]byte, n-4)
	_, err := io.ReadFull(r, body)
	return body, err
}

func parseStartup(body []byte) (*Opening, error) {
	o := &Opening{newer: binary.BigEndian.Uint32(body) > pgproto3.ProtocolVersion30, Parameters: map[string]string{}}
	binary.BigEndian.PutUint32(body, pgproto3.ProtocolVersion30)
	var m pgproto3.StartupMessage
	if len(body) > 5 { // or it names no user either
		if err := m.Decode(body); err != nil {
			return nil, protocolError("a start-up message that cannot be read")
		}
	}
	for _, key := range slices.Sorted(maps.Keys(m.Parameters)) {
		value := m.Parameters[key]
		switch name := strings.ToLower(key); {
		case name == "user":
			o.User = value
		case name == "database":
			o.Database = value
		case strings.HasPrefix(name, "_pq_."):
			o.unknown = append(o.unknown, key)
		case name == "options":
			if err := o.options(value); err != nil {
				return nil, err
			}
		default:
			if err := o.set(name, value); err != nil {
				return nil, err
			}
		}
	}
	if o.User == "" {
		return nil, &Refusal{CodeLogin, "sallyport: a start-up message names a user, which may be any: the gateway logs in as its own"}
	}
	return o, nil
}

// set takes a parameter. The last of two for one name counts.
func (o *Opening) set(name, value string) error {
	if !slices.Contains(passed, name) {
		return &Refusal{CodeUnsupported, fmt.Sprintf("sallyport: the start-up parameter %q is not passed on: leave it out, or SET it once connected", name)}
	}
	o.Parameters[name] = value
	return nil
}

// options takes the settings of options, which are as a command line's: -c name=value,
// -cname=value and --name=value.
func (o *Opening) options(text string) error {
	words := strings.Fields(text)
	for i := 0; i < len(words); i++ {
		setting, ok := strings.CutPrefix(words[i], "--")
		if !ok {
			if setting, ok = strings.CutPrefix(words[i], "-c"); setting == "" && i+1 < len(words) {
				i++
				setting = words[i]
			}
		}
		name, value, assigned := strings.Cut(setting, "=")
		if !ok || !assigned || strings.Contains(words[i], `\`) {
			return &Refusal{CodeUnsupported, "sallyport: options has settings only, as -c statement_timeout=5000, without a backslash"}
		}
		if err := o.set(strings.ReplaceAll(strings.ToLower(name), "-", "_"), value); err != nil {
			return err
		}
	}
	return nil
}

// Refuse tells a client why its session is not begun, or is over.
func Refuse(w io.Writer, r *Refusal) error {
	return send(w, &pgproto3.ErrorResponse{Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: r.Code, Message: r.Reason})
}

// send writes messages at once.
func send[M pgproto3.Message](w io.Writer, messages ...M) error {
	var out []byte
	for _, m := range messages {
		var err error
		if out, err = m.Encode(out); err != nil {
			return err
		}
	}
	_, err := w.Write(out)
	return err
}

// AskTLS asks a server to begin TLS. The error of one that has none is wire.ErrNoTLS.
func AskTLS(c net.Conn) error {
	if err := send(c, &pgproto3.SSLRequest{}); err != nil {
		return err
	}
	// One byte: what came with it would be taken for what TLS protects (CVE-2021-23222).
	var answer [1]byte
	if _, err := io.ReadFull(c, answer[:]); err != nil {
		return err
	}
	if answer[0] != 'S' {
		return wire.ErrNoTLS
	}
	return nil
}

// Cancel asks a server, over TLS already, to cancel the query of a session of it.
func Cancel(c net.Conn, k ServerKey) error {
	if err := send(c, &pgproto3.CancelRequest{ProcessID: k.pid, SecretKey: k.secret}); err != nil {
		return err
	}
	_, err := c.Read(make([]byte, 1)) // the server closes the connection once it has done so
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
