package postgres_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"sallyport/gateway/credential/scrub"
	"sallyport/gateway/postgres"
	"sallyport/gateway/wire"
	"sallyport/internal/test/database"
	"sallyport/internal/test/must"
	"sallyport/internal/test/testnet"
)

const (
	host     = "db.example.test"
	password = "correct-horse-battery-staple"
)

// env is what stands between a client and a real server, as the gateway does.
type env struct {
	t       *testing.T
	server  *database.Server
	ca      *testnet.CA // of the server
	near    *testnet.CA // of the client's side
	port    int
	account postgres.Account
	folder  string // with near's certificate

	mu    sync.Mutex
	keys  map[postgres.Key]postgres.ServerKey
	found int
	fail  []error
}

func authority(t *testing.T) *testnet.CA {
	t.Helper()
	ca, err := testnet.NewCA()
	must.OK(t, err)
	return ca
}

func newEnv(t *testing.T, hba ...string) *env {
	t.Helper()
	e := &env{t: t, ca: authority(t), near: authority(t), keys: map[postgres.Key]postgres.ServerKey{}, folder: t.TempDir()}
	leaf, err := e.ca.Leaf(host)
	must.OK(t, err)
	e.server = database.Postgres(t, &leaf, hba...)
	e.server.SQL("create role app login password '"+password+"'", "create database app owner app")
	e.account = postgres.Account{User: "app", Password: password}
	must.OK(t, os.WriteFile(filepath.Join(e.folder, "ca.pem"), e.near.PEM(), 0o600))
	e.port = database.Front(t, e.serve, func(err error) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.fail = append(e.fail, err)
	})
	return e
}

// dial opens TLS to the server.
func (e *env) dial() (*tls.Conn, error) {
	c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", e.server.Port))
	if err != nil {
		return nil, err
	}
	if err := postgres.AskTLS(c); err != nil {
		c.Close()
		return nil, err
	}
	far := tls.Client(c, &tls.Config{ServerName: host, RootCAs: e.ca.Pool()})
	return far, far.Handshake()
}

func (e *env) serve(c net.Conn) error {
	defer func() { c.Close() }()
	inside, opening, err := postgres.Accept(c, func(c net.Conn) (net.Conn, error) {
		leaf, err := e.near.Leaf(host)
		if err != nil {
			return nil, err
		}
		s := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{leaf}, NextProtos: []string{"postgresql"}})
		return s, s.Handshake()
	})
	var refusal *postgres.Refusal
	if errors.As(err, &refusal) {
		_ = postgres.Refuse(inside, refusal)
	}
	if err != nil {
		return err
	}
	defer func() { inside.Close() }()
	far, err := e.dial()
	if err != nil {
		return errors.Join(err, postgres.Refuse(inside, &postgres.Refusal{Code: postgres.CodeUnreachable, Reason: "unreachable"}))
	}
	defer far.Close()
	if opening.Cancel != nil {
		e.mu.Lock()
		key, ok := e.keys[*opening.Cancel]
		e.mu.Unlock()
		if !ok {
			return errors.New("a key that nobody has")
		}
		return postgres.Cancel(far, key)
	}
	account := e.account
	account.Database = opening.Database
	s, err := postgres.Login(far, account, opening)
	if err != nil {
		return errors.Join(err, postgres.Refuse(inside, &postgres.Refusal{Code: postgres.CodeLogin, Reason: "refused"}))
	}
	key := s.NewKey()
	e.mu.Lock()
	e.keys[key] = s.Key
	e.mu.Unlock()
	begin, err := s.Begin(opening, key)
	if err != nil {
		return err
	}
	var up sync.WaitGroup
	up.Go(func() { _, _ = io.Copy(far, inside); far.Close() })
	texts := scrub.New([]scrub.Value{{Text: password, Found: scrub.Found{Name: "db"}}}).Texts(func(scrub.Found) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.found++
	})
	_, err = postgres.Answers(inside, io.MultiReader(bytes.NewReader(begin), far), texts)
	inside.Close()
	up.Wait()
	if errors.Is(err, net.ErrClosed) {
		err = nil
	}
	return err
}

// psql runs Debian's client, which has no password.
func (e *env) psql(sslmode string, args ...string) (string, error) {
	e.t.Helper()
	cmd := exec.CommandContext(e.t.Context(), "psql", append([]string{fmt.Sprintf("host=%s hostaddr=127.0.0.1 port=%d user=anybody dbname=app sslmode=%s sslrootcert=%s/ca.pem", host, e.port, sslmode, e.folder), "-w", "-X", "-q", "-v", "ON_ERROR_STOP=1"}, args...)...)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + e.folder, "PSQL_PAGER=cat"}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// client is Go's, over TLS that it verifies.
func (e *env) client(options string) *pgx.Conn {
	e.t.Helper()
	c, err := pgx.Connect(e.t.Context(), fmt.Sprintf("host=127.0.0.1 port=%d user=anybody dbname=app sslmode=disable %s", e.port, options))
	must.OK(e.t, err)
	e.t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

func (e *env) query(c *pgx.Conn, sql string, args ...any) string {
	e.t.Helper()
	var s string
	must.OK(e.t, c.QueryRow(e.t.Context(), sql, args...).Scan(&s))
	return s
}

// methods are those of pg_hba.conf that a password goes out by, or none.
var methods = []string{"scram-sha-256", "md5", "password", "trust"}

func TestSessions(t *testing.T) {
	hba := []string{"hostssl all nobody 127.0.0.1/32 reject"}
	for _, method := range methods {
		hba = append(hba, fmt.Sprintf("hostssl all by-%s 127.0.0.1/32 %[1]s", method))
	}
	e := newEnv(t, hba...)
	for _, method := range methods {
		encryption := "scram-sha-256"
		if method == "md5" {
			encryption = method
		}
		e.server.SQL("set password_encryption = '"+encryption+"'", "create role \"by-"+method+"\" login password '"+password+"'")
	}
	for _, test := range []struct {
		name string
		run  func(*testing.T, *env)
	}{
		{"psql without a password", psqlWithoutAPassword},
		{"methods", loginMethods},
		{"logins that fail", loginThatFails},
		{"what a session carries", whatASessionCarries},
		{"cancel", cancel},
		{"secret in answers", secretInAnswers},
	} {
		t.Run(test.name, func(t *testing.T) {
			e.t, e.account = t, postgres.Account{User: "app", Password: password}
			test.run(t, e)
		})
	}
}

func psqlWithoutAPassword(t *testing.T, e *env) {
	for _, mode := range []string{"disable", "prefer", "require", "verify-full"} {
		out, err := e.psql(mode, "-At", "-c", "select current_user, current_database(), inet_client_addr() is not null")
		if err != nil || out != "app|app|t\n" {
			t.Errorf("%s: %v %s", mode, err, out)
		}
		if out, err := e.psql(mode, "-c", `\conninfo`); err != nil || strings.Contains(out, "SSL") != (mode != "disable") {
			t.Errorf("%s: %v %s", mode, err, out)
		}
	}
	// Over TLS with the password bound to the certificate.
	if out := e.server.SQL("select rolpassword like 'SCRAM-SHA-256$%' from pg_authid where rolname = 'app'"); out != "t" {
		t.Errorf("the test's role has no SCRAM password: %s", out)
	}
}

func loginMethods(t *testing.T, e *env) {
	for _, method := range methods {
		t.Run(method, func(t *testing.T) {
			user := "by-" + method
			e.account = postgres.Account{User: user, Password: password}
			if out, err := e.psql("require", "-At", "-c", "select current_user"); err != nil || out != user+"\n" {
				t.Errorf("%v %s", err, out)
			}
		})
	}
}

func loginThatFails(t *testing.T, e *env) {
	for _, test := range []struct {
		name    string
		account postgres.Account
		want    string
	}{
		{"a wrong password", postgres.Account{User: "app", Password: "another"}, "28P01"},
		{"no such role", postgres.Account{User: "gone", Password: password}, "28P01"},
		{"a role that is refused", postgres.Account{User: "nobody", Password: password}, "28000"},
	} {
		t.Run(test.name, func(t *testing.T) {
			e.account = test.account
			e.fail = nil
			out, err := e.psql("require", "-c", "select 1")
			if err == nil || !strings.Contains(out, "FATAL:  refused") || strings.Contains(out, test.account.User) {
				t.Errorf("psql said %s", out)
			}
			must.Soon(t, "the error", func() bool { e.mu.Lock(); defer e.mu.Unlock(); return len(e.fail) == 1 })
			var login *postgres.LoginError
			if !errors.As(e.fail[0], &login) || !strings.Contains(login.Error(), test.want) {
				t.Errorf("got %v, want SQLSTATE %s", e.fail[0], test.want)
			}
		})
	}
}

func TestServerWithoutTLS(t *testing.T) {
	s := database.Postgres(t, nil)
	c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", s.Port))
	must.OK(t, err)
	defer c.Close()
	if err := postgres.AskTLS(c); !errors.Is(err, wire.ErrNoTLS) {
		t.Errorf("got %v", err)
	}
}

func whatASessionCarries(t *testing.T, e *env) {
	ctx := t.Context()
	c := e.client("application_name=tests options='-c statement_timeout=30s'")
	if got := e.query(c, "show application_name") + " " + e.query(c, "show statement_timeout"); got != "tests 30s" {
		t.Errorf("parameters %q", got)
	}

	// COPY both ways, as large as many buffers.
	_, err := c.Exec(ctx, "create table lines (n int, line text)")
	must.OK(t, err)
	const rows = 100_000
	n := 0
	copied, err := c.CopyFrom(ctx, pgx.Identifier{"lines"}, []string{"n", "line"}, pgx.CopyFromFunc(func() ([]any, error) {
		if n++; n > rows {
			return nil, nil
		}
		return []any{n, strings.Repeat("x", 100)}, nil
	}))
	if err != nil || copied != rows {
		t.Fatalf("copied %d in: %v", copied, err)
	}
	out := new(counter)
	if tag, err := c.PgConn().CopyTo(ctx, out, "copy lines to stdout"); err != nil || tag.RowsAffected() != rows || out.n < rows*101 {
		t.Errorf("copied %d, %d bytes, out: %v", tag.RowsAffected(), out.n, err)
	}
	if out, err := e.psql("require", "-c", `\copy (select n from lines where n <= 3) to stdout`); err != nil || out != "1\n2\n3\n" {
		t.Errorf("%v %s", err, out)
	}

	// One row larger than any buffer, and prepared statements in a batch.
	if got := e.query(c, "select repeat($1, 20000000)", "y"); len(got) != 20_000_000 {
		t.Errorf("a row of %d bytes", len(got))
	}
	batch := new(pgx.Batch)
	for i := range 100 {
		batch.Queue("select $1::int", i)
	}
	results := c.SendBatch(ctx, batch)
	for i := range 100 {
		var got int
		if err := results.QueryRow().Scan(&got); err != nil || got != i {
			t.Fatalf("%d of the batch: %d %v", i, got, err)
		}
	}
	must.OK(t, results.Close())
	if _, err := c.Exec(ctx, "select 1/0"); !isCode(err, "22012") {
		t.Errorf("an error of the database: %v", err)
	}

	// Notifications, with the process that a client knows for its own.
	_, err = c.Exec(ctx, "listen news")
	must.OK(t, err)
	other := e.client("")
	_, err = other.Exec(ctx, "notify news, 'hello'")
	must.OK(t, err)
	note, err := c.WaitForNotification(ctx)
	if err != nil || note.Payload != "hello" || note.PID != other.PgConn().PID() {
		t.Errorf("%+v %v", note, err)
	}
}

type counter struct{ n int }

func (c *counter) Write(p []byte) (int, error) { c.n += len(p); return len(p), nil }

func isCode(err error, code string) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && e.Code == code
}

func cancel(t *testing.T, e *env) {
	c := e.client("")
	for key, real := range e.keys {
		if fmt.Sprint(key.Secret) == fmt.Sprint(real) {
			t.Error("the client has the server's key")
		}
	}
	done := make(chan error, 1)
	go func() {
		_, err := c.Exec(context.Background(), "select pg_sleep(60)")
		done <- err
	}()
	must.Soon(t, "the query", func() bool {
		return e.server.SQL("select count(*) from pg_stat_activity where query like '%pg_sleep%' and usename = 'app'") == "1"
	})
	must.OK(t, c.PgConn().CancelRequest(t.Context()))
	select {
	case err := <-done:
		if !isCode(err, "57014") {
			t.Errorf("got %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("not cancelled")
	}
	if got := e.query(c, "select 'goes on'"); got != "goes on" {
		t.Error(got)
	}
}

func secretInAnswers(t *testing.T, e *env) {
	c := e.client("")
	_, err := c.Exec(t.Context(), "set client_min_messages = notice")
	must.OK(t, err)
	// The database is asked for the secret in pieces, so that it is in no query.
	whole := "'correct-horse' || '-battery-staple'"
	for _, test := range []struct{ name, sql string }{
		{"text", "select " + whole},
		{"within text", "select 'a' || " + whole + " || 'b'"},
		{"bytea", "select (" + whole + ")::bytea::text"},
		{"hexadecimal", "select upper(encode((" + whole + ")::bytea, 'hex'))"},
		{"base64", "select encode((" + whole + ")::bytea, 'base64')"},
		{"base64 at an offset, in lines", "select encode((repeat('a', 70) || " + whole + ")::bytea, 'base64')"},
		{"JSON", "select json_build_object('p', " + whole + ")::text"},
		{"after much else", "select repeat('z', 100000) || " + whole},
	} {
		t.Run(test.name, func(t *testing.T) {
			e.found = 0
			got := e.query(c, test.sql)
			length := e.server.SQL("select length((" + test.sql[len("select "):] + "))")
			if strings.Contains(got, password) || !strings.Contains(got, "****") || fmt.Sprint(len(got)) != length {
				t.Errorf("got %d characters, want %s: %.200s", len(got), length, got)
			}
			if e.found == 0 {
				t.Error("not counted")
			}
			// Also as psql and its protocol have it.
			if out, err := e.psql("require", "-At", "-c", test.sql); err != nil || strings.TrimSpace(out) != got {
				t.Errorf("psql: %v %.200s", err, out)
			}
		})
	}
	// Binary values, errors, notices, rows of a COPY.
	var raw []byte
	must.OK(t, c.QueryRow(t.Context(), "select ("+whole+")::bytea").Scan(&raw))
	if !bytes.Equal(raw, bytes.Repeat([]byte("*"), len(password))) {
		t.Errorf("%q", raw)
	}
	_, err = c.Exec(t.Context(), "do $$ begin raise exception '%', "+whole+"; end $$")
	if err == nil || strings.Contains(err.Error(), password) || !strings.Contains(err.Error(), "****") {
		t.Errorf("%v", err)
	}
	out, err := e.psql("require", "-c", "do $$ begin raise notice '%', "+whole+"; end $$", "-c", "copy (select "+whole+") to stdout")
	if err != nil || strings.Contains(out, password) || strings.Count(out, strings.Repeat("*", len(password))) != 2 {
		t.Errorf("%v %s", err, out)
	}
}
