package reconcile

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/internal/test/must"
	"sallyport/internal/test/testnet"
	box "sallyport/sandbox"
	"sallyport/sandbox/datapath"
)

// kernel is a list of flows.
type kernel struct {
	flows []box.Connection
	err   error
}

func (k *kernel) Flows() ([]box.Connection, error)        { return k.flows, k.err }
func (k *kernel) ForgetFlows(list []box.Connection) error { return nil }

// bench is a Reconciler over a log on the disk.
type bench struct {
	*Reconciler
	kernel
	log    *auditlog.Log
	worker int
	lost   uint64
	told   []*audit.Event
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{worker: 1}
	dir := t.TempDir()
	var err error
	if b.log, err = auditlog.Open(dir, auditlog.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.log.Close() })
	b.Reconciler = New(Options{
		Flows: b, Dir: dir, Subnet: netip.MustParsePrefix("10.231.0.0/16"), Logger: slog.New(slog.DiscardHandler),
		Worker: func() int { return b.worker }, Stats: func() auditlog.Stats { return auditlog.Stats{Failures: b.lost} },
		Record: func(e *audit.Event) error { b.told = append(b.told, e); return nil },
	})
	return b
}

// began has a flow have begun so long ago, and this process before.
func (b *bench) began(ago time.Duration) {
	now := uptime()
	b.book.since = now - time.Hour
	b.kernel.flows = []box.Connection{{
		Sandbox: "demo", SandboxID: "id", Source: netip.MustParseAddrPort("10.231.0.10:40000"), Destination: dialled,
		Opened: now - ago, Begun: now - ago, Sent: 900, Got: 70, Packets: 5,
	}}
}

func (b *bench) states() (list []string) {
	for _, e := range b.told {
		if e.Unmapped.Sallyport.Kind == audit.KindFinding {
			list = append(list, e.Unmapped.Sallyport.State)
		}
	}
	return list
}

// A finding says all that is known of the flow, and is no record of it.
func TestFinding(t *testing.T) {
	b := newBench(t)
	b.began(9 * time.Second)
	b.look(t.Context())
	b.look(t.Context())
	if len(b.told) != 2 {
		t.Fatalf("told %v", b.states())
	}
	e, alert := b.told[0], b.told[1]
	if _, ok := sourceOf(e); ok || e.Source.IP != "10.231.0.10" || e.Source.Port != 40000 || e.Destination.IP != "198.18.0.7" || e.Destination.Port != 443 ||
		*e.Traffic != (audit.Traffic{BytesIn: 70, BytesOut: 900, Packets: 5}) {
		t.Errorf("%+v", e)
	}
	x := &alert.Unmapped.Sallyport
	if alert.ClassUID != audit.ClassFinding || alert.SeverityID != audit.SeverityHigh || !alert.IsAlert || x.State != "unrecorded-flow" || x.Sandbox != "demo" || x.SandboxID != "id" ||
		alert.FindingInfo.Related[0].UID != e.ID() || alert.Evidences[0].Source.Port != 40000 {
		t.Errorf("%+v", alert)
	}
}

// Nothing is found where there may be another reason for a missing record.
func TestTrouble(t *testing.T) {
	for _, tt := range []struct {
		name    string
		trouble func(b *bench)
	}{
		{"another worker", func(b *bench) { b.worker++ }},
		{"no worker", func(b *bench) { b.worker = 0 }},
		{"the log cannot be written", func(b *bench) { b.lost++ }},
		{"no flows can be read", func(b *bench) { b.kernel.err = errors.New("no") }},
		{"this process did not run", func(b *bench) { b.last -= time.Minute }},
		{"the log is gone", func(b *bench) { b.o.Dir += "/gone" }},
		{"a slow worker", func(b *bench) {
			b.o.Stats = func() auditlog.Stats { time.Sleep(slow + time.Millisecond); return auditlog.Stats{} }
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.began(7 * time.Second)
			b.look(t.Context())
			tt.trouble(b)
			b.look(t.Context())
			for i := range b.kernel.flows { // as if time had passed
				f := &b.kernel.flows[i]
				for _, e := range b.book.sources[f.Source].entries {
					e.flow.Begun -= 2 * time.Second
				}
				f.Begun -= 2 * time.Second
			}
			b.kernel.err, b.worker = nil, max(b.worker, 1)
			b.look(t.Context())
			b.look(t.Context())
			if len(b.told) != 0 {
				t.Errorf("told %v", b.states())
			}
		})
	}
}

// The log is read from where this process began.
func TestLogIsReadFromItsEnd(t *testing.T) {
	b := newBench(t)
	e := audit.New(audit.KindDecision, audit.ClassHTTP, 3)
	e.Source, e.Destination = &audit.Endpoint{IP: "10.231.0.10", Port: 40000}, &audit.Endpoint{Port: 443}
	must.OK(t, b.log.Append(t.Context(), e))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.Run(ctx); err != nil || b.next != 0 {
		t.Fatal(err, b.next)
	}
	b.begin(t.Context())
	if b.next != 2 {
		t.Errorf("begins at %d", b.next)
	}
	must.OK(t, b.log.Append(t.Context(), e))
	b.began(9 * time.Second)
	b.look(t.Context())
	if len(b.told) != 0 || b.next != 3 {
		t.Errorf("told %v, goes on at %d", b.states(), b.next)
	}
}

// forgetfulGateway stands for a gateway that swallows connections without a record, which
// the real one does not.
type forgetfulGateway struct {
	log *auditlog.Log
	mu  sync.Mutex
	of  map[int]bool // ports whose connections are recorded
}

func (g *forgetfulGateway) serve(l net.Listener) {
	var work sync.WaitGroup
	defer work.Wait()
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		work.Go(func() {
			defer c.Close()
			buf := make([]byte, 100)
			n, _ := c.Read(buf)
			if n == 0 {
				return
			}
			from, to := c.RemoteAddr().(*net.TCPAddr), c.LocalAddr().(*net.TCPAddr)
			g.mu.Lock()
			recorded := g.of[to.Port]
			g.mu.Unlock()
			if recorded {
				e := audit.New(audit.KindDecision, audit.ClassHTTP, 3)
				e.Source, e.Destination = &audit.Endpoint{IP: from.IP.String(), Port: from.Port}, &audit.Endpoint{Port: to.Port}
				if err := g.log.Append(context.Background(), e); err != nil {
					return
				}
			}
			_, _ = c.Write(buf[:n])
			_, _ = io.Copy(io.Discard, c)
		})
	}
}

// Real packets through the real datapath: of a connection that is recorded, one that has
// sent nothing, and one that the gateway swallows, the last is found.
func TestSwallowedConnection(t *testing.T) {
	testnet.Privileged(t)
	config := datapath.Config{Bridge: "sprec0", Subnet: netip.MustParsePrefix("10.231.0.0/16")}
	d, err := datapath.Open(config)
	must.OK(t, err)
	t.Cleanup(func() {
		if err := errors.Join(d.Close(), datapath.Remove(config)); err != nil {
			t.Error(err)
		}
	})
	space := newSpace(t, d, config)
	b := newBench(t)
	b.o.Flows, b.book = d, newBook(uptime())
	l, err := datapath.Listen()
	must.OK(t, err)
	must.OK(t, d.Steer(l))
	g := &forgetfulGateway{log: b.log, of: map[int]bool{443: true}}
	served := make(chan struct{})
	go func() { defer close(served); g.serve(l) }()
	t.Cleanup(func() { l.Close(); <-served })
	var swallowed net.Conn
	for _, to := range []string{"198.51.100.2:443", "198.51.100.2:80", "198.51.100.2:25"} {
		c := space.dial(to)
		t.Cleanup(func() { c.Close() })
		if swallowed = c; to == "198.51.100.2:80" {
			continue // and says nothing
		}
		if _, err := io.WriteString(c, "hello"); err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(time.Minute))
		if _, err := io.ReadFull(c, make([]byte, 5)); err != nil {
			t.Fatal(err)
		}
	}
	for deadline := time.Now().Add(time.Minute); len(b.told) == 0 && time.Now().Before(deadline); time.Sleep(every) {
		b.look(t.Context())
	}
	b.look(t.Context())
	if len(b.states()) != 1 {
		t.Fatalf("told %v", b.states())
	}
	e := b.told[0]
	if e.Source.Port != swallowed.LocalAddr().(*net.TCPAddr).Port || e.Destination.Port != 25 || e.Unmapped.Sallyport.Sandbox != "demo" || e.Traffic.BytesOut != 5 {
		t.Errorf("%+v", e)
	}
}

// space is a sandbox: a network namespace on the bridge.
type space struct {
	t  *testing.T
	ns netns.NsHandle
}

func newSpace(t *testing.T, d *datapath.Datapath, config datapath.Config) *space {
	t.Helper()
	s := &space{t: t}
	made := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread stays in it, and ends
		var err error
		s.ns, err = netns.New()
		made <- err
	}()
	must.OK(t, <-made)
	t.Cleanup(func() { s.ns.Close() })
	mac := net.HardwareAddr{2, 0x42, 10, 231, 0, 10}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "sprec-a"
	bridge, err := netlink.LinkByName(config.Bridge)
	must.OK(t, err)
	attrs.MasterIndex = bridge.Attrs().Index
	must.OK(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerHardwareAddr: mac, PeerNamespace: netlink.NsFd(s.ns)}))
	port, err := netlink.LinkByName(attrs.Name)
	must.OK(t, err)
	t.Cleanup(func() { netlink.LinkDel(port) })
	must.OK(t, netlink.LinkSetUp(port))
	h, err := netlink.NewHandleAt(s.ns)
	must.OK(t, err)
	defer h.Close()
	own, err := h.LinkByName("eth0")
	must.OK(t, err)
	must.OK(t, h.LinkSetUp(own))
	must.OK(t, h.AddrAdd(own, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 231, 0, 10), Mask: net.CIDRMask(16, 32)}}))
	must.OK(t, h.RouteAdd(&netlink.Route{LinkIndex: own.Attrs().Index, Gw: config.Gateway().AsSlice()}))
	must.OK(t, d.Attach(box.Endpoint{
		Sandbox: "demo", ID: "id", Generation: 7, Link: port.Attrs().Index, Address: netip.MustParseAddr("10.231.0.10"), MAC: mac.String(),
	}))
	return s
}

func (s *space) dial(to string) (c net.Conn) {
	s.t.Helper()
	made := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := netns.Set(s.ns)
		if err == nil {
			c, err = (&net.Dialer{Timeout: time.Minute}).Dial("tcp4", to)
		}
		made <- err
	}()
	must.OK(s.t, <-made)
	return c
}
