package gateway_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/internal/test/must"
	"sallyport/policy"
)

func plainly(policy.Input) policy.Decision { return policy.Decision{Action: policy.Allow} }

// TestSleepOfAnIdleConnection: deadlines stand still, and go on with what was left.
func TestSleepOfAnIdleConnection(t *testing.T) {
	t.Parallel()
	const request = "GET / HTTP/1.1\r\nHost: api.example.test\r\n\r\n"
	hello := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") })
	inQuiet(t, plainly, nil, hello, func(t *testing.T, q *quiet) {
		c := q.dial()
		in := bufio.NewReader(c)
		ask := func() {
			t.Helper()
			io.WriteString(c, request)
			resp, err := http.ReadResponse(in, nil)
			if err != nil || text(t, resp) != "hello" {
				t.Fatal(resp, err)
			}
		}
		ask()
		for range 2 { // the second time it sleeps already
			q.gateway.Sleep(t.Context(), sandboxAddr)
		}
		time.Sleep(hours)
		q.gateway.Wake(sandboxAddr)
		ask()
		// 5 minutes are an idle connection's, and up to an eighth more.
		time.Sleep(4 * time.Minute)
		q.gateway.Sleep(t.Context(), sandboxAddr)
		time.Sleep(hours)
		q.gateway.Wake(sandboxAddr)
		woken := time.Now()
		if _, err := in.ReadByte(); err != io.EOF {
			t.Errorf("the idle connection: %v, want its end", err)
		}
		if left := time.Since(woken); left < 30*time.Second || left > 2*time.Minute {
			t.Errorf("it was ended %v after the wake, want the minute that was left, and an eighth of 5", left)
		}
	})
}

// TestSleepInHTTP2: a connection without requests goes on; what timed out meanwhile
// is told at the wake.
func TestSleepInHTTP2(t *testing.T) {
	t.Parallel()
	slow := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/thinks" {
			time.Sleep(time.Minute)
		}
		io.WriteString(w, "hello "+r.URL.Path)
	})
	for name, tt := range map[string]struct {
		sleep time.Duration
		over  bool
	}{"for a while": {4 * time.Minute, false}, "for longer than a connection may idle": {hours, true}} {
		t.Run(name, func(t *testing.T) {
			inQuiet(t, plainly, nil, slow, func(t *testing.T, q *quiet) {
				protocols := new(http.Protocols)
				protocols.SetUnencryptedHTTP2(true)
				dials := 0
				tr := &http.Transport{Protocols: protocols, DialContext: func(context.Context, string, string) (net.Conn, error) {
					dials++
					return q.dial(), nil
				}}
				defer tr.CloseIdleConnections()
				client := &http.Client{Transport: tr}
				ask := func(path string) string {
					resp, err := client.Get("http://api.example.test" + path)
					if err != nil {
						return err.Error()
					}
					return text(t, resp)
				}
				if got := ask("/"); got != "hello /" {
					t.Fatal(got)
				}
				q.gateway.Sleep(t.Context(), sandboxAddr)
				time.Sleep(tt.sleep)
				q.gateway.Wake(sandboxAddr)
				time.Sleep(time.Second)
				if got := ask("/again"); got != "hello /again" {
					t.Error(got)
				}
				if again := dials > 1; again != tt.over {
					t.Errorf("a new connection: %v, want %v", again, tt.over)
				}
				if tt.over {
					return
				}
				// An answer that comes while it sleeps waits for it.
				got := make(chan string)
				go func() { got <- ask("/thinks") }()
				synctest.Wait()
				q.gateway.Sleep(t.Context(), sandboxAddr)
				time.Sleep(3 * time.Minute)
				select {
				case <-got:
					t.Error("a sandbox that sleeps was sent an answer")
				default:
				}
				q.gateway.Wake(sandboxAddr)
				if s := <-got; s != "hello /thinks" {
					t.Error(s)
				}
			})
		})
	}
}

// quick fails a test that hangs.
const quick = 20 * time.Second

// TestSleepOverTCP: what comes meanwhile waits, what is closed ends after the wake.
func TestSleepOverTCP(t *testing.T) {
	t.Parallel()
	kinds := map[string]func(policy.Input) policy.Decision{
		"tunnel": func(in policy.Input) policy.Decision {
			return policy.Decision{Action: policy.Tunnel, Rule: "raw", RuleType: "egress"}
		},
	}
	for name, decide := range kinds {
		t.Run(name, func(t *testing.T) {
			l := newEnv(t)
			l.policy(decide)
			far, up := net.Conn(nil), make(chan net.Conn, 1)
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			must.OK(t, err)
			defer ln.Close()
			go func() {
				c, err := ln.Accept()
				if err == nil {
					up <- c
				}
			}()
			l.hosts["raw.example.test"] = ln.Addr().String()
			c := l.raw(l.name("raw.example.test").String() + ":7")
			io.WriteString(c, "hello\n")
			far = <-up
			defer far.Close()
			in, out := bufio.NewReader(c), bufio.NewReader(far)
			heard := func(r *bufio.Reader, want string) {
				t.Helper()
				got, err := r.ReadString('\n')
				if err != nil || got != want+"\n" {
					t.Fatalf("got %q, %v, want %q", got, err, want)
				}
			}
			heard(out, "hello")
			io.WriteString(far, "and you\n")
			heard(in, "and you")
			for range 3 {
				l.gateway.Sleep(t.Context(), sandboxAddr)
				io.WriteString(far, "while you slept\n")
				silent(t, c, in)
				l.gateway.Wake(sandboxAddr)
				heard(in, "while you slept")
				io.WriteString(c, "thanks\n")
				heard(out, "thanks")
			}
			l.gateway.Sleep(t.Context(), sandboxAddr)
			io.WriteString(far, "goodbye\n")
			far.Close()
			silent(t, c, in)
			l.gateway.Wake(sandboxAddr)
			woken := time.Now()
			heard(in, "goodbye")
			if _, err := in.ReadByte(); err != io.EOF || time.Since(woken) > quick {
				t.Errorf("the end, %v after the wake: %v", time.Since(woken), err)
			}
		})
	}
}

// silent fails if anything comes.
func silent(t *testing.T, c net.Conn, in *bufio.Reader) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if b, err := in.ReadByte(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a sandbox that sleeps was sent %q, %v", b, err)
	}
	_ = c.SetReadDeadline(time.Now().Add(patience))
}

// TestSleepOfAWebSocket is of frames, through TLS.
func TestSleepOfAWebSocket(t *testing.T) {
	t.Parallel()
	eachWebSocket(t, func(t *testing.T, m *versionEnv) {
		m.handle("/", echoing.ServeHTTP)
		s, resp, err := m.upgrade(t, "/")
		if err != nil {
			t.Fatal(resp, err)
		}
		defer s.Close()
		for range 2 {
			s.echoes(t, "before")
			m.gateway.Sleep(t.Context(), sandboxAddr)
			// The sandbox's last bytes may be answered while it sleeps.
			time.Sleep(20 * time.Millisecond)
			m.gateway.Wake(sandboxAddr)
			s.echoes(t, "after")
		}
	})
}

// TestSleepInTheMiddle: what does not come to rest is reset before the sandbox
// sleeps.
func TestSleepInTheMiddle(t *testing.T) {
	t.Parallel()
	l := newEnv(t)
	l.policy(allow)
	l.upstream("big.example.test", true, func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			if _, err := w.Write(make([]byte, 1<<20)); err != nil {
				return
			}
		}
	})
	c, err := l.secure(l.name("big.example.test").String()+":443", "big.example.test")
	must.OK(t, err)
	io.WriteString(c, "GET / HTTP/1.1\r\nHost: big.example.test\r\n\r\n")
	if _, err := c.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	time.Sleep(200 * time.Millisecond) // its window fills
	begin := time.Now()
	l.gateway.Sleep(t.Context(), sandboxAddr)
	if took := time.Since(begin); took > quick {
		t.Errorf("Sleep took %v", took)
	}
	_ = c.SetReadDeadline(time.Now().Add(quick))
	_, err = io.Copy(io.Discard, c)
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the connection that was in the middle: %v, want a reset", err)
	}
}

// TestSleepAndPolicy: what the policy ends while the sandbox sleeps is over at the
// wake, and nobody waits for that.
func TestSleepAndPolicy(t *testing.T) {
	t.Parallel()
	l := newEnv(t)
	l.policy(allow)
	l.upstream("api.example.test", true, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") })
	c, err := l.secure(l.name("api.example.test").String()+":443", "api.example.test")
	must.OK(t, err)
	if _, body := send(t, c, "GET / HTTP/1.1\r\nHost: api.example.test\r\n\r\n"); body != "hello" {
		t.Fatal(body)
	}
	l.gateway.Sleep(t.Context(), sandboxAddr)
	l.policy(func(policy.Input) policy.Decision { return policy.Decision{Action: policy.Deny, Reason: "closed"} })
	l.gateway.Redecide()
	time.Sleep(700 * time.Millisecond) // a connection has 400 ms to end
	_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("while it sleeps: %v", err)
	}
	l.gateway.Wake(sandboxAddr)
	raw := c.NetConn()
	_ = raw.SetReadDeadline(time.Now().Add(quick))
	if _, err := io.Copy(io.Discard, raw); err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("after the wake: %v, want its end", err)
	}
}

// TestSleepAndEnd: a sandbox that will not wake, and a gateway that ends first.
func TestSleepAndEnd(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*env){
		"End": func(l *env) { l.gateway.End(sandboxAddr) },
		"Shutdown": func(l *env) {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			if err := l.gateway.Shutdown(ctx); err != nil {
				l.t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newEnv(t)
			l.policy(allow)
			l.upstream("api.example.test", true, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") })
			c, err := l.secure(l.name("api.example.test").String()+":443", "api.example.test")
			must.OK(t, err)
			if _, body := send(t, c, "GET / HTTP/1.1\r\nHost: api.example.test\r\n\r\n"); body != "hello" {
				t.Fatal(body)
			}
			l.gateway.Sleep(t.Context(), sandboxAddr)
			begin := time.Now()
			end(l)
			if took := time.Since(begin); took > quick {
				t.Errorf("it took %v", took)
			}
			_ = c.SetReadDeadline(time.Now().Add(quick))
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) && err != io.EOF {
				t.Errorf("the connection: %v", err)
			}
		})
	}
}

// TestSleepHoldsTheKernelBack: its keep-alive and patience are off meanwhile, and
// as they were afterwards.
func TestSleepHoldsTheKernelBack(t *testing.T) {
	l := newEnv(t)
	l.policy(allow)
	c := l.raw(l.name("api.example.test").String() + ":80")
	ours := c.RemoteAddr().String()
	option := func() string {
		t.Helper()
		for fd := 3; fd < 1024; fd++ {
			sa, err := unix.Getpeername(fd)
			in, ok := sa.(*unix.SockaddrInet4)
			if err != nil || !ok || fmt.Sprintf("127.0.0.1:%d", in.Port) != c.LocalAddr().String() {
				continue
			}
			alive, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE)
			patience, _ := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT)
			return fmt.Sprint(alive, patience)
		}
		t.Fatal("no socket is the peer of", ours)
		return ""
	}
	must.Soon(t, "the connection", func() bool { return l.gauge("sallyport_gateway_connections") == 1 })
	before := option()
	l.gateway.Sleep(t.Context(), sandboxAddr)
	if got := option(); got != "0 0" {
		t.Errorf("asleep: keep-alive and patience %s", got)
	}
	l.gateway.Wake(sandboxAddr)
	if got := option(); got != before || strings.HasPrefix(got, "0") {
		t.Errorf("awake: keep-alive and patience %s, were %s", got, before)
	}
}
