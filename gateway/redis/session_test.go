package redis_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strings"
	"sync"
	"testing"

	client "github.com/redis/go-redis/v9"

	"sallyport/gateway/credential/scrub"
	"sallyport/gateway/redis"
	"sallyport/internal/test/database"
	"sallyport/internal/test/must"
	"sallyport/internal/test/testnet"
)

const (
	host     = "cache.example.test"
	password = "correct-horse-battery-staple"
	admin    = "the-default-users-own-password"
)

// env is what stands between a client and a real server, as the gateway does.
type env struct {
	t       *testing.T
	server  *database.Server
	ca      *testnet.CA
	port    int
	account redis.Account

	mu    sync.Mutex
	found int
	fail  []error
}

func newEnv(t *testing.T) *env {
	t.Helper()
	ca, err := testnet.NewCA()
	must.OK(t, err)
	leaf, err := ca.Leaf(host)
	must.OK(t, err)
	e := &env{t: t, ca: ca, account: redis.Account{Username: "app", Password: password}}
	e.server = database.Redis(t, &leaf, "requirepass "+admin, "user app on >"+password+" ~* &* +@all")
	e.port = database.Front(t, e.serve, func(err error) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.fail = append(e.fail, err)
	})
	return e
}

func (e *env) serve(c net.Conn) error {
	defer c.Close()
	far, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", e.server.Port), &tls.Config{ServerName: host, RootCAs: e.ca.Pool()})
	if err != nil {
		return err
	}
	defer far.Close()
	s := &redis.Session{Account: e.account}
	if err := redis.Login(far, s.Account); err != nil {
		return errors.Join(err, redis.Refuse(c, "refused"))
	}
	texts := scrub.New([]scrub.Value{{Text: password}, {Text: admin}}).Texts(func(scrub.Found) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.found++
	})
	var sent error
	var up sync.WaitGroup
	up.Go(func() {
		sent = s.Commands(far, c)
		_ = far.CloseWrite()
	})
	whole, err := s.Replies(c, far, texts)
	if whole && err == nil && redis.IsForm(sent) {
		_ = redis.Refuse(c, sent.Error())
	}
	c.Close()
	up.Wait()
	return err
}

func (e *env) cli(input string, args ...string) string {
	e.t.Helper()
	cmd := exec.CommandContext(e.t.Context(), "redis-cli", append([]string{"-p", fmt.Sprint(e.port)}, args...)...)
	cmd.Stdin = strings.NewReader(input)
	cmd.Env = []string{"PATH=/usr/bin:/bin"}
	out, err := cmd.CombinedOutput()
	if err != nil {
		e.t.Fatalf("redis-cli %q: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func (e *env) client(o client.Options) *client.Client {
	o.Addr = fmt.Sprintf("127.0.0.1:%d", e.port)
	c := client.NewClient(&o)
	e.t.Cleanup(func() { c.Close() })
	return c
}

// raw speaks the protocol itself.
func (e *env) raw() (net.Conn, *bufio.Reader) {
	e.t.Helper()
	c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", e.port))
	must.OK(e.t, err)
	e.t.Cleanup(func() { c.Close() })
	return c, bufio.NewReader(c)
}

func words(list ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(list))
	for _, w := range list {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(w), w)
	}
	return b.String()
}

func expect(t *testing.T, r *bufio.Reader, want string) {
	t.Helper()
	got := make([]byte, len(want))
	n, err := io.ReadFull(r, got)
	if string(got[:n]) != want {
		t.Fatalf("got %q %v, want %q", got[:n], err, want)
	}
}

func TestSessions(t *testing.T) {
	e := newEnv(t)
	for _, test := range []struct {
		name string
		run  func(*testing.T, *env)
	}{
		{"redis-cli without a password", cliWithoutAPassword},
		{"what logs in and out", logins},
		{"what a session carries", whatASessionCarries},
		{"secret in replies", secretInReplies},
		{"what cannot be told apart", forms},
		{"login that fails", loginThatFails},
	} {
		t.Run(test.name, func(t *testing.T) {
			e.t, e.account = t, redis.Account{Username: "app", Password: password}
			test.run(t, e)
		})
	}
}

func cliWithoutAPassword(t *testing.T, e *env) {
	if got := e.cli("", "acl", "whoami"); got != "app" {
		t.Errorf("got %q", got)
	}
	if got := e.cli("", "-3", "hgetall", "nothing"); got != "" && got != "(empty hash)" {
		t.Errorf("RESP3: %q", got)
	}
	if got := e.cli("set k v\nget k\nmulti\nincr n\nincr n\nexec\n"); got != "OK\nv\nOK\nQUEUED\nQUEUED\n1\n2" {
		t.Errorf("got %q", got)
	}
	// A client's words about itself are not passed on.
	if got := e.cli("", "--user", "somebody", "--pass", "else", "--no-auth-warning", "acl", "whoami"); got != "app" {
		t.Errorf("with its own login: %q", got)
	}
}

func logins(t *testing.T, e *env) {
	whoami, app := words("ACL", "WHOAMI"), "$3\r\napp\r\n"
	for _, test := range []struct{ name, sent, want string }{
		{"AUTH with a password", words("AUTH", "x") + whoami, "+OK\r\n" + app},
		{"AUTH in any case, as another", words("aUtH", "default", admin) + whoami, "+OK\r\n" + app},
		{"AUTH in a transaction", words("MULTI") + words("AUTH", "x") + words("EXEC") + whoami, "+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n" + app},
		{"RESET", words("RESET") + whoami, "+RESET\r\n" + app},
		{"RESET again and again", words("RESET") + words("PING") + words("RESET") + words("RESET") + whoami, "+RESET\r\n+PONG\r\n+RESET\r\n+RESET\r\n" + app},
		{"RESET in a transaction", words("MULTI") + words("PING") + words("RESET") + whoami, "+OK\r\n+QUEUED\r\n+RESET\r\n" + app},
		{"RESET with more", words("RESET", "x") + whoami, "-ERR wrong number of arguments for 'reset' command\r\n" + app},
		{"a reply that looks like it", words("EVAL", "return redis.status_reply('RESET')", "0") + whoami, "+RESET\r\n" + app},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, r := e.raw()
			_, _ = io.WriteString(c, test.sent)
			expect(t, r, test.want)
		})
	}
	for _, hello := range [][]string{
		{"HELLO", "3"}, {"HELLO", "3", "AUTH", "default", admin}, {"hello", "3", "SETNAME", "auth", "auth", "a", "b"}, {"HELLO", "3", "AUTH", "a", "b", "AUTH", "default", admin, "SETNAME", "x"},
	} {
		c, r := e.raw()
		_, _ = io.WriteString(c, words(hello...)+whoami)
		expect(t, r, "%7\r\n")
		var got string
		for !strings.HasSuffix(got, app) {
			line, err := r.ReadString('\n')
			must.OK(t, err)
			got += line
		}
	}
}

func whatASessionCarries(t *testing.T, e *env) {
	ctx := t.Context()
	for _, protocol := range []int{2, 3} {
		t.Run(fmt.Sprintf("RESP%d", protocol), func(t *testing.T) {
			c := e.client(client.Options{Protocol: protocol, Username: "somebody", Password: "else"})
			large := strings.Repeat("x", 20_000_000)
			must.OK(t, c.Set(ctx, "large", large, 0).Err())
			if got, err := c.Get(ctx, "large").Result(); err != nil || got != large {
				t.Fatalf("%d bytes, %v", len(got), err)
			}
			p := c.Pipeline()
			for i := range 10_000 {
				p.Set(ctx, fmt.Sprint("k", i), i, 0)
			}
			results, err := p.Exec(ctx)
			if err != nil || len(results) != 10_000 {
				t.Fatalf("%d results, %v", len(results), err)
			}
			if got, err := c.MGet(ctx, "k1", "gone", "k9999").Result(); err != nil || fmt.Sprint(got) != "[1 <nil> 9999]" {
				t.Errorf("%v %v", got, err)
			}
			if keys, err := c.Keys(ctx, "k[0-9]*").Result(); err != nil || len(keys) != 10_000 {
				t.Errorf("%d keys, %v", len(keys), err)
			}
			if got, err := c.Do(ctx, "command").Result(); err != nil || got == nil { // is nested
				t.Errorf("%T %v", got, err)
			}
			sub := c.Subscribe(ctx, "news")
			defer sub.Close()
			_, err = sub.Receive(ctx)
			must.OK(t, err)
			for i := range 100 {
				must.OK(t, c.Publish(ctx, "news", i).Err())
			}
			for i := range 100 {
				if m, err := sub.ReceiveMessage(ctx); err != nil || m.Payload != fmt.Sprint(i) {
					t.Fatalf("%v %v", m, err)
				}
			}
			blocked, cancel := context.WithCancel(ctx)
			defer cancel()
			got := make(chan string, 1)
			go func() {
				v, _ := c.BLPop(blocked, 0, "queue").Result()
				got <- fmt.Sprint(v)
			}()
			must.OK(t, c.RPush(ctx, "queue", "job").Err())
			if v := <-got; v != "[queue job]" {
				t.Errorf("%s", v)
			}
		})
	}
	watcher, r := e.raw()
	_, _ = io.WriteString(watcher, words("MONITOR"))
	expect(t, r, "+OK\r\n")
	e.cli("", "set", "watched", "v")
	for {
		line, err := r.ReadString('\n')
		must.OK(t, err)
		if strings.Contains(line, password) {
			t.Errorf("monitored: %s", line)
		}
		if strings.Contains(line, `"watched"`) {
			break
		}
	}
}

func secretInReplies(t *testing.T, e *env) {
	c := e.client(client.Options{})
	ctx := t.Context()
	// As the server itself has it.
	if got, err := c.ConfigGet(ctx, "requirepass").Result(); err != nil || got["requirepass"] != strings.Repeat("*", len(admin)) {
		t.Errorf("%v %v", got, err)
	}
	half := len(password) / 2
	for name, text := range map[string]string{
		"text": password, "within text": "a" + password + "b", "after much else": strings.Repeat("z", 100_000) + password,
		"hexadecimal": hex.EncodeToString([]byte(password)), "base64": base64.StdEncoding.EncodeToString([]byte("xy" + password)),
	} {
		must.OK(t, c.Set(ctx, "half", text[:len(text)-half], 0).Err())
		must.OK(t, c.Append(ctx, "half", text[len(text)-half:]).Err())
		got, err := c.Get(ctx, "half").Result()
		if err != nil || len(got) != len(text) || got == text || !strings.Contains(got, "****") {
			t.Errorf("%s: %v %.100q", name, err, got)
		}
	}
	if _, err := c.Eval(ctx, "return redis.error_reply('ERR ' .. ARGV[1] .. ARGV[2])", nil, password[:half], password[half:]).Result(); err == nil || strings.Contains(err.Error(), password) {
		t.Errorf("%v", err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.found < 7 {
		t.Errorf("%d found", e.found)
	}
}

func forms(t *testing.T, e *env) {
	for _, sent := range []string{
		"PING\r\n", "AUTH x\r\n", "*1\n$4\nPING\n", "*01\r\n$4\r\nPING\r\n", "*+1\r\n$4\r\nPING\r\n", "* 1\r\n$4\r\nPING\r\n", "*0\r\n", "*-1\r\n",
		"*1\r\n$04\r\nPING\r\n", "*1\r\n$-1\r\n", "*1\r\n$4\r\nPINGPING\r\n", "*1\r\n:4\r\n", "*1\r\n$4\r\rPING\r\n", "*99999999999999999999\r\n",
		"*2\r\n$3\r\nGET\r\n$1\r\nkey\r\n", "\r\n" + words("PING"), strings.Repeat("*", 100_000), words("AUTH", strings.Repeat("x", 100_000)),
		words("HELLO", "9", "AUTH", "a", "b"), words("HELLO", "3", "x", "AUTH", "a", "b"), words("HELLO", "3", "AUTH\x00", "default", admin), words("HELLO", "3", "AUTH", "a"),
		words("AUTH\x00x", "default", admin), words("GET\x00", "key"), words(strings.Repeat("x", 129)),
		fmt.Sprintf("*20\r\n$5\r\nHELLO\r\n%s", strings.Repeat("$1\r\n3\r\n", 19)),
	} {
		c, r := e.raw()
		go func() { _, _ = io.WriteString(c, words("SET", "before", "1")+sent+words("SET", "after", "1")) }()
		got, _ := io.ReadAll(r)
		text := strings.TrimPrefix(string(got), "+OK\r\n") // where it came before the end
		if text != "" && !strings.HasPrefix(text, "-ERR sallyport: ") {
			t.Errorf("%.40q: %q", sent, got)
		}
	}
	if got := e.cli("", "exists", "after"); got != "0" {
		t.Error("something was carried after what cannot be told apart")
	}
}

func loginThatFails(t *testing.T, e *env) {
	e.account.Password = "another"
	c, r := e.raw()
	_, _ = io.WriteString(c, words("PING"))
	got, _ := io.ReadAll(r)
	if string(got) != "-ERR sallyport: refused\r\n" {
		t.Errorf("%q", got)
	}
	must.Soon(t, "the error", func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		var login *redis.LoginError
		return len(e.fail) > 0 && errors.As(e.fail[len(e.fail)-1], &login) && strings.Contains(login.Error(), "WRONGPASS")
	})
}
