package gateway_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sallyport/audit"
	"sallyport/gateway"
	"sallyport/gateway/upstream"
	"sallyport/internal/test/must"
	"sallyport/policy"
)

func TestDeniedConnectionIsLegible(t *testing.T) {
	t.Parallel()
	reasoned := func(policy.Input) policy.Decision {
		return policy.Decision{Rule: "closed", RuleType: "egress", Reason: "nobody may go there"}
	}
	tests := []struct {
		name, url, want string
		decide          func(policy.Input) policy.Decision
		denied          []string
	}{
		{"name over TLS", "https://api.example.test/", "reason: nobody may go there\nrule: closed\n", reasoned, nil},
		{"name over HTTP", "http://api.example.test/", "reason: nobody may go there\nrule: closed\n", reasoned, nil},
		{"refused name over TLS", "https://nowhere.example.test/", "reason: nobody may go there\n", reasoned, []string{"sb-1 nowhere.example.test"}},
		{"refused name over HTTP", "http://nowhere.example.test/x", "reason: nobody may go there\n", reasoned, []string{"sb-1 nowhere.example.test"}},
		{"refused name that is allowed by now, TLS", "https://nowhere.example.test/", "look it up again", allow, []string{"sb-1 nowhere.example.test"}},
		{"refused name that is allowed by now, HTTP", "http://nowhere.example.test/", "look it up again", allow, []string{"sb-1 nowhere.example.test"}},
		{"refused name that may be tunnelled by now", "https://nowhere.example.test/", "look it up again", tunnel, []string{"sb-1 nowhere.example.test"}},
		{"bare address over TLS", "https://203.0.113.9/", "reason: no rule allows this\n", nil, nil},
		{"bare address over HTTP", "http://203.0.113.9:8080/", "reason: no rule allows this\n", nil, nil},
		{"bare IPv6 address", "https://[2001:db8::9]/", "reason: no rule allows this\n", nil, nil},
		{"refusal address itself", "https://198.18.0.1/", "no rule allows the name that led to this address", nil, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			l := newEnv(t)
			l.name("api.example.test")
			if test.decide != nil {
				l.policy(test.decide)
			}
			resp, body := get(t, l.client(), test.url)
			e := l.await(1)[0]
			if resp.StatusCode != 403 || !strings.Contains(body, test.want) || !strings.Contains(body, "decision: "+e.ID()+"\n") ||
				!strings.Contains(body, "what to do: ") || resp.Header.Get("Sallyport-Decision") != e.ID() {
				t.Errorf("%d %s", resp.StatusCode, body)
			}
			if e.Action != audit.ActionDenied || e.Unmapped.Sallyport.Sandbox != "demo" {
				t.Errorf("event %+v", e)
			}
			if diff := cmp.Diff(l.denied, test.denied); diff != "" {
				t.Errorf("look-ups: %s", diff)
			}
			if l.dials() != 0 {
				t.Error("dialled")
			}
		})
	}
}

func TestDeniedConnectionIsRecordedOnce(t *testing.T) {
	t.Parallel()
	l := newEnv(t)
	l.name("api.example.test")
	c, err := l.secure(l.name("api.example.test").String()+":443", "api.example.test")
	must.OK(t, err)
	resp, _ := send(t, c, "GET /1 HTTP/1.1\r\nHost: api.example.test\r\n\r\nGET /2 HTTP/1.1\r\nHost: api.example.test\r\n\r\n")
	if resp.StatusCode != 403 || !resp.Close {
		t.Errorf("%d, close %v", resp.StatusCode, resp.Close)
	}
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("the connection stays open")
	}
	l.await(1)
}

func TestDeniedBytesAreClosed(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]string{"ssh": "SSH-2.0-x\r\n", "garbage": "\x00\x01\x02", "broken TLS": "\x16\x03\x01\x00\x04\x01\x00\x00\x00"} {
		for _, action := range []policy.Action{policy.Deny, policy.Allow} {
			t.Run(fmt.Sprint(name, " ", action), func(t *testing.T) {
				l := newEnv(t)
				l.policy(func(policy.Input) policy.Decision { return policy.Decision{Action: action} })
				c := l.raw(l.name("api.example.test").String() + ":22")
				io.WriteString(c, first)
				if b, _ := io.ReadAll(c); len(b) != 0 {
					t.Errorf("got %q", b)
				}
				e := l.await(1)[0]
				if e.Action != audit.ActionDenied || e.ClassUID != audit.ClassNetwork || e.Destination.Hostname != "api.example.test" {
					t.Errorf("event %+v", e)
				}
				if l.dials() != 0 {
					t.Error("dialled")
				}
			})
		}
	}
}

// A stream that begins like TLS and cannot be read is no raw protocol: a server that reads it
// would be reached unread.
func TestHelloThatCannotBeReadIsNoTunnel(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]string{
		"broken":                "\x16\x03\x01\x00\x04\x01\x00\x00\x00",
		"a name with final dot": strings.Replace(clientHello(t, "api.example.testx"), "testx", "test.", 1),
	} {
		t.Run(name, func(t *testing.T) {
			l := newEnv(t)
			l.policy(tunnel)
			c := l.raw(l.name("api.example.test").String() + ":8443")
			io.WriteString(c, first)
			if b, _ := io.ReadAll(c); len(b) != 0 {
				t.Errorf("got %q", b)
			}
			if e := l.await(1)[0]; e.Action != audit.ActionDenied || e.Rule.Name != "tls" || e.Rule.Type != "floor" {
				t.Errorf("event %+v", e)
			}
			if l.dials() != 0 {
				t.Error("dialled")
			}
		})
	}
}

func TestUnknownAddressIsClosedAndRecorded(t *testing.T) {
	t.Parallel()
	l := newEnv(t)
	l.policy(allow)
	c, err := l.listener.dial(netip.MustParseAddr("10.231.0.99"), netip.MustParseAddrPort("203.0.113.1:443"))
	must.OK(t, err)
	defer c.Close()
	if b, _ := io.ReadAll(c); len(b) != 0 {
		t.Errorf("got %q", b)
	}
	if e := l.await(1)[0]; e.Rule.Name != "unknown-sandbox" || e.Source.IP != "10.231.0.99" || e.Destination.IP != "203.0.113.1" {
		t.Errorf("event %+v", e)
	}
}

func TestNamesMustAgree(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, to, sni string
		decide        func(policy.Input) policy.Decision
		status        int
	}{
		{"same", "api.example.test", "api.example.test", allow, 200},
		{"same in upper case", "api.example.test", "API.example.test", allow, 200},
		{"none", "api.example.test", "", allow, 200},
		{"another", "api.example.test", "other.example.test", allow, 403},
		{"another in a tunnel", "api.example.test", "other.example.test", tunnel, 403},
		{"a name on a bare address", "203.0.113.7", "api.example.test", allow, 403},
		{"not a name", "api.example.test", "a b", allow, 403},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			l := newEnv(t)
			l.policy(test.decide)
			l.upstream("api.example.test", true, func(http.ResponseWriter, *http.Request) {})
			l.hosts["203.0.113.7"] = l.hosts["api.example.test"]
			to := test.to
			if _, err := netip.ParseAddr(to); err != nil {
				to = l.name(to).String()
			}
			raw := l.raw(to + ":443")
			c := tls.Client(raw, &tls.Config{ServerName: test.sni, InsecureSkipVerify: true})
			must.OK(t, c.Handshake())
			resp, body := send(t, c, "GET / HTTP/1.1\r\nHost: "+test.to+"\r\n\r\n")
			if resp.StatusCode != test.status {
				t.Errorf("%d %s, want %d", resp.StatusCode, body, test.status)
			}
			if test.status != 200 && l.dials() != 0 {
				t.Error("dialled")
			}
		})
	}
}

func TestTunnelIsWrittenDownBeforeTheDial(t *testing.T) {
	t.Parallel()
	l := newEnv(t)
	l.policy(tunnel)
	l.upstream("api.example.test", true, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "direct") })
	c := tls.Client(l.raw(l.name("api.example.test").String()+":443"), &tls.Config{RootCAs: l.public.pool, ServerName: "api.example.test"})
	resp, body := send(t, c, "GET / HTTP/1.1\r\nHost: api.example.test\r\n\r\n")
	if resp.StatusCode != 200 || body != "direct" {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	must.OK(t, c.CloseWrite())    // the server ends it: a byte to an end that has closed would reset the connection
	_, _ = io.Copy(io.Discard, c) // as what is left unread would
	c.Close()
	events := l.await(2)
	if diff := cmp.Diff(l.steps(), []string{"append tunnel", "dial api.example.test:443", "enqueue completion tunnel"}); diff != "" {
		t.Error(diff)
	}
	d, done := events[0], events[1]
	if d.TLS == nil || d.TLS.SNI != "api.example.test" || d.ClassUID != audit.ClassNetwork || d.Unmapped.Sallyport.Decision != "tunnel" {
		t.Errorf("decision %+v", d)
	}
	if done.Metadata.CorrelationUID != d.ID() || done.Traffic.BytesIn < 500 || done.Traffic.BytesOut < 200 || done.StatusID != audit.StatusSuccess {
		t.Errorf("completion %+v %+v", done, done.Traffic)
	}
	if len(l.ca.asked) != 0 {
		t.Errorf("a tunnel was terminated: %v", l.ca.asked)
	}
}

func TestTunnelThatCannotBeCarried(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		break_ func(*env)
		status int
		events int
	}{
		{"log not writable", func(l *env) { l.appendTo = errors.New("disk full") }, 503, 0},
		{"denied address", func(l *env) {
			l.fail = &upstream.Error{Kind: upstream.KindAddress, Err: errors.New("10.0.0.1 is private")}
		}, 403, 2},
		{"nobody there", func(l *env) { l.fail = &upstream.Error{Kind: upstream.KindRefused} }, 502, 2},
		{"no answer", func(l *env) { l.fail = &upstream.Error{Kind: upstream.KindTimeout} }, 504, 2},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			l := newEnv(t)
			l.policy(tunnel)
			l.name("api.example.test")
			test.break_(l)
			resp, body := get(t, l.client(), "https://api.example.test/")
			if resp.StatusCode != test.status || resp.Header.Get("Sallyport-Decision") == "" {
				t.Errorf("%d %s, want %d", resp.StatusCode, body, test.status)
			}
			if test.events == 0 {
				if l.dials() != 0 {
					t.Error("dialled")
				}
				return
			}
			if c := l.await(test.events)[1]; c.StatusID != audit.StatusFailure || (c.Action == audit.ActionDenied) != (test.status == 403) {
				t.Errorf("completion %+v", c)
			}
		})
	}
}

// echo is a raw server that greets first.
func echo(t *testing.T, greeting string) string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	var work sync.WaitGroup
	work.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			work.Go(func() {
				io.WriteString(c, greeting)
				io.Copy(c, c)
				c.Close()
			})
		}
	})
	t.Cleanup(func() { ln.Close(); work.Wait() })
	return ln.Addr().String()
}

func TestTunnelForAServerThatSpeaksFirst(t *testing.T) {
	t.Parallel()
	l := newEnv(t, speaksFirst)
	l.policy(tunnel)
	l.hosts["db.example.test"] = echo(t, "220 ready\r\n")
	c := l.raw(l.name("db.example.test").String() + ":25")
	r := bufio.NewReader(c)
	if line, err := r.ReadString('\n'); err != nil || line != "220 ready\r\n" {
		t.Fatalf("%q %v", line, err)
	}
	io.WriteString(c, "HELO x\r\n")
	if line, err := r.ReadString('\n'); err != nil || line != "HELO x\r\n" {
		t.Fatalf("%q %v", line, err)
	}
	// The end of one direction is passed on, and the other still drains.
	io.WriteString(c, "QUIT\r\n")
	c.(*net.TCPConn).CloseWrite()
	if rest, err := io.ReadAll(r); err != nil || string(rest) != "QUIT\r\n" {
		t.Errorf("%q %v", rest, err)
	}
	if done := l.await(2)[1]; done.Traffic.BytesOut != 14 || done.Traffic.BytesIn != 25 {
		t.Errorf("traffic %+v", done.Traffic)
	}
}

// A client that is silent until it is taken for one that waits for its server
// gets no more by it than if it had spoken at once.
func TestSilenceIsNoWayRoundBeingRead(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		sni     string
		tls     policy.Action // for TLS; other bytes may pass unread
		carried bool
	}{
		"the name of the rule": {"api.example.test", policy.Tunnel, true},
		"another name":         {"other.example.test", policy.Tunnel, false},
		"TLS that is read":     {"api.example.test", policy.Allow, false},
		"TLS that is denied":   {"api.example.test", policy.Deny, false},
	} {
		t.Run(name, func(t *testing.T) {
			l := newEnv(t, speaksFirst)
			l.policy(func(in policy.Input) policy.Decision {
				if in.Protocol == policy.ProtocolTLS {
					return policy.Decision{Action: test.tls}
				}
				return tunnel(in)
			})
			l.upstream("api.example.test", true, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "unread") })
			raw := l.raw(l.name("api.example.test").String() + ":8443")
			must.Soon(t, "it is taken for silent", func() bool { return l.dials() > 0 })
			c := tls.Client(raw, &tls.Config{ServerName: test.sni, InsecureSkipVerify: true})
			if err := c.Handshake(); (err == nil) != test.carried {
				t.Errorf("handshake: %v, want carried %v", err, test.carried)
			} else if err == nil {
				// Bytes that it leaves unread, as the server's session tickets, would reset
				// the connection.
				c.CloseWrite()
				io.Copy(io.Discard, c)
			}
			c.Close()
			if done := l.await(2)[1]; (done.StatusID == audit.StatusSuccess) != test.carried || !test.carried && done.Traffic.BytesOut != 0 {
				t.Errorf("completion %+v %+v", done, done.Traffic)
			}
		})
	}
}

func TestStalledOpeningIsClosedAndRecorded(t *testing.T) {
	t.Parallel()
	hello := clientHello(t, "api.example.test")
	for name, first := range map[string]string{
		"nothing":          "",
		"half a hello":     hello[:len(hello)/2],
		"half a method":    "GE",
		"half a TLS start": "\x16",
	} {
		t.Run(name, func(t *testing.T) {
			l := newEnv(t, func(o *gateway.Options) {
				o.FirstByteTimeout, o.HandshakeTimeout = 50*time.Millisecond, 150*time.Millisecond
			})
			l.policy(allow)
			c := l.raw(l.name("api.example.test").String() + ":443")
			io.WriteString(c, first)
			if b, err := io.ReadAll(c); len(b) != 0 || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("got %q, %v", b, err)
			}
			if e := l.await(1)[0]; e.Action != audit.ActionDenied || e.Rule.Name != "opening" || e.Unmapped.Sallyport.Sandbox != "demo" {
				t.Errorf("%+v", e)
			}
		})
	}
}

// A client that opens several connections and takes the first one that stands has
// asked for nothing on the others.
func TestAbandonedOpeningIsNotRecorded(t *testing.T) {
	t.Parallel()
	l := newEnv(t)
	l.policy(allow)
	l.upstream("api.example.test", true, func(http.ResponseWriter, *http.Request) {})
	for range 3 {
		l.raw(l.name("api.example.test").String() + ":443").Close()
	}
	if resp, body := get(t, l.client(), "https://api.example.test/"); resp.StatusCode != 200 {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	l.await(2) // of that request
}

func TestSlowHeadIsCutOff(t *testing.T) {
	t.Parallel()
	l := newEnv(t, func(o *gateway.Options) { o.HandshakeTimeout = 2 * time.Second })
	l.policy(allow)
	c, err := l.secure(l.name("api.example.test").String()+":443", "api.example.test")
	must.OK(t, err)
	io.WriteString(c, "GET / HTTP/1.1\r\nHost: api.example.test\r\n")
	go func() {
		for {
			if _, err := io.WriteString(c, "X: y\r\n"); err != nil {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
	}()
	if _, err := io.ReadAll(c); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("it goes on")
	}
	c.Close()
}

// clientHello returns a ClientHello as it stands on the wire.
func clientHello(t *testing.T, name string) string {
	t.Helper()
	near, far := net.Pipe()
	defer far.Close()
	go func() {
		tls.Client(near, &tls.Config{ServerName: name}).Handshake()
		near.Close()
	}()
	b := make([]byte, 1<<15)
	n, err := far.Read(b)
	must.OK(t, err)
	return string(b[:n])
}

// dripping sends every write in pieces, each a segment of its own.
type dripping struct {
	net.Conn
	size int
}

func (d dripping) Write(p []byte) (int, error) {
	for chunk := range slices.Chunk(p, d.size) {
		if _, err := d.Conn.Write(chunk); err != nil {
			return 0, err
		}
		time.Sleep(time.Millisecond)
	}
	return len(p), nil
}

func TestFragmentedClientHello(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		size   int
		protos int
	}{
		"in many":            {100, 1},
		"in two":             {900, 1},
		"of more than 16 KB": {4096, 300},
	} {
		t.Run(name, func(t *testing.T) {
			l := newEnv(t)
			l.policy(allow)
			l.upstream("api.example.test", true, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok") })
			protos := []string{"http/1.1"}
			for i := 1; i < test.protos; i++ {
				protos = append(protos, fmt.Sprintf("%03d%s", i, strings.Repeat("x", 60)))
			}
			c := tls.Client(dripping{l.raw(l.name("api.example.test").String() + ":443"), test.size},
				&tls.Config{RootCAs: l.ca.pool, ServerName: "api.example.test", NextProtos: protos})
			if resp, body := send(t, c, "GET / HTTP/1.1\r\nHost: api.example.test\r\n\r\n"); resp.StatusCode != 200 || body != "ok" {
				t.Errorf("%d %s", resp.StatusCode, body)
			}
		})
	}
}

func TestConnectionsOfASandboxAreBounded(t *testing.T) {
	t.Parallel()
	l := newEnv(t, func(o *gateway.Options) { o.ConnectionsPerSandbox = 2 })
	l.policy(tunnel)
	l.hosts["db.example.test"] = echo(t, "hi\n")
	to := l.name("db.example.test").String() + ":5432"
	use := func(c net.Conn) string {
		io.WriteString(c, "\x01")
		b := make([]byte, 3)
		n, _ := io.ReadFull(c, b)
		return string(b[:n])
	}
	first, second := l.raw(to), l.raw(to)
	if use(first) != "hi\n" || use(second) != "hi\n" {
		t.Fatal("the first two do not work")
	}
	if got := use(l.raw(to)); got != "" {
		t.Errorf("a third: %q", got)
	}
	first.Close()
	l.await(4) // two tunnels, one completion, one denial
	if got := use(l.raw(to)); got != "hi\n" {
		t.Errorf("after one ended: %q", got)
	}
}

func TestShutdown(t *testing.T) {
	t.Parallel()
	l := newEnv(t)
	l.policy(allow)
	l.name("api.example.test")
	started, finish := make(chan struct{}), make(chan struct{})
	l.upstream("api.example.test", true, func(w http.ResponseWriter, _ *http.Request) {
		close(started)
		<-finish
		io.WriteString(w, "whole")
	})
	answer := make(chan string, 1)
	client := l.client()
	go func() {
		resp, err := client.Get("https://api.example.test/")
		if err != nil {
			answer <- err.Error()
			return
		}
		b, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		answer <- string(b)
	}()
	<-started
	ended := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		ended <- l.gateway.Shutdown(ctx)
	}()
	must.Soon(t, "that no new connection is taken", func() bool {
		c, err := l.listener.dial(sandboxAddr, netip.MustParseAddrPort("203.0.113.1:443"))
		if err == nil {
			c.Close()
		}
		return err != nil
	})
	close(finish)
	if got := <-answer; got != "whole" {
		t.Errorf("the request under way got %q", got)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestShutdownEndsTunnelsWhenItsTimeIsUp(t *testing.T) {
	t.Parallel()
	l := newEnv(t)
	l.policy(tunnel)
	l.hosts["db.example.test"] = echo(t, "hi\n")
	c := l.raw(l.name("db.example.test").String() + ":5432")
	io.WriteString(c, "\x01")
	io.ReadFull(c, make([]byte, 3))
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if err := l.gateway.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	io.ReadAll(c)
	l.await(2)
}

func TestSandboxThatDoesNotTrustItsAuthority(t *testing.T) {
	t.Parallel()
	l := newEnv(t)
	l.policy(allow)
	c := tls.Client(l.raw(l.name("api.example.test").String()+":443"), &tls.Config{ServerName: "api.example.test", RootCAs: l.public.pool})
	var unknown x509.UnknownAuthorityError
	if err := c.Handshake(); !errors.As(err, &unknown) {
		t.Errorf("got %v", err)
	}
	c.Close()
	if e := l.await(1)[0]; e.Action != audit.ActionDenied || e.Rule.Name != "tls" || e.Destination.Hostname != "api.example.test" {
		t.Errorf("%+v", e)
	}
	if l.dials() != 0 {
		t.Error("dialled")
	}
}
