package resolver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"

	"sallyport/gateway/tcp"
	"sallyport/internal/test/must"
	"sallyport/policy"
)

// journal keeps what is recorded.
// sandboxes of the tests: every address of 127.0.1.0/24 is one.
func identify(a netip.Addr) (policy.Sandbox, bool) {
	if !netip.MustParsePrefix("127.0.1.0/24").Contains(a) {
		return policy.Sandbox{}, false
	}
	n := a.As4()[3]
	return policy.Sandbox{Name: fmt.Sprintf("box%d", n), ID: fmt.Sprintf("id-%d", n), Session: "s1", Tags: map[string]string{"team": "x"}}, true
}

// decide allows what its name says.
func decide(_ context.Context, in policy.Input) policy.Decision {
	d := policy.Decision{Reason: "no rule allows " + in.Destination.Host, Revision: "r1", Rule: "default", RuleType: "egress"}
	if in.Phase != policy.PhaseDNS || in.Sandbox.ID == "" || in.Destination.Port != 0 || in.Destination.Host != strings.ToLower(in.Destination.Host) {
		return d
	}
	switch first, _, _ := strings.Cut(in.Destination.Host, "."); first {
	case "allow", "intranet":
		d.Action = policy.Allow
	case "team-" + in.Sandbox.Tags["team"]:
		d.Action = policy.Allow
	case "tunnel":
		d.Action = policy.Tunnel
	case "approve":
		d.Action = policy.Approve
	case "odd":
		d.Action = "surprise"
	case "broken":
		d.Action, d.Err = policy.Allow, errors.New("evaluation failed")
	}
	return d
}

type serverEnv struct {
	*Server
	addr    string
	table   *NameTable
	journal *journal
	tags    atomic.Pointer[map[string]string] // of all sandboxes; nil: those of identify
	metrics *prometheus.Registry
	stop    func()
}

func newServerEnv(t testing.TB) *serverEnv {
	t.Helper()
	l := &serverEnv{table: openTable(t, t.TempDir(), NameTableOptions{PerSandbox: 50}), journal: &journal{}, metrics: prometheus.NewRegistry()}
	l.Server = NewServer(Options{Table: l.table, Identify: l.identify, Decide: decide, Recorder: l.journal, Metrics: l.metrics})
	return l
}

func (l *serverEnv) identify(a netip.Addr) (policy.Sandbox, bool) {
	who, ok := identify(a)
	if tags := l.tags.Load(); tags != nil {
		who.Tags = *tags
	}
	return who, ok
}

// serve runs the server on loopback, UDP and TCP on one port.
func serve(t testing.TB) *serverEnv {
	t.Helper()
	l := newServerEnv(t)
	var pc net.PacketConn
	var ln net.Listener
	for range 20 { // until a UDP port is free for TCP too
		var err error
		if pc, err = net.ListenPacket("udp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		l.addr = pc.LocalAddr().String()
		if ln, err = net.Listen("tcp", l.addr); err == nil {
			break
		}
		pc.Close()
	}
	if ln == nil {
		t.Fatal("no port is free for both UDP and TCP")
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Serve(ctx, pc, ln) }()
	l.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("serving: %v", err)
		}
	})
	t.Cleanup(l.stop)
	return l
}

// ask sends a message from a sandbox's address.
func (l *serverEnv) ask(t testing.TB, network, from string, m *dns.Msg) (*dns.Msg, error) {
	t.Helper()
	var local net.Addr = &net.UDPAddr{IP: net.ParseIP(from)}
	if network == "tcp" {
		local = &net.TCPAddr{IP: net.ParseIP(from)}
	}
	c := dns.Client{Net: network, Dialer: &net.Dialer{LocalAddr: local}, Timeout: time.Minute}
	r, _, err := c.ExchangeContext(t.Context(), m, l.addr)
	return r, err
}

func TestStrangersGetNoAnswer(t *testing.T) {
	l := serve(t)
	for _, network := range []string{"udp", "tcp"} {
		c := dns.Client{Net: network, Timeout: 300 * time.Millisecond}
		if r, _, err := c.ExchangeContext(t.Context(), question("allow.example.test.", dns.TypeA), l.addr); err == nil {
			t.Errorf("%s: a stranger got %v", network, r)
		}
	}
	if _, err := l.ask(t, "udp", "127.0.1.1", question("allow.example.test.", dns.TypeA)); err != nil {
		t.Errorf("a sandbox after a stranger: %v", err)
	}
}

// sandbox asks over one connection, and wants an answer to each question.
func (l *serverEnv) sandbox(t *testing.T, network string) (ask func(name string) int) {
	t.Helper()
	var local net.Addr = &net.UDPAddr{IP: net.ParseIP("127.0.1.1")}
	if network == "tcp" {
		local = &net.TCPAddr{IP: net.ParseIP("127.0.1.1")}
	}
	c, err := (&net.Dialer{LocalAddr: local}).Dial(network, l.addr)
	must.OK(t, err)
	t.Cleanup(func() { c.Close() })
	conn := &dns.Conn{Conn: c}
	return func(name string) int {
		t.Helper()
		must.OK(t, conn.WriteMsg(question(name, dns.TypeA)))
		r, err := conn.ReadMsg()
		must.OK(t, err)
		return r.Rcode
	}
}

// A question on a connection is decided by the tags that its sandbox has then.
func TestTagsChangeOnAConnection(t *testing.T) {
	l := serve(t)
	for _, network := range []string{"udp", "tcp"} {
		l.tags.Store(&map[string]string{"team": "red"})
		ask := l.sandbox(t, network)
		resolves := func(name string, want bool) {
			t.Helper()
			ask(name)
			if got := l.table.Assigned("id-1", strings.TrimSuffix(name, ".")); got != want {
				t.Errorf("%s: %s has an address: %v, want %v", network, name, got, want)
			}
		}
		resolves("team-red."+network+".test.", true)
		l.tags.Store(&map[string]string{"team": "blue"})
		resolves("team-red.later-"+network+".test.", false)
		resolves("team-blue."+network+".test.", true)
	}
}

// A question on a connection that has ended is nobody's: the sandbox that has the address by now may
// be another.
func TestQuestionOfBefore(t *testing.T) {
	l := newServerEnv(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	defer ln.Close()
	asked := func(id string, reset bool) bool {
		t.Helper()
		near, err := net.Dial("tcp", ln.Addr().String())
		must.OK(t, err)
		defer near.Close()
		far, err := ln.Accept()
		must.OK(t, err)
		defer far.Close()
		must.OK(t, (&dns.Conn{Conn: near}).WriteMsg(question("allow.example.test.", dns.TypeA)))
		if reset {
			must.OK(t, near.(*net.TCPConn).SetLinger(0))
			must.OK(t, near.Close())
			must.Soon(t, "the reset", func() bool { return tcp.Reset(far) != nil })
		} else {
			must.OK(t, near.(*net.TCPConn).CloseWrite())
		}
		l.serveConn(t.Context(), far, id, netip.MustParseAddr("127.0.1.1"))
		return l.table.Assigned("id-1", "allow.example.test")
	}
	if asked("id-1", true) {
		t.Error("one that was reset is answered")
	}
	if asked("id-2", false) {
		t.Error("one of another sandbox is answered")
	}
	if !asked("id-1", false) {
		t.Error("one of the sandbox is not answered")
	}
}

func TestRateIsLimitedBySandbox(t *testing.T) {
	for _, network := range []string{"udp", "tcp"} {
		t.Run(network, func(t *testing.T) {
			l := serve(t)
			// It has asked nearly all that it may: so it takes no speed to ask too much.
			l.limits("id-1").all.SetLimit(0)
			l.limits("id-1").all.AllowN(time.Now(), queryBurst-100)
			ask := l.sandbox(t, network)
			refused := 0
			for range 200 {
				if ask("allow.example.test.") == dns.RcodeRefused {
					refused++
				}
			}
			if refused != 100 {
				t.Errorf("%d questions were refused, want 100", refused)
			}
			r, err := l.ask(t, network, "127.0.1.2", question("allow.example.test.", dns.TypeA))
			if err != nil || r.Rcode != dns.RcodeSuccess {
				t.Errorf("another sandbox paid for it: %v, %v", r, err)
			}
		})
	}
}

// A client that opens many connections asks for few names, many times: that is
// answered where as many new names would not be.
func TestKnownNamesAreNotLimitedAsNewOnes(t *testing.T) {
	l := serve(t)
	l.limits("id-1").names.SetLimit(0) // what has been used up stays so
	ask := l.sandbox(t, "udp")
	for range newBurst + 1000 {
		if got := ask("allow.example.test."); got != dns.RcodeSuccess {
			t.Fatalf("a known name: %s", dns.RcodeToString[got])
		}
	}
	l.limits("id-1").names.AllowN(time.Now(), newBurst-2)
	var got []int
	for i := range 2 {
		got = append(got, ask(fmt.Sprintf("allow.n%d.example.test.", i)))
	}
	if got[0] != dns.RcodeSuccess || got[1] != dns.RcodeRefused {
		t.Errorf("two new names, of which one was left: %v", got)
	}
	if got := ask("allow.n0.example.test."); got != dns.RcodeSuccess {
		t.Errorf("the new name, again: %s", dns.RcodeToString[got])
	}
}

// A sandbox's connection too many takes the place of its own oldest one.
func TestConnectionsAreBoundedBySandbox(t *testing.T) {
	l := serve(t)
	open := func(from string) (net.Conn, bool) {
		c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).Dial("tcp", l.addr)
		must.OK(t, err)
		t.Cleanup(func() { c.Close() })
		conn := &dns.Conn{Conn: c}
		c.SetDeadline(time.Now().Add(time.Minute))
		if err := conn.WriteMsg(question("allow.example.test.", dns.TypeA)); err != nil {
			return c, false
		}
		_, err = conn.ReadMsg()
		return c, err == nil
	}
	other, ok := open("127.0.1.2")
	if !ok {
		t.Fatal("another sandbox was refused")
	}
	var all []net.Conn
	for i := range maxConnsOfSandbox + 1 {
		c, ok := open("127.0.1.1")
		if !ok {
			t.Fatalf("connection %d was refused", i+1)
		}
		all = append(all, c)
	}
	for i, c := range append(all[:2:2], other) {
		c.SetDeadline(time.Now().Add(time.Minute))
		conn := &dns.Conn{Conn: c}
		err := conn.WriteMsg(question("allow.example.test.", dns.TypeA))
		if err == nil {
			_, err = conn.ReadMsg()
		}
		if gone := err != nil; gone != (i == 0) {
			t.Errorf("number %d: %v", i, err)
		}
	}
}

func TestServeEndsWithOpenConnections(t *testing.T) {
	l := serve(t)
	c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP("127.0.1.1")}}).Dial("tcp", l.addr)
	must.OK(t, err)
	defer c.Close()
	c.Write([]byte{0, 99, 1}) // a message that never comes
	time.Sleep(50 * time.Millisecond)
	begin := time.Now()
	l.stop()
	if d := time.Since(begin); d > connTimeout*4/5 {
		t.Errorf("took %v", d)
	}
	c.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := io.ReadAll(c); errors.Is(err, context.DeadlineExceeded) {
		t.Error("the connection stayed open")
	}
}

func TestMetrics(t *testing.T) {
	l := serve(t)
	for _, name := range []string{"allow.example.test.", "evil.example.test.", "evil.example.test."} {
		if _, err := l.ask(t, "udp", "127.0.1.1", question(name, dns.TypeA)); err != nil {
			t.Fatal(err)
		}
	}
	families, err := l.metrics.Gather()
	must.OK(t, err)
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			got[f.GetName()+" "+m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
		}
	}
	if got["sallyport_dns_queries_total synthetic"] != 1 || got["sallyport_dns_queries_total refused"] != 2 {
		t.Errorf("got %v", got)
	}
}

// FuzzAnswer holds that no packet makes the server panic, answer at length, or
// give an address to a name that is denied.
