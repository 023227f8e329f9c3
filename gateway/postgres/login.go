package postgres

import (
	"crypto/md5"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/xdg-go/scram"
)

const (
	// maxLogin bounds a message of a server until the session begins, in bytes, and
	// maxLoginMessages how many there are.
	maxLogin         = 64 << 10
	maxLoginMessages = 256
	// maxIterations bounds the work of a password's derivation (RFC 7677), which the server
	// names.
	maxIterations = 1_000_000
)

// LoginError is why a server did not begin a session. Its text can quote the server, and so
// a secret: it is for operators, once searched.
type LoginError struct{ Err error }

func (e *LoginError) Error() string { return "logging in: " + e.Err.Error() }
func (e *LoginError) Unwrap() error { return e.Err }

// Account is whom to log in as.
type Account struct {
	User, Password string
	Database       string // empty: the one of the user's name
}

// Server is a session at a server that has begun.
type Server struct {
	net.Conn
	Key ServerKey

	begin []pgproto3.BackendMessage // what it said of itself
}

// ServerKey is what cancels a query of a session at its server.
type ServerKey struct {
	pid    uint32
	secret []byte
}

// Login begins a session at a server with the account and the parameters of an Opening.
// Everything but a broken connection is a *LoginError. A password goes out in the way that
// the server asks for, over TLS: with SCRAM-SHA-256 bound to the server's certificate where
// the server can.
func Login(c *tls.Conn, a Account, o *Opening) (*Server, error) {
	parameters := maps.Clone(o.Parameters)
	parameters["user"] = a.User
	if a.Database != "" {
		parameters["database"] = a.Database
	}
	if err := send(c, &pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: parameters}); err != nil {
		return nil, err
	}
	s := &Server{Conn: c}
	l := login{conn: c, account: a}
	for range maxLoginMessages {
		m, err := receive(c)
		if err != nil {
			return nil, err
		}
		switch m := m.(type) {
		case *pgproto3.ErrorResponse:
			return nil, &LoginError{fmt.Errorf("%s (SQLSTATE %s)", m.Message, m.Code)}
		case *pgproto3.NoticeResponse, *pgproto3.ParameterStatus:
			s.begin = append(s.begin, m)
		case *pgproto3.BackendKeyData:
			s.Key = ServerKey{m.ProcessID, m.SecretKey}
		case *pgproto3.ReadyForQuery:
			if !l.accepted {
				return nil, &LoginError{errors.New("the server began without a word about the login")}
			}
			s.begin = append(s.begin, m)
			return s, nil
		default:
			if err := l.answer(m); err != nil {
				return nil, err
			}
		}
	}
	return nil, &LoginError{errors.New("the server says too much before it begins")}
}

// receive reads no further than one message, of those that come before a session.
func receive(r io.Reader) (pgproto3.BackendMessage, error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n < 4 || n > maxLogin {
		return nil, &LoginError{errors.New("not a server of PostgreSQL's protocol 3.0")}
	}
	// A Frontend reads as much as there is: there is this one message.
	text := append(head[:], make([]byte, n-4)...)
	if _, err := io.ReadFull(r, text[len(head):]); err != nil {
		return nil, err
	}
	m, err := pgproto3.NewFrontend(strings.NewReader(string(text)), io.Discard).Receive()
	if err != nil {
		return nil, &LoginError{errors.New("a message of the login that cannot be read")}
	}
	return m, nil
}

// login is one that is under way.
type login struct {
	conn     *tls.Conn
	account  Account
	scram    *scram.ClientConversation // nil unless begun
	sent     bool                      // a password, in whichever form
	accepted bool
}

// answer does what a message about the login asks for.
func (l *login) answer(m pgproto3.BackendMessage) error {
	switch m := m.(type) {
	case *pgproto3.AuthenticationOk:
		if l.scram != nil && !l.scram.Valid() {
			return &LoginError{errors.New("the server did not show that it knows the password")}
		}
		l.accepted = true
		return nil
	case *pgproto3.AuthenticationCleartextPassword:
		return l.password(l.account.Password)
	case *pgproto3.AuthenticationMD5Password:
		return l.password("md5" + digest(digest(l.account.Password+l.account.User)+string(m.Salt[:])))
	case *pgproto3.AuthenticationSASL:
		if l.sent {
			break
		}
		l.sent = true
		mechanism, err := l.begin(m.AuthMechanisms)
		if err != nil {
			return err
		}
		first, err := l.scram.Step("")
		if err != nil {
			return &LoginError{err}
		}
		return send(l.conn, &pgproto3.SASLInitialResponse{AuthMechanism: mechanism, Data: []byte(first)})
	case *pgproto3.AuthenticationSASLContinue:
		if l.scram == nil || l.scram.Done() {
			break
		}
		if err := checkIterations(string(m.Data)); err != nil {
			return err
		}
		proof, err := l.scram.Step(string(m.Data))
		if err != nil {
			return &LoginError{err}
		}
		return send(l.conn, &pgproto3.SASLResponse{Data: []byte(proof)})
	case *pgproto3.AuthenticationSASLFinal:
		if l.scram == nil || l.scram.Done() {
			break
		}
		if _, err := l.scram.Step(string(m.Data)); err != nil {
			return &LoginError{err}
		}
		return nil
	}
	return &LoginError{fmt.Errorf("the server asks for what is not answered here (%T): use scram-sha-256 for this user in pg_hba.conf", m)}
}

// password sends the password once.
func (l *login) password(text string) error {
	if l.sent {
		return &LoginError{errors.New("the server asks for the password twice")}
	}
	l.sent = true
	return send(l.conn, &pgproto3.PasswordMessage{Password: text})
}

func digest(text string) string {
	sum := md5.Sum([]byte(text)) // what the protocol has
	return hex.EncodeToString(sum[:])
}

// begin picks the mechanism and begins it. The name in SCRAM's messages is not looked at.
func (l *login) begin(offered []string) (string, error) {
	const plain, bound = "SCRAM-SHA-256", "SCRAM-SHA-256-PLUS"
	client, err := scram.SHA256.NewClient("", l.account.Password, "")
	if err != nil { // PostgreSQL takes what SASLprep refuses as it is
		if client, err = scram.SHA256.NewClientUnprepped("", l.account.Password, ""); err != nil {
			return "", &LoginError{err}
		}
	}
	state := l.conn.ConnectionState()
	binding, err := scram.NewTLSServerEndpointBinding(&state)
	switch {
	case err == nil && slices.Contains(offered, bound):
		l.scram = client.NewConversationWithChannelBinding(binding)
		return bound, nil
	case !slices.Contains(offered, plain):
		return "", &LoginError{errors.New("the server offers no SCRAM-SHA-256")}
	case err == nil:
		l.scram = client.NewConversationAdvertisingChannelBinding()
	default: // a certificate whose signature RFC 5929 gives no hash for
		l.scram = client.NewConversation()
	}
	return plain, nil
}

// checkIterations bounds the work that a server asks for (i= of RFC 5802).
func checkIterations(first string) error {
	for field := range strings.SplitSeq(first, ",") {
		if text, ok := strings.CutPrefix(field, "i="); ok {
			if n, err := strconv.Atoi(text); err != nil || n > maxIterations {
				return &LoginError{fmt.Errorf("the server asks for more than %d iterations", maxIterations)}
			}
		}
	}
	return nil
}

// NewKey makes a client's key for the session: the server's process ID, which
// notifications and pg_backend_pid have too, and a secret of its own.
func (s *Server) NewKey() Key {
	var secret [4]byte
	_, _ = rand.Read(secret[:]) // never fails
	return Key{s.Key.pid, binary.BigEndian.Uint32(secret[:])}
}

// Begin is what tells the client that its session has begun, to be searched like all
// that the server says.
func (s *Server) Begin(o *Opening, k Key) ([]byte, error) {
	var out []byte
	messages := []pgproto3.BackendMessage{&pgproto3.AuthenticationOk{}}
	if o.newer || len(o.unknown) > 0 {
		messages = append([]pgproto3.BackendMessage{&pgproto3.NegotiateProtocolVersion{NewestMinorProtocol: pgproto3.ProtocolVersion30, UnrecognizedOptions: o.unknown}}, messages...)
	}
	last := len(s.begin) - 1 // ReadyForQuery
	messages = append(messages, s.begin[:last]...)
	messages = append(messages, &pgproto3.BackendKeyData{ProcessID: k.PID, SecretKey: binary.BigEndian.AppendUint32(nil, k.Secret)}, s.begin[last])
	for _, m := range messages {
		var err error
		if out, err = m.Encode(out); err != nil {
			return nil, err
		}
	}
	return out, nil
}
