package postgres_test

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"sallyport/gateway/postgres"
	"sallyport/internal/test/must"
)

// login logs in at a server that the test plays, over TLS.
func login(t *testing.T, serve func(*pgproto3.Backend, io.Writer)) (*postgres.Server, error) {
	t.Helper()
	ca := authority(t)
	leaf, err := ca.Leaf(host)
	must.OK(t, err)
	near, far := net.Pipe()
	defer near.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer far.Close()
		c := tls.Server(far, &tls.Config{Certificates: []tls.Certificate{leaf}})
		b := pgproto3.NewBackend(c, c)
		if _, err := b.ReceiveStartupMessage(); err != nil {
			return
		}
		serve(b, c)
	}()
	c := tls.Client(near, &tls.Config{ServerName: host, RootCAs: ca.Pool()})
	s, err := postgres.Login(c, postgres.Account{User: "app", Password: password}, &postgres.Opening{Parameters: map[string]string{}})
	near.Close()
	<-done
	return s, err
}

func say(b *pgproto3.Backend, messages ...pgproto3.BackendMessage) {
	for _, m := range messages {
		b.Send(m)
	}
	_ = b.Flush()
}

// The password is bound to the server's certificate where the server can, and a server that
// does not say so is told that it could have been.
func TestLoginIsBoundToTheCertificate(t *testing.T) {
	for _, test := range []struct {
		offered       []string
		picked, flags string
	}{
		{[]string{"SCRAM-SHA-256-PLUS", "SCRAM-SHA-256"}, "SCRAM-SHA-256-PLUS", "p=tls-server-end-point,,"},
		{[]string{"SCRAM-SHA-256"}, "SCRAM-SHA-256", "y,,"},
	} {
		_, _ = login(t, func(b *pgproto3.Backend, _ io.Writer) {
			say(b, &pgproto3.AuthenticationSASL{AuthMechanisms: test.offered})
			_ = b.SetAuthType(pgproto3.AuthTypeSASL)
			m, err := b.Receive()
			first, ok := m.(*pgproto3.SASLInitialResponse)
			if !ok || first.AuthMechanism != test.picked || !strings.HasPrefix(string(first.Data), test.flags) {
				t.Errorf("%v: %+v %v", test.offered, m, err)
			}
		})
	}
}

func TestServersThatCannotBeTrusted(t *testing.T) {
	sasl := &pgproto3.AuthenticationSASL{AuthMechanisms: []string{"SCRAM-SHA-256"}}
	for _, test := range []struct {
		name, want string
		serve      func(*pgproto3.Backend, io.Writer)
	}{
		{"begins without a login", "without a word about the login", func(b *pgproto3.Backend, _ io.Writer) {
			say(b, &pgproto3.ReadyForQuery{TxStatus: 'I'})
		}},
		{"accepts without having shown that it knows the password", "did not show that it knows the password", func(b *pgproto3.Backend, _ io.Writer) {
			say(b, sasl)
			_ = b.SetAuthType(pgproto3.AuthTypeSASL)
			_, _ = b.Receive()
			say(b, &pgproto3.AuthenticationOk{})
		}},
		{"asks for the password beside SCRAM", "asks for the password twice", func(b *pgproto3.Backend, _ io.Writer) {
			say(b, sasl)
			_ = b.SetAuthType(pgproto3.AuthTypeSASL)
			_, _ = b.Receive()
			say(b, &pgproto3.AuthenticationCleartextPassword{})
		}},
		{"asks for endless work", "more than 1000000 iterations", func(b *pgproto3.Backend, _ io.Writer) {
			say(b, sasl)
			_ = b.SetAuthType(pgproto3.AuthTypeSASL)
			m, _ := b.Receive()
			first, _ := m.(*pgproto3.SASLInitialResponse)
			_, nonce, _ := strings.Cut(string(first.Data), ",r=")
			say(b, &pgproto3.AuthenticationSASLContinue{Data: []byte("r=" + nonce + "x,s=c2FsdA==,i=2000000000")})
		}},
		{"offers nothing that is spoken", "offers no SCRAM-SHA-256", func(b *pgproto3.Backend, _ io.Writer) {
			say(b, &pgproto3.AuthenticationSASL{AuthMechanisms: []string{"OAUTHBEARER"}})
		}},
		{"wants Kerberos", "is not answered here", func(b *pgproto3.Backend, _ io.Writer) { say(b, &pgproto3.AuthenticationGSS{}) }},
		{"goes on in the midst", "is not answered here", func(b *pgproto3.Backend, _ io.Writer) {
			say(b, &pgproto3.AuthenticationSASLFinal{Data: []byte("v=x")})
		}},
		{"sends a long message", "not a server of PostgreSQL's", func(_ *pgproto3.Backend, w io.Writer) { _, _ = w.Write([]byte{'R', 0x7f, 0xff, 0xff, 0xff}) }},
		{"sends a short message", "not a server of PostgreSQL's", func(_ *pgproto3.Backend, w io.Writer) { _, _ = w.Write([]byte{'R', 0, 0, 0, 3}) }},
		{"sends rows", "is not answered here", func(b *pgproto3.Backend, _ io.Writer) { say(b, &pgproto3.DataRow{}) }},
		{"sends what is no message", "cannot be read", func(_ *pgproto3.Backend, w io.Writer) { _, _ = w.Write([]byte{'!', 0, 0, 0, 4}) }},
		{"says no end of things", "says too much", func(b *pgproto3.Backend, _ io.Writer) {
			for range 1000 {
				say(b, &pgproto3.NoticeResponse{Message: "x"})
			}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, err := login(t, test.serve)
			var refused *postgres.LoginError
			if s != nil || !errors.As(err, &refused) || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), password) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}
