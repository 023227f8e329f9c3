package channel_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/ed25519"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"

	"sallyport/internal/test/must"
	"sallyport/sandbox/agent/channel"
	"sallyport/sandbox/agent/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake stands in an agent's place, as a root inside can make it: it takes any
// proof and then does what the test says with the connection.
func fake(t *testing.T, then func(net.Conn)) *channel.Channel {
	t.Helper()
	return bare(t, func(c net.Conn) {
		c.Write(make([]byte, wire.ChallengeSize))
		if _, err := io.ReadFull(c, make([]byte, ed25519.SignatureSize)); err != nil {
			return
		}
		then(c)
	})
}

// bare is a fake from the first byte on.
func bare(t *testing.T, do func(net.Conn)) *channel.Channel {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	must.OK(t, err)
	var served sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn
	served.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, c)
			mu.Unlock()
			served.Go(func() { defer c.Close(); do(c) })
		}
	})
	_, key, _ := ed25519.GenerateKey(nil)
	ch := channel.New(netip.MustParseAddr("127.0.0.1"), channel.Options{Key: key, Dial: func(ctx context.Context, _ netip.AddrPort) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp4", l.Addr().String())
	}})
	t.Cleanup(func() {
		ch.Close()
		l.Close()
		mu.Lock()
		for _, c := range open {
			c.Close()
		}
		mu.Unlock()
		served.Wait()
	})
	return ch
}

// say answers every request on a connection with the same bytes, and then with
// more of them for ever, if there are any.
func say(head string, more []byte) func(net.Conn) {
	return func(c net.Conn) {
		r := bufio.NewReader(c)
		for {
			req, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			if req.ContentLength > 0 { // an attached command's may have no end
				io.Copy(io.Discard, req.Body)
			}
			if _, err := io.WriteString(c, head); err != nil {
				return
			}
			for len(more) > 0 {
				if _, err := c.Write(more); err != nil {
					return
				}
			}
		}
	}
}

const ok = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"

// frame is one of an attached command's.
func frame(k byte, size uint32, payload string) string {
	return string(binary.BigEndian.AppendUint32([]byte{k}, size)) + payload
}

func whole(k wire.Kind, payload string) string { return frame(byte(k), uint32(len(payload)), payload) }

// held is how much memory do adds while it runs, in bytes.
func held(do func()) uint64 {
	var before, now runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	done := make(chan struct{})
	go func() { defer close(done); do() }()
	var most uint64
	for {
		runtime.ReadMemStats(&now)
		most = max(most, now.HeapInuse)
		select {
		case <-done:
			return most - min(most, before.HeapInuse)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Whatever a hostile agent answers, a call and an attached command end, by
// themselves or when their caller gives up, and hold little meanwhile.
func TestHostileAgent(t *testing.T) {
	t.Parallel()
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	z.Write(make([]byte, 64<<20))
	z.Close()
	zeros := make([]byte, 64<<10)
	status := func(s string) string {
		return fmt.Sprintf(ok+"Content-Length: %d\r\n\r\n%s", len(s), s)
	}
	quiet := map[string]func(net.Conn){
		"silence":              func(c net.Conn) { io.Copy(io.Discard, c) },
		"closes at once":       func(net.Conn) {},
		"no HTTP":              say("SSH-2.0-OpenSSH_9.2\r\n", nil),
		"HTTP/2":               say("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", nil),
		"huge length, no body": say(ok+"Content-Length: 9223372036854775807\r\n\r\n", nil),
		"two lengths":          say(ok+"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", nil),
		"redirect":             say("HTTP/1.1 307 Temporary Redirect\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", nil),
		"not JSON":             say(status("\x1b]0;owned\x07"), nil),
		"deep JSON":            say(status(strings.Repeat("[", 1<<20)), nil),
		"a list":               say(status(`[{"version":1}]`), nil),
		"wrong types":          say(status(`{"attached":"1"}`), nil),
		"drip": func(c net.Conn) {
			io.WriteString(c, ok+"\r\n")
			for {
				if _, err := c.Write([]byte("[")); err != nil {
					return
				}
				time.Sleep(10 * time.Millisecond)
			}
		},
		"frame of input":    say(ok+"\r\n"+whole(wire.Stdin, "x"), nil),
		"half a frame":      say(ok+"\r\n"+frame(byte(wire.Stdout), 1000, "x"), nil),
		"end of no JSON":    say(ok+"\r\n"+whole(wire.Exit, "7"), nil),
		"end with no code":  say(ok+"\r\n"+whole(wire.Exit, `{"code":-1}`), nil),
		"end with much":     say(ok+"\r\n"+whole(wire.Exit, `{"code":4294967296}`), nil),
		"end with a signal": say(ok+"\r\n"+whole(wire.Exit, `{"signal":"\u001b]0;owned\u0007 and so on and on"}`), nil),
	}
	floods := map[string]func(net.Conn){
		"endless status line":     say("HTTP/1.1 200 ", bytes.Repeat([]byte("a"), 64<<10)),
		"endless head":            say(ok, []byte("X-More: 0123456789\r\n")),
		"endless line of a head":  say(ok+"X-More: ", bytes.Repeat([]byte("a"), 64<<10)),
		"endless interim answers": say("", []byte("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n")),
		"endless body":            say(ok+"\r\n", zeros),
		"endless chunk":           say(ok+"Transfer-Encoding: chunked\r\n\r\nffffffffffff\r\n", zeros),
		"endless chunk extension": say(ok+"Transfer-Encoding: chunked\r\n\r\n1;", bytes.Repeat([]byte("a"), 64<<10)),
		"endless trailer":         say(ok+"Transfer-Encoding: chunked\r\nTrailer: X\r\n\r\n0\r\n", []byte("X: 0123456789\r\n")),
		"bomb":                    say(fmt.Sprintf(ok+"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s", bomb.Len(), bomb.String()), nil),
		"upgrade":                 say("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n", zeros),
		"endless error":           say("HTTP/1.1 500 Oops\r\n\r\n", zeros),
		"unknown frame":           say(ok+"\r\n"+whole(99, "x"), zeros),
		"frame too large":         say(ok+"\r\n"+frame(byte(wire.Stdout), 1<<32-1, ""), zeros),
		"alive for ever":          say(ok+"\r\n", []byte(whole(wire.Alive, ""))),
		"output for ever":         say(ok+"\r\n", []byte(whole(wire.Stdout, strings.Repeat("y\n", 32<<10)))),
	}
	test := func(name string, do func(net.Conn), atOnce int) {
		t.Run(name, func(t *testing.T) {
			c := fake(t, do)
			calls := map[string]func(context.Context) error{
				"call": func(ctx context.Context) error {
					var h wire.Activity
					return c.JSON(ctx, "GET", "/activity", nil, &h)
				},
				"command": func(ctx context.Context) error {
					_, err := c.Run(ctx, wire.Command{ID: "a", Args: []string{"true"}}, wire.Streams{Stdout: io.Discard})
					return err
				},
				"port": func(ctx context.Context) error {
					_, err := c.Connect(ctx, "localhost", 8000)
					return err
				},
				"command with input": func(ctx context.Context) error {
					_, err := c.Run(ctx, wire.Command{ID: "a", Args: []string{"true"}}, wire.Streams{Stdin: endless{}, Stdout: io.Discard})
					return err
				},
			}
			most := held(func() {
				var all errgroup.Group
				all.SetLimit(atOnce)
				for what, f := range calls {
					all.Go(func() error {
						ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
						defer cancel()
						// A command's end is asked for, for half a second more. The rest is for a busy machine.
						limit := time.Minute
						begin := time.Now()
						if err := f(ctx); err == nil {
							t.Errorf("%s: no error", what)
						}
						if took := time.Since(begin); took > limit {
							t.Errorf("%s: took %v, want at most %v", what, took, limit)
						}
						return nil
					})
				}
				_ = all.Wait()
			})
			if most > 48<<20 {
				t.Errorf("held %d MiB", most>>20)
			}
		})
	}
	for name, do := range quiet {
		test(name, do, 4)
	}
	for name, do := range floods {
		test(name, do, 1)
	}
}

// A fake that never lets a connection be proved holds a caller no longer than a
// dial may take.
func TestHostileHandshake(t *testing.T) {
	t.Parallel()
	for name, do := range map[string]func(net.Conn){
		"silence":      func(c net.Conn) { io.Copy(io.Discard, c) },
		"half a greet": func(c net.Conn) { c.Write(make([]byte, 16)); io.Copy(io.Discard, c) },
		"closes":       func(net.Conn) {},
		"greets for ever": func(c net.Conn) {
			for {
				if _, err := c.Write(make([]byte, 64<<10)); err != nil {
					return
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := bare(t, do)
			begin := time.Now()
			if err := c.JSON(t.Context(), "GET", "/activity", nil, nil); !errors.Is(err, channel.ErrSilent) {
				t.Errorf("got %v, want ErrSilent", err)
			}
			if took := time.Since(begin); took > time.Minute {
				t.Errorf("took %v", took)
			}
		})
	}
}

// Bytes that an agent sends in a program's stead come to the one that asked for that, and are
// held by nobody; it is not taken at its word that there is such a connection.
func TestHostilePort(t *testing.T) {
	const switching = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + wire.PortProtocol + "\r\n\r\n"
	zeros := make([]byte, 64<<10)
	c := fake(t, say(switching, zeros))
	most := held(func() {
		p, err := c.Connect(t.Context(), "localhost", 8000)
		must.OK(t, err)
		time.Sleep(300 * time.Millisecond) // nobody reads
		if _, err := io.CopyN(io.Discard, p, 64<<20); err != nil {
			t.Error(err)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		if _, err := p.Read(zeros); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("after its end: %v", err)
		}
	})
	if most > 8<<20 {
		t.Errorf("held %d MiB", most>>20)
	}
	for name, tt := range map[string]struct {
		do   func(net.Conn)
		want error
	}{
		"another protocol":         {say("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", nil), channel.ErrSilent},
		"an answer":                {say(ok+"Upgrade: "+wire.PortProtocol+"\r\nContent-Length: 2\r\n\r\n{}", nil), channel.ErrSilent},
		"an earlier version":       {say("HTTP/1.1 404 Not Found\r\nContent-Type: text/plain\r\nContent-Length: 19\r\n\r\n404 page not found\n", nil), channel.ErrEarlier},
		"an end without a word":    {func(net.Conn) {}, channel.ErrSilent},
		"a refusal without an end": {say("HTTP/1.1 404 Not Found\r\n\r\n", zeros), channel.ErrEarlier},
	} {
		if _, err := fake(t, tt.do).Connect(t.Context(), "localhost", 8000); !errors.Is(err, tt.want) {
			t.Errorf("%s: got %v, want %v", name, err, tt.want)
		}
	}
}

// A call that hangs on one agent leaves the way to another free, and one agent's streams are
// bounded.
func TestHostileAgentIsAlone(t *testing.T) {
	bad := fake(t, func(c net.Conn) { io.Copy(io.Discard, c) })
	good := fake(t, say(ok+"Content-Length: 2\r\n\r\n{}", nil))
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	busy := make(chan error, 200)
	for range 200 {
		all.Go(func() {
			req, _ := http.NewRequestWithContext(ctx, "GET", "http://agent/commands/a/output", nil)
			_, err := bad.Do(req, true)
			busy <- err
		})
	}
	for range 200 - 64 {
		if err := <-busy; !errors.Is(err, channel.ErrBusy) {
			t.Errorf("got %v, want ErrBusy", err)
		}
	}
	begin := time.Now()
	for range 100 {
		must.OK(t, good.JSON(t.Context(), "GET", "/activity", nil, nil))
	}
	if took := time.Since(begin); took > time.Minute {
		t.Errorf("100 calls of another agent took %v", took)
	}
	cancel()
	all.Wait()
}

// endless is input without an end.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }
