package postgres_test

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/jackc/pgx/v5/pgproto3"

	"sallyport/gateway/credential/scrub"
	"sallyport/gateway/postgres"
	"sallyport/internal/test/must"
)

// played is a connection whose other end has said all that it says.
type played struct {
	net.Conn
	io.Reader
	wrote bytes.Buffer
}

func (p *played) Read(b []byte) (int, error)  { return p.Reader.Read(b) }
func (p *played) Write(b []byte) (int, error) { return p.wrote.Write(b) }

func play(data []byte) *played { return &played{Reader: bytes.NewReader(data)} }

// startup is a start-up message of raw strings.
func startup(version uint32, words ...string) []byte {
	body := binary.BigEndian.AppendUint32(nil, version)
	for _, w := range words {
		body = append(append(body, w...), 0)
	}
	body = append(body, 0)
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body)+4)), body...)
}

const v3 = pgproto3.ProtocolVersion30

func TestAccept(t *testing.T) {
	ask := func(code uint32) []byte {
		return binary.BigEndian.AppendUint32([]byte{0, 0, 0, 8}, code)
	}
	const askTLS, askGSS = 80877103, 80877104
	for _, test := range []struct {
		name    string
		sent    []byte
		answer  string
		refused string // SQLSTATE, or empty
		passed  string
	}{
		{"usual", startup(v3, "user", "u", "database", "d", "application_name", "psql", "client_encoding", "UTF8"), "", "", "application_name=psql client_encoding=UTF8"},
		{"names in any case", startup(v3, "user", "u", "DateStyle", "ISO", "TimeZone", "UTC"), "", "", "datestyle=ISO timezone=UTC"},
		{"a later minor version", startup(v3+2, "user", "u", "_pq_.x", "1"), "", "", ""},
		{"options", startup(v3, "user", "u", "options", "-c search_path=a,b -clock_timeout=1 --statement-timeout=5"), "", "", "lock_timeout=1 search_path=a,b statement_timeout=5"},
		{"no TLS here", slices.Concat(ask(askTLS), startup(v3, "user", "u")), "N", "", ""},
		{"GSS, then no TLS", slices.Concat(ask(askGSS), ask(askTLS), startup(v3, "user", "u")), "NN", "", ""},
		{"GSS twice", slices.Concat(ask(askGSS), ask(askGSS)), "N", postgres.CodeProtocol, ""},
		{"TLS twice", slices.Concat(ask(askTLS), ask(askTLS)), "N", postgres.CodeProtocol, ""},
		{"replication", startup(v3, "user", "u", "replication", "database"), "", postgres.CodeUnsupported, ""},
		{"a role", startup(v3, "user", "u", "role", "admin"), "", postgres.CodeUnsupported, ""},
		{"a role in options", startup(v3, "user", "u", "options", "-c role=admin"), "", postgres.CodeUnsupported, ""},
		{"a flag in options", startup(v3, "user", "u", "options", "-e"), "", postgres.CodeUnsupported, ""},
		{"a backslash in options", startup(v3, "user", "u", "options", `-c application_name=a\b`), "", postgres.CodeUnsupported, ""},
		{"no user", startup(v3, "database", "d"), "", postgres.CodeLogin, ""},
		{"nothing", startup(v3), "", postgres.CodeLogin, ""},
		{"version 2", startup(2<<16, "user", "u"), "", postgres.CodeProtocol, ""},
		{"a name without a value", startup(v3, "user"), "", postgres.CodeProtocol, ""},
		{"too short", []byte{0, 0, 0, 7, 0, 3, 0}, "", postgres.CodeProtocol, ""},
		{"too long", []byte{0x7f, 0xff, 0xff, 0xff, 0, 3, 0, 0}, "", postgres.CodeProtocol, ""},
		{"a short key to cancel", []byte{0, 0, 0, 12, 4, 0xd2, 0x16, 0x2e, 0, 0, 0, 1}, "", postgres.CodeProtocol, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := play(test.sent)
			_, o, err := postgres.Accept(c, nil)
			var refusal *postgres.Refusal
			switch {
			case test.refused != "":
				if !errors.As(err, &refusal) || refusal.Code != test.refused || !strings.HasPrefix(refusal.Reason, "sallyport: ") {
					t.Fatalf("got %+v %v, want %s", o, err, test.refused)
				}
			case err != nil:
				t.Fatal(err)
			default:
				var got []string
				for _, name := range slices.Sorted(maps.Keys(o.Parameters)) {
					got = append(got, name+"="+o.Parameters[name])
				}
				if s := strings.Join(got, " "); s != test.passed {
					t.Errorf("passed %q, want %q", s, test.passed)
				}
			}
			if got := c.wrote.String(); got != test.answer {
				t.Errorf("answered %q, want %q", got, test.answer)
			}
		})
	}
}

// Bytes in clear behind a client's request for TLS are not taken for what TLS protects.
func TestPlainBytesBeforeTLS(t *testing.T) {
	near, far := net.Pipe()
	defer far.Close()
	leaf, err := authority(t).Leaf(host)
	must.OK(t, err)
	ended := make(chan error, 1)
	go func() {
		defer near.Close()
		_, o, err := postgres.Accept(near, func(c net.Conn) (net.Conn, error) {
			s := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{leaf}})
			return s, s.Handshake()
		})
		if o != nil {
			t.Errorf("accepted %+v", o)
		}
		ended <- err
	}()
	go func() { _, _ = io.Copy(io.Discard, far) }()
	_, _ = far.Write(slices.Concat([]byte{0, 0, 0, 8, 4, 0xd2, 0x16, 0x2f}, startup(v3, "user", "u")))
	if err := <-ended; err == nil {
		t.Error("no error")
	}
}

func FuzzAccept(f *testing.F) {
	f.Add(startup(v3, "user", "u", "database", "d"))
	f.Add(startup(v3+2, "user", "u", "_pq_.x", "1", "options", "-c TimeZone=UTC"))
	f.Add(slices.Concat([]byte{0, 0, 0, 8, 4, 0xd2, 0x16, 0x30}, startup(v3, "user", "u")))
	f.Add([]byte{0, 0, 0, 16, 4, 0xd2, 0x16, 0x2e, 0, 0, 0, 1, 0, 0, 0, 2})
	f.Fuzz(func(t *testing.T, sent []byte) {
		_, o, err := postgres.Accept(play(sent), nil)
		if err != nil {
			if o != nil {
				t.Errorf("%+v with %v", o, err)
			}
			return
		}
		for name := range o.Parameters {
			switch name {
			case "user", "database", "replication", "role", "session_authorization", "options":
				t.Errorf("passes %s", name)
			}
		}
		if o.Cancel == nil && o.User == "" {
			t.Error("no user")
		}
	})
}

// messages are some that a server sends.
func messages(secret string) []byte {
	var out []byte
	for _, m := range []pgproto3.BackendMessage{
		&pgproto3.ParameterStatus{Name: "server_version", Value: "15"},
		&pgproto3.ReadyForQuery{TxStatus: 'I'},
		&pgproto3.DataRow{Values: [][]byte{[]byte("a"), []byte(secret), nil}},
		&pgproto3.CopyData{Data: []byte("x" + secret + "\n")},
		&pgproto3.NoticeResponse{Severity: "NOTICE", Message: secret},
		&pgproto3.ReadyForQuery{TxStatus: 'I'},
	} {
		out, _ = m.Encode(out)
	}
	return out
}

// Whatever pieces an answer comes in, the client gets the same bytes, as many as there were.
func FuzzAnswers(f *testing.F) {
	f.Add(messages(password), uint8(1))
	f.Add(messages("nothing to see"), uint8(7))
	f.Add([]byte{'D', 0, 0, 0, 3}, uint8(0))
	f.Add([]byte{'D', 0xff, 0xff, 0xff, 0xff, 1, 2}, uint8(3))
	s := scrub.New([]scrub.Value{{Text: password}})
	f.Fuzz(func(t *testing.T, said []byte, way uint8) {
		carry := func(r io.Reader) ([]byte, bool, error) {
			var got bytes.Buffer
			whole, err := postgres.Answers(&got, r, s.Texts(nil))
			return got.Bytes(), whole, err
		}
		got, whole, err := carry(bytes.NewReader(said))
		if len(got) > len(said) || err == nil && (len(got) != len(said) || !whole) {
			t.Fatalf("%d bytes of %d, %v %v", len(got), len(said), whole, err)
		}
		for i, c := range got {
			if c != said[i] && c != '*' {
				t.Fatalf("byte %d became %q", i, c)
			}
		}
		if within(got) {
			t.Error("the secret passes")
		}
		var slow io.Reader = iotest.OneByteReader(bytes.NewReader(said))
		if way%2 == 0 {
			slow = iotest.HalfReader(bytes.NewReader(said))
		}
		again, _, failed := carry(slow)
		if (failed == nil) != (err == nil) || err == nil && !bytes.Equal(again, got) {
			t.Errorf("in pieces: %v, at once: %v", failed, err)
		}
	})
}

// within tells whether the secret is in a single message.
func within(said []byte) bool {
	for len(said) >= 5 {
		n := int64(binary.BigEndian.Uint32(said[1:])) + 1
		if n < 5 || n > int64(len(said)) {
			return false
		}
		if bytes.Contains(said[:n], []byte(password)) {
			return true
		}
		said = said[n:]
	}
	return false
}
