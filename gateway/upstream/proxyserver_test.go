package upstream

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"sallyport/gateway/credential"
	"sallyport/internal/test/must"
)

// Proxies of tests live on an address of their own, which is also where they
// connect from: a destination sees by whom it is reached.
const proxyAddress = "127.0.0.5"

const (
	proxyUser     = "someone"
	proxyPassword = "pr0xy-s3cr3t"
)

// accounts plays the broker.
type accounts map[string][2]string

var known = accounts{"corp": {proxyUser, proxyPassword}, "wrong": {proxyUser, "pr0xy-guess"}, "colon": {"some:one", "x"}, "long": {proxyUser, string(make([]byte, 256))}}

func (a accounts) Login(_ context.Context, name, proxy string) (username, password credential.Secret, err error) {
	l, ok := a[name]
	if !ok || proxy == "" {
		return username, password, fmt.Errorf("leasing %q: %w", name, credential.ErrNoSecret)
	}
	return credential.NewSecret(l[0]), credential.NewSecret(l[1]), nil
}

// freePort is one that nothing listens on at the proxies' address.
func freePort(t testing.TB) uint16 {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(proxyAddress, "0"))
	must.OK(t, err)
	defer l.Close()
	return portOf(t, l.Addr())
}

// start runs a real proxy until the test ends, and waits until it listens.
func start(t testing.TB, port uint16, name string, args ...string) {
	t.Helper()
	c := exec.Command(name, args...)
	out, err := os.Create(filepath.Join(t.TempDir(), "log"))
	must.OK(t, err)
	c.Stdout, c.Stderr = out, out
	must.OK(t, c.Start())
	t.Cleanup(func() {
		_ = c.Process.Signal(syscall.SIGTERM) // squid has things to take away
		last := time.AfterFunc(10*time.Second, func() { _ = c.Process.Kill() })
		_ = c.Wait()
		last.Stop()
		out.Close()
		if t.Failed() {
			text, _ := os.ReadFile(out.Name())
			t.Logf("%s said:\n%s", name, text)
		}
	})
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		l, err := net.Dial("tcp", hostPort(proxyAddress, port))
		if err == nil {
			l.Close()
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s does not listen: %v", name, err)
		}
	}
}

func tinyproxy(t testing.TB, login bool) string {
	t.Helper()
	path, port := must.Program(t, "tinyproxy"), freePort(t)
	config := fmt.Sprintf("Port %d\nListen %s\nBind %s\nTimeout 60\nMaxClients 50\nLogLevel Warning\n", port, proxyAddress, proxyAddress)
	if login {
		config += "BasicAuth " + proxyUser + " " + proxyPassword + "\n"
	}
	file := filepath.Join(t.TempDir(), "tinyproxy.conf")
	must.OK(t, os.WriteFile(file, []byte(config), 0o600))
	start(t, port, path, "-d", "-c", file)
	return "http://" + hostPort(proxyAddress, port)
}

func microsocks(t testing.TB, login bool) string {
	t.Helper()
	path, port := must.Program(t, "microsocks"), freePort(t)
	args := []string{"-i", proxyAddress, "-b", proxyAddress, "-p", strconv.Itoa(int(port))}
	if login {
		args = append(args, "-u", proxyUser, "-P", proxyPassword)
	}
	start(t, port, path, args...)
	return "socks5://" + hostPort(proxyAddress, port)
}

func squid(t testing.TB, login bool) string {
	t.Helper()
	path := must.Program(t, "squid")
	must.Root(t) // squid drops its privileges
	dir, port := t.TempDir(), freePort(t)
	for up := dir; up != os.TempDir() && up != "/"; up = filepath.Dir(up) {
		if err := os.Chmod(up, 0o755); err != nil { // squid runs as another user
			t.Fatal(err)
		}
	}
	config := fmt.Sprintf("http_port %s:%d\ntcp_outgoing_address %s\npid_filename none\ncache deny all\naccess_log none\n"+
		"cache_log /dev/null\ncache_store_log none\nshutdown_lifetime 0 seconds\npinger_enable off\nnetdb_filename none\ncoredump_dir %s\n", proxyAddress, port, proxyAddress, dir)
	if login {
		passwords := filepath.Join(dir, "passwords")
		hash, err := exec.Command("openssl", "passwd", "-1", proxyPassword).Output()
		must.OK(t, err)
		must.OK(t, os.WriteFile(passwords, []byte(proxyUser+":"+string(hash)), 0o644))
		config += "auth_param basic program /usr/lib/squid/basic_ncsa_auth " + passwords + "\nacl known proxy_auth REQUIRED\nhttp_access allow known\nhttp_access deny all\n"
	} else {
		config += "http_access allow all\n"
	}
	file := filepath.Join(dir, "squid.conf")
	must.OK(t, os.WriteFile(file, []byte(config), 0o644))
	start(t, port, path, "-N", "-n", fmt.Sprint("test", port), "-f", file)
	return "http://" + hostPort(proxyAddress, port)
}

// front is TLS before a proxy that speaks none, and nothing else.
func front(t testing.TB, behind string, cert tls.Certificate) string {
	t.Helper()
	l, err := tls.Listen("tcp", net.JoinHostPort(proxyAddress, "0"), &tls.Config{Certificates: []tls.Certificate{cert}})
	must.OK(t, err)
	serve(t, l, func(near net.Conn) {
		far, err := net.Dial("tcp", behind)
		if err != nil {
			return
		}
		defer far.Close()
		relay(near, far)
	})
	return "https://" + l.Addr().String()
}

// serve handles connections, each until handle returns or the test ends.
func serve(t testing.TB, l net.Listener, handle func(net.Conn)) {
	var (
		mu    sync.Mutex
		open  = map[net.Conn]struct{}{}
		ended bool
		wg    sync.WaitGroup
	)
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open[c] = struct{}{}
			if ended {
				c.Close()
			}
			mu.Unlock()
			wg.Go(func() {
				handle(c)
				c.Close()
				mu.Lock()
				delete(open, c)
				mu.Unlock()
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		ended = true
		for c := range open {
			c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
}

// relay copies both ways, half-closes included.
func relay(near, far net.Conn) {
	var wg sync.WaitGroup
	one := func(to, from net.Conn) {
		_, err := io.Copy(to, from)
		if half, ok := to.(interface{ CloseWrite() error }); ok && err == nil {
			_ = half.CloseWrite()
		} else {
			to.Close()
			from.Close()
		}
	}
	wg.Go(func() { one(near, far) })
	wg.Go(func() { one(far, near) })
	wg.Wait()
}

// fake is a proxy that a test scripts, for the faults that real ones do not
// show. It records what it was asked for.
type fake struct {
	url string

	mu    sync.Mutex
	asked []string
}

// newFake serves each connection with handle.
func newFake(t testing.TB, scheme string, handle func(f *fake, c net.Conn)) *fake {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(proxyAddress, "0"))
	must.OK(t, err)
	f := &fake{url: scheme + "://" + l.Addr().String()}
	serve(t, l, func(c net.Conn) { handle(f, c) })
	return f
}

func (f *fake) record(what string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, what)
}

func (f *fake) requests() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.asked...)
}

// saying answers every CONNECT with the same bytes and waits for the client's end.
func saying(answer string) func(*fake, net.Conn) {
	return func(f *fake, c net.Conn) {
		r, err := http.ReadRequest(bufio.NewReader(c))
		if err != nil {
			return
		}
		f.record(r.Method + " " + r.Host)
		if _, err := io.WriteString(c, answer); err == nil {
			_, _ = io.Copy(io.Discard, c)
		}
	}
}

// tunnelling is an honest HTTP proxy that sends what it is asked for elsewhere:
// to is the address for a target, or empty for a 502.
func tunnelling(to func(target string) string, after string) func(*fake, net.Conn) {
	return func(f *fake, c net.Conn) {
		r, err := http.ReadRequest(bufio.NewReader(c))
		if err != nil {
			return
		}
		f.record(r.Host)
		address := to(r.Host)
		if address == "" {
			_, _ = io.WriteString(c, "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 5\r\n\r\nsorry")
			return
		}
		far, err := net.Dial("tcp", address)
		if err != nil {
			return
		}
		defer far.Close()
		if _, err := io.WriteString(c, "HTTP/1.1 200 Connection established\r\nVia: x\r\n\r\n"+after); err == nil {
			relay(c, far)
		}
	}
}

// straight is where a fake proxy is asked to go.
func straight(target string) string { return target }

// reply reads exactly what a client sends and answers each part.
func reply(f *fake, c net.Conn, steps ...[2]string) {
	for _, s := range steps {
		got := make([]byte, len(s[0]))
		if _, err := io.ReadFull(c, got); err != nil {
			return
		}
		f.record(string(got))
		if _, err := io.WriteString(c, s[1]); err != nil {
			return
		}
	}
	_, _ = io.Copy(io.Discard, c)
}

// banner is a destination that speaks first, and says back what it hears.
func banner(t testing.TB, address string) uint16 {
	t.Helper()
	l, err := net.Listen("tcp", address)
	must.OK(t, err)
	serve(t, l, func(c net.Conn) {
		host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
		if _, err := io.WriteString(c, "hello "+host+"\n"); err == nil {
			_, _ = io.Copy(c, c)
		}
	})
	return portOf(t, l.Addr())
}
