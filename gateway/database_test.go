package gateway_test

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"sallyport/audit"
	"sallyport/gateway"
	"sallyport/gateway/credential"
	"sallyport/gateway/postgres"
	"sallyport/gateway/redis"
	"sallyport/gateway/wire"
	"sallyport/internal/test/database"
	"sallyport/internal/test/must"
	"sallyport/policy"
)

const (
	databaseHost     = "db.example.test"
	cacheHost        = "cache.example.test"
	databasePassword = "correct-horse-battery-staple"
)

// databaseEnv is a gateway before a real PostgreSQL and a real Redis.
type databaseEnv struct {
	*netEnv
	postgres, redis *database.Server
	folder          string // with the sandbox's authority
	port            map[string]int
	refused         atomic.Bool // the policy denies sessions by now
	reach           *policy.Upstream
}

// account is a source with a name and a password.
type account struct{ username, password string }

func (a *account) Read(context.Context) (credential.Material, error) {
	return credential.Material{Version: "v1", Fields: map[string]credential.Secret{
		"username": credential.NewSecret(a.username), "password": credential.NewSecret(a.password),
	}}, nil
}

var byPassword = &policy.LoginInject{Username: "{{ .username }}", Password: "{{ .password }}"}

func newDatabaseEnv(t *testing.T) *databaseEnv {
	t.Helper()
	e := &databaseEnv{folder: t.TempDir(), port: map[string]int{}}
	e.netEnv = newNetEnv(t, func(o *gateway.Options) {
		o.Handlers = map[policy.Protocol]wire.Handler{
			policy.ProtocolPostgres: postgres.NewHandler(o.Logger), policy.ProtocolRedis: redis.NewHandler(o.Logger),
		}
	})
	e.reach = e.netEnv.reach
	db, cache := e.public.leaf(databaseHost), e.public.leaf(cacheHost)
	e.postgres = database.Postgres(t, &db)
	e.postgres.SQL("create role app login password '"+databasePassword+"'", "create database app owner app", "create database other owner app")
	e.redis = database.Redis(t, &cache, "requirepass the-default-users-own", "user app on >"+databasePassword+" ~* &* +@all")
	e.leased(map[string]credential.Source{"db": &account{"app", databasePassword}})
	e.policy(e.judge)
	must.OK(t, os.WriteFile(filepath.Join(e.folder, "ca.pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: e.ca.cert.Raw}), 0o600))
	for host, port := range map[string]uint16{databaseHost: e.postgres.Port, cacheHost: e.redis.Port} {
		e.name(host)
		e.port[host] = e.bridge(func() (net.Conn, error) {
			return e.steer(context.Background(), "tcp", fmt.Sprintf("%s:%d", host, port))
		})
	}
	return e
}

// leased sets the sources of credentials.
func (e *databaseEnv) leased(sources map[string]credential.Source) {
	e.broker = credential.New(credential.Options{
		Sources: sources, Bound: func(string, string, uint16) bool { return true }, AllowShort: func(string, string) bool { return true },
	})
}

// judge is a policy whose rules log in to both, for the database app alone.
func (e *databaseEnv) judge(in policy.Input) policy.Decision {
	protocol, inject := policy.ProtocolPostgres, policy.Inject{Postgres: byPassword}
	if in.Destination.Host == cacheHost {
		protocol, inject = policy.ProtocolRedis, policy.Inject{Redis: byPassword}
	}
	d := policy.Decision{Rule: "login", RuleType: policy.TypeEgressAuth, Reason: "no rule allows this"}
	switch {
	case in.Protocol != protocol || e.refused.Load():
		return d
	case in.Phase == policy.PhaseConnect:
		d.Authorised = true
	case in.Request.Path == "/other":
		return d
	default:
		d.Inject = []policy.Injection{{Credential: "db", Inject: inject}}
	}
	d.Action, d.Reason, d.Upstream = policy.Allow, "allowed", e.reach
	return d
}

// bridge gives programs of this host the sandbox's way to a destination.
func (e *databaseEnv) bridge(dial func() (net.Conn, error)) int {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(e.t, err)
	var work sync.WaitGroup
	work.Go(func() {
		for {
			near, err := ln.Accept()
			if err != nil {
				return
			}
			far, err := dial()
			if err != nil {
				near.Close()
				continue
			}
			for _, way := range [][2]net.Conn{{near, far}, {far, near}} {
				work.Go(func() {
					_, _ = io.Copy(way[0], way[1])
					_ = way[0].(interface{ CloseWrite() error }).CloseWrite()
				})
			}
		}
	})
	e.t.Cleanup(func() { ln.Close() })
	return ln.Addr().(*net.TCPAddr).Port
}

func (e *databaseEnv) run(program string, args ...string) (string, error) {
	cmd := exec.CommandContext(e.t.Context(), program, args...)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + e.folder}
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func (e *databaseEnv) psql(port int, options string, args ...string) (string, error) {
	return e.run("psql", append([]string{
		fmt.Sprintf("host=%s hostaddr=127.0.0.1 port=%d user=root sslrootcert=%s/ca.pem %s", databaseHost, port, e.folder, options), "-w", "-X", "-q", "-At",
	}, args...)...)
}

func (e *databaseEnv) redisCLI(args ...string) (string, error) {
	return e.run("redis-cli", append([]string{"-p", fmt.Sprint(e.port[cacheHost])}, args...)...)
}

// forget drops the events so far, once all that has begun is over.
func (e *databaseEnv) forget(t *testing.T) {
	e.settled(t)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.events, e.trace, e.findings = nil, nil, nil
}

func TestDatabases(t *testing.T) {
	e := newDatabaseEnv(t)
	for _, test := range []struct {
		name string
		run  func(*testing.T, *databaseEnv)
	}{
		{"programs without a password", databasePrograms},
		{"one decision and one completion", databaseRecords},
		{"what is denied", databaseDenials},
		{"a cancelled query", databaseCancel},
		{"a rule that goes", databaseRevoked},
		{"a lease that ends", databaseExpiry},
		{"a limit", databaseLimit},
		{"a sandbox that sleeps", databaseSleep},
		{"servers that cannot be logged in to", databaseFailures},
	} {
		t.Run(test.name, func(t *testing.T) {
			e.t = t
			e.forget(t)
			test.run(t, e)
		})
	}
}

func databasePrograms(t *testing.T, e *databaseEnv) {
	explicit := e.bridge(func() (net.Conn, error) {
		return e.connect(context.Background(), "tcp", fmt.Sprintf("%s:%d", databaseHost, e.postgres.Port))
	})
	for _, port := range []int{e.port[databaseHost], explicit} {
		for _, mode := range []string{"disable", "prefer", "verify-full"} {
			if out, err := e.psql(port, "dbname=app sslmode="+mode, "-c", "select current_database(), usesysid > 0 from pg_user where usename = session_user"); err != nil || out != "app|t" {
				t.Errorf("%s: %v %s", mode, err, out)
			}
		}
	}
	for _, args := range [][]string{{"ping"}, {"-3", "ping"}, {"--tls", "--sni", cacheHost, "--cacert", filepath.Join(e.folder, "ca.pem"), "ping"}} {
		if out, err := e.redisCLI(args...); err != nil || out != "PONG" {
			t.Errorf("%q: %v %s", args, err, out)
		}
	}
}

func databaseRecords(t *testing.T, e *databaseEnv) {
	half := len(databasePassword) / 2
	sql := fmt.Sprintf("select '%s' || '%s'", databasePassword[:half], databasePassword[half:])
	if out, err := e.psql(e.port[databaseHost], "dbname=app", "-c", sql); err != nil || out != strings.Repeat("*", len(databasePassword)) {
		t.Errorf("%v %s", err, out)
	}
	if out, err := e.redisCLI("eval", fmt.Sprintf("return '%s' .. '%s'", databasePassword[:half], databasePassword[half:]), "0"); err != nil || out != strings.Repeat("*", len(databasePassword)) {
		t.Errorf("%v %s", err, out)
	}
	decisions, completions := e.settled(t)
	if len(decisions) != 2 {
		t.Fatalf("%d decisions", len(decisions))
	}
	for i, want := range []string{"postgres://" + databaseHost, "redis://" + cacheHost} {
		d := decisions[i]
		c := completions[d.ID()]
		s := c.Unmapped.Sallyport
		url := d.HTTPRequest.URL
		if got := url.Scheme + "://" + url.Hostname; got != want {
			t.Errorf("decision about %s, want %s", got, want)
		}
		if len(s.Credentials) != 1 || s.Credentials[0].Name != "db" || s.Credentials[0].Version != "v1" || len(s.Found) != 1 || s.Found[0].Name != "db" {
			t.Errorf("%s: credentials %+v, found %+v", want, s.Credentials, s.Found)
		}
		if c.Traffic == nil || c.Traffic.BytesIn == 0 || c.Traffic.BytesOut == 0 {
			t.Errorf("%s: traffic %+v", want, c.Traffic)
		}
	}
	if path := decisions[0].HTTPRequest.URL.Path; path != "/app" {
		t.Errorf("path %q", path)
	}
	must.Soon(t, "2 findings", func() bool { return len(e.found()) == 2 })
}

func databaseDenials(t *testing.T, e *databaseEnv) {
	for options, want := range map[string]string{
		"dbname=other":                          "FATAL:  sallyport: denied: no rule allows this (decision ",
		"dbname=" + strings.Repeat("a", 64):     "FATAL:  sallyport: no rule can be about a database with such a name",
		"dbname=a/b":                            "FATAL:  sallyport: no rule can be about a database with such a name",
		"dbname=app replication=database":       `FATAL:  sallyport: the start-up parameter "replication" is not passed on`,
		"dbname=app options='-c role=postgres'": `FATAL:  sallyport: the start-up parameter "role" is not passed on`,
	} {
		if out, err := e.psql(e.port[databaseHost], options+" sslmode=disable", "-c", "select 1"); err == nil || !strings.Contains(out, want) {
			t.Errorf("%s: %v %s", options, err, out)
		}
	}
	e.refused.Store(true)
	defer e.refused.Store(false)
	if out, err := e.psql(e.port[databaseHost], "dbname=app sslmode=disable", "-c", "select 1"); err == nil || !strings.Contains(out, "FATAL:  sallyport: no rule allows this (decision ") {
		t.Errorf("the connection is denied: %v %s", err, out)
	}
	if out, _ := e.redisCLI("ping"); !strings.Contains(out, "sallyport: no rule allows this (decision ") {
		t.Errorf("the connection is denied: %s", out)
	}
	if e.dials() > 0 {
		t.Error("something was dialled")
	}
	decisions, completions := e.settled(t)
	if len(decisions) != 7 || len(completions) != 0 {
		t.Errorf("%d decisions, %d completions", len(decisions), len(completions))
	}
}

func databaseCancel(t *testing.T, e *databaseEnv) {
	c, err := pgx.Connect(t.Context(), fmt.Sprintf("host=127.0.0.1 port=%d user=root dbname=app sslmode=disable", e.port[databaseHost]))
	must.OK(t, err)
	done := make(chan error, 1)
	go func() {
		_, err := c.Exec(context.Background(), "select pg_sleep(600)")
		done <- err
	}()
	must.Soon(t, "the query", func() bool {
		return e.postgres.SQL("select count(*) from pg_stat_activity where query like '%pg_sleep(600)%' and usename = 'app'") == "1"
	})
	// Another client of the gateway, with the same key.
	other, err := e.connect(t.Context(), "tcp", fmt.Sprintf("%s:%d", databaseHost, e.postgres.Port))
	must.OK(t, err)
	request, err := (&pgproto3.CancelRequest{ProcessID: c.PgConn().PID(), SecretKey: c.PgConn().SecretKey()}).Encode(nil)
	must.OK(t, err)
	_, err = other.Write(request)
	must.OK(t, err)
	if answer, _ := io.ReadAll(other); len(answer) > 0 {
		t.Errorf("another client is answered %q", answer)
	}
	select {
	case err := <-done:
		t.Fatalf("another client has ended the query: %v", err)
	default:
	}
	must.OK(t, c.PgConn().CancelRequest(t.Context()))
	var canceled *pgconn.PgError
	if err := <-done; !errors.As(err, &canceled) || canceled.Code != "57014" {
		t.Errorf("got %v", err)
	}
	must.OK(t, c.Close(t.Context()))
	decisions, _ := e.settled(t)
	if len(decisions) != 2 || decisions[1].Method() != "cancel" {
		t.Errorf("%d decisions: %+v", len(decisions), decisions[len(decisions)-1])
	}
}

func databaseRevoked(t *testing.T, e *databaseEnv) {
	defer e.refused.Store(false)
	c, err := pgx.Connect(t.Context(), fmt.Sprintf("host=127.0.0.1 port=%d user=root dbname=app sslmode=disable", e.port[databaseHost]))
	must.OK(t, err)
	defer c.Close(context.Background())
	cache, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", e.port[cacheHost]))
	must.OK(t, err)
	defer cache.Close()
	const ping, pong = "*1\r\n$4\r\nPING\r\n", "+PONG\r\n"
	_, _ = io.WriteString(cache, ping)
	got := make([]byte, len(pong))
	if _, err := io.ReadFull(cache, got); err != nil || string(got) != pong {
		t.Fatalf("%q %v", got, err)
	}
	e.refused.Store(true)
	e.gateway.Redecide()
	rest, _ := io.ReadAll(cache)
	if !strings.HasPrefix(string(rest), "-ERR sallyport: the policy no longer allows it") {
		t.Errorf("Redis says %q", rest)
	}
	var ended *pgconn.PgError
	if _, err := c.Exec(t.Context(), "select 1"); !errors.As(err, &ended) || ended.Code != postgres.CodeEnded || !strings.Contains(ended.Message, "the policy no longer allows it") {
		t.Errorf("PostgreSQL says %v", err)
	}
	must.Soon(t, "the sessions' end", func() bool {
		return e.postgres.SQL("select count(*) from pg_stat_activity where usename = 'app'") == "0"
	})
	_, completions := e.settled(t)
	for _, c := range completions {
		if c.Action != audit.ActionDenied {
			t.Errorf("completion %+v", c)
		}
	}
}

// leasedAccount is an account whose lease is short at first. It is renewed where a version stays.
type leasedAccount struct {
	account
	reads atomic.Int32
	renew bool
}

func (s *leasedAccount) Read(ctx context.Context) (credential.Material, error) {
	m, err := s.account.Read(ctx)
	m.Expires = time.Now().Add(5 * time.Second) // in which a session begins
	if s.reads.Add(1) > 1 {
		m.Expires = time.Now().Add(time.Hour)
		if !s.renew {
			m.Version = "v2"
		}
	}
	return m, err
}

func databaseExpiry(t *testing.T, e *databaseEnv) {
	for _, renew := range []bool{true, false} {
		source := &leasedAccount{account: account{"app", databasePassword}, renew: renew}
		e.leased(map[string]credential.Source{"db": source})
		c, err := pgx.Connect(t.Context(), fmt.Sprintf("host=127.0.0.1 port=%d user=root dbname=app sslmode=disable", e.port[databaseHost]))
		must.OK(t, err)
		must.Soon(t, "the lease to be asked about", func() bool { return source.reads.Load() > 1 })
		if !renew {
			must.Soon(t, "the session's end", func() bool {
				return e.postgres.SQL("select count(*) from pg_stat_activity where usename = 'app'") == "0"
			})
		}
		_, err = c.Exec(t.Context(), "select 1")
		var ended *pgconn.PgError
		switch {
		case renew && err != nil:
			t.Errorf("renewed: %v", err)
		case !renew && (!errors.As(err, &ended) || ended.Code != postgres.CodeEnded || !strings.Contains(ended.Message, "the lease of the credential")):
			t.Errorf("not renewed: %v", err)
		}
		_ = c.Close(context.Background())
	}
}

func databaseLimit(t *testing.T, e *databaseEnv) {
	e.policy(under(e.judge, policy.Limit{Name: "a-day", Per: policy.PerSandbox, Every: year, Bytes: 1 << 20, Requests: 2}))
	defer e.policy(e.judge)
	// The first is broken off in the midst of a message, where nothing more can be said.
	for _, want := range []string{"server closed the connection", "limit a-day: 1MiB within", "limit a-day: 1MiB within"} {
		out, err := e.psql(e.port[databaseHost], "dbname=app sslmode=disable", "-c", "select length(repeat('x', 1000)), repeat('y', 100) from generate_series(1, 100000)")
		if err == nil || !strings.Contains(out, want) {
			t.Errorf("%v %.300s", err, out)
		}
	}
	decisions, completions := e.settled(t)
	if len(completions) != 1 || completions[decisions[0].ID()].Rule.Name != "a-day" {
		t.Errorf("%d completions", len(completions))
	}
}

func databaseSleep(t *testing.T, e *databaseEnv) {
	c, err := pgx.Connect(t.Context(), fmt.Sprintf("host=127.0.0.1 port=%d user=root dbname=app sslmode=disable", e.port[databaseHost]))
	must.OK(t, err)
	defer c.Close(context.Background())
	_, err = c.Exec(t.Context(), "listen news")
	must.OK(t, err)
	e.gateway.Sleep(t.Context(), sandboxAddr)
	e.postgres.SQL(`\c app`, "notify news, 'while it slept'")
	e.gateway.Wake(sandboxAddr)
	if note, err := c.WaitForNotification(t.Context()); err != nil || note.Payload != "while it slept" {
		t.Errorf("%+v %v", note, err)
	}
}

func databaseFailures(t *testing.T, e *databaseEnv) {
	plain := database.Postgres(t, nil)
	foreign := e.public.leaf("else.example.test")
	other := database.Redis(t, &foreign)
	for _, test := range []struct {
		name     string
		host     string
		port     uint16
		source   credential.Source
		says     string
		recorded string
	}{
		{"a wrong password", databaseHost, e.postgres.Port, &account{"app", "another-password-of-it"}, "the server refused the login", "refused"},
		{"no credential", databaseHost, e.postgres.Port, nil, "db", ""},
		{"a server without TLS", databaseHost, plain.Port, &account{"app", databasePassword}, "the server does not offer TLS", ""},
		{"the certificate of another host", cacheHost, other.Port, &account{"app", databasePassword}, "its certificate is for another name", ""},
		{"a wrong password of Redis", cacheHost, e.redis.Port, &account{"app", "another-password-of-it"}, "the server refused the login", "refused"},
		{"nobody there", databaseHost, 1, &account{"app", databasePassword}, "connection refused", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			e.forget(t)
			sources := map[string]credential.Source{}
			if test.source != nil {
				sources["db"] = test.source
			}
			e.leased(sources)
			port := e.bridge(func() (net.Conn, error) {
				return e.steer(context.Background(), "tcp", fmt.Sprintf("%s:%d", test.host, test.port))
			})
			var out string
			if test.host == databaseHost {
				out, _ = e.psql(port, "dbname=app sslmode=disable", "-c", "select 1")
			} else {
				out, _ = e.run("redis-cli", "-p", fmt.Sprint(port), "ping")
			}
			if !strings.Contains(out, "sallyport: ") || !strings.Contains(out, test.says) || strings.Contains(out, "28P01") || strings.Contains(out, "password authentication") || strings.Contains(out, "WRONGPASS") {
				t.Errorf("said %s", out)
			}
			decisions, completions := e.settled(t)
			if len(decisions) != 1 || completions[decisions[0].ID()].StatusID != audit.StatusFailure {
				t.Errorf("%d decisions, %+v", len(decisions), completions)
			}
		})
	}
}
