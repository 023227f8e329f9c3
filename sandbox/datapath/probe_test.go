package datapath

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"sallyport/internal/test/must"
	"sallyport/sandbox"
)

// newProbed is a lab in which alice has a service on two ports, and servicePort is probed.
func newProbed(t *testing.T, offline bool) (l *lab, d *Datapath, probed, other netip.AddrPort) {
	t.Helper()
	l = newLab(t)
	d = l.open(t)
	l.aliceEnd.ProbePorts, l.aliceEnd.Offline = sandbox.ProbePorts{9, servicePort}, offline
	attachBoth(t, d, l)
	for i, port := range []*netip.AddrPort{&probed, &other} {
		*port = netip.AddrPortFrom(alice.Address, servicePort+uint16(i))
		var server net.Listener
		l.alice.do(func() (err error) {
			server, err = net.Listen("tcp4", port.String())
			return err
		})
		t.Cleanup(func() { server.Close() })
		go echo(ending{server, t.Context()})
	}
	return l, d, probed, other
}

// ending ends the connections that it has accepted, of an endpoint that is detached too.
type ending struct {
	net.Listener
	with context.Context
}

func (l ending) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		context.AfterFunc(l.with, func() { c.Close() })
	}
	return c, err
}

// probe connects as a process of this host does, and greets until it is closed.
func probe(wait time.Duration, to netip.AddrPort) (net.Conn, *bufio.Reader, error) {
	c, err := net.DialTimeout("tcp4", to.String(), wait)
	if err != nil {
		return nil, nil, err
	}
	r := bufio.NewReader(c)
	return c, r, greet(wait, c, r)
}

// abort ends a connection that is cut off, or will be. The kernel would go on trying to say
// so, and the next lab's sandbox, which has the same address, would answer that.
func abort(c net.Conn) {
	_ = c.(*net.TCPConn).SetLinger(0)
	_ = c.Close()
}

func greet(wait time.Duration, c net.Conn, r *bufio.Reader) error {
	c.SetDeadline(time.Now().Add(wait))
	fmt.Fprintln(c, "still there?")
	for {
		line, err := r.ReadString('\n')
		if err != nil || line == "still there?\n" {
			return err
		}
	}
}

// Root's processes reach the probe ports, whether the sandbox is offline or not and whether
// a process has the datapath open or not. None reaches another port, no other user any.
func TestProbePorts(t *testing.T) {
	for _, offline := range []bool{false, true} {
		t.Run(fmt.Sprintf("offline %v", offline), func(t *testing.T) {
			l, d, probed, other := newProbed(t, offline)
			before := dropped(t, d)
			c, r, err := probe(patience, probed)
			if err != nil {
				t.Fatalf("the probe port: %v", err)
			}
			defer abort(c)
			if after := dropped(t, d); !cmp.Equal(before, after) {
				t.Errorf("dropped %v", cmp.Diff(before, after))
			}
			if flows, err := d.Flows(); err != nil || slices.ContainsFunc(flows, func(f sandbox.Connection) bool { return f.Source == probed }) {
				t.Errorf("it counts as a connection of the sandbox's: %v, %v", flows, err)
			}
			// The end of a connection too: the sandbox's side of it ends after this one's.
			short, _, err := probe(patience, probed)
			must.OK(t, err)
			must.OK(t, short.Close())
			settle()
			if after := dropped(t, d); !cmp.Equal(before, after) {
				t.Errorf("dropped at the end %v", cmp.Diff(before, after))
			}
			if _, _, err := probe(brief, other); !silence(err) {
				t.Errorf("another port: got %v, want silence", err)
			}
			knocks := exec.Command("/proc/self/exe")
			knocks.Env = append(os.Environ(), envKnock+"="+probed.String())
			knocks.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: unprivileged, Gid: unprivileged}}
			if out, err := knocks.CombinedOutput(); err != nil {
				t.Errorf("another user: %v: %s", err, strings.TrimSpace(string(out)))
			}
			for who, s := range map[string]*space{"bob": l.bob, "the stranger": l.stranger, "outside": l.outside} {
				refused(t, s, probed.String(), who)
			}
			elsewhere := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(198, 51, 100, 1)}, Timeout: brief}
			if _, err := elsewhere.Dial("tcp4", probed.String()); !silence(err) {
				t.Errorf("from another address of the host: got %v, want silence", err)
			}
			if bridgeNetfilter(t) {
				sysctl(t, "bridge/bridge-nf-call-iptables", "1")
				if c, _, err := probe(patience, probed); err != nil {
					t.Errorf("through bridge netfilter: %v", err)
				} else {
					abort(c)
				}
				sysctl(t, "bridge/bridge-nf-call-iptables", "0")
			}

			must.OK(t, d.Close())
			if err := greet(patience, c, r); err != nil {
				t.Errorf("an open connection without a process: %v", err)
			}
			if c, _, err := probe(patience, probed); err != nil {
				t.Errorf("without a process: %v", err)
			} else {
				abort(c)
			}
			d, err = Open(l.config)
			must.OK(t, err)
			t.Cleanup(func() { d.Close() })
			next := drops(t, d)
			if diff := cmp.Diff([]sandbox.Endpoint{l.aliceEnd, l.bobEnd}, sorted(t, d), cmpopts.EquateComparable(netip.Addr{})); diff != "" {
				t.Error(diff)
			}
			if _, _, err := probe(brief, other); !silence(err) {
				t.Errorf("another port of the next process's: got %v, want silence", err)
			}
			for got := next(HostProcess); got.Destination != other; got = next(HostProcess) {
				if got.Sandbox != alice.Sandbox {
					t.Errorf("told of %+v", got)
				}
			}
			l.aliceEnd.ProbePorts = sandbox.ProbePorts{servicePort + 1}
			must.OK(t, d.Attach(l.aliceEnd))
			if err := greet(brief, c, r); !silence(err) {
				t.Errorf("an open connection to a port that is no longer one: got %v, want silence", err)
			}
			open, r, err := probe(patience, other)
			must.OK(t, err)
			defer abort(open)
			must.OK(t, d.Detach(alice.Generation))
			if err := greet(brief, open, r); !silence(err) {
				t.Errorf("an open connection after Detach: got %v, want silence", err)
			}
			l.aliceEnd.ProbePorts = sandbox.ProbePorts{}
			must.OK(t, d.Attach(l.aliceEnd))
			if _, _, err := probe(brief, other); !silence(err) {
				t.Errorf("after Detach: got %v, want silence", err)
			}
		})
	}
}

// Root sends a probe port TCP in whole packets, and no listener's answer.
func TestProbePortsTakeNothingElse(t *testing.T) {
	_, d, _, _ := newProbed(t, false)
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	must.OK(t, err)
	defer unix.Close(fd)
	for name, tt := range map[string]struct {
		change func(*packet)
		passes bool
		mark   int
	}{
		"a SYN":                  {func(p *packet) {}, true, 0},
		"of another mark":        {func(p *packet) {}, true, 0x4000},
		"of the daemon's mark":   {func(p *packet) {}, false, routeMark}, // which opens nothing
		"an ACK":                 {func(p *packet) { p.flags = ack }, true, 0},
		"a RST":                  {func(p *packet) { p.flags = rst }, true, 0},
		"a SYN that answers one": {func(p *packet) { p.flags = syn | ack }, false, 0},
		"UDP":                    {func(p *packet) { p.proto = protoUDP }, false, 0},
		"SCTP":                   {func(p *packet) { p.proto = protoSCTP }, false, 0},
		"ICMP":                   {func(p *packet) { p.proto, p.icmp = protoICMP, 8 }, false, 0},
		"a first fragment":       {func(p *packet) { p.fragment = 0x2000 }, false, 0},
		"with options":           {func(p *packet) { p.options = []byte{1, 1, 1, 0} }, false, 0},
		"another port":           {func(p *packet) { p.dport++ }, false, 0},
		"port 0":                 {func(p *packet) { p.dport = 0 }, false, 0},
		"another's address":      {func(p *packet) { p.saddr = outside }, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			p := packet{saddr: gateway, daddr: alice.Address, proto: protoTCP, sport: 40000, dport: servicePort}
			tt.change(&p)
			before := counters(t, d)
			must.OK(t, setMark(fd, tt.mark))
			must.OK(t, unix.Sendto(fd, p.network(), 0, &unix.SockaddrInet4{Addr: alice.Address.As4()}))
			after := counters(t, d)
			var drops uint64
			for r, n := range after.Dropped {
				if !r.FromSandbox() {
					drops += n.Packets - before.Dropped[r].Packets
				}
			}
			if passed := drops == 0 && after.Delivered.Packets > before.Delivered.Packets; passed != tt.passes {
				t.Errorf("it passes: %v, want %v", passed, tt.passes)
			}
		})
	}
}

// Alice begins nothing by her probe port: what she sends from there reaches no listener of
// this host, and no socket that waits for an answer takes her SYN for one.
func TestProbePortBeginsNothing(t *testing.T) {
	l, d, _, _ := newProbed(t, false)
	steered(t, d)
	service, err := net.Listen("tcp4", "0.0.0.0:9443")
	must.OK(t, err)
	defer service.Close()
	for _, from := range []int{servicePort, 9} {
		c, err := l.alice.dial(fmt.Sprintf("%s:%d", alice.Address, from), gateway.String()+":9443")
		if err != nil {
			continue // her own service has the port
		}
		if line, err := bufio.NewReader(c).ReadString('\n'); line != gateway.String()+":9443\n" {
			t.Errorf("from %d: got %q, %v, want the gateway's greeting", from, line, err)
		}
		c.Close()
	}
	l.alice.send(packet{
		dst: bridgeMAC(testBridge), src: hw(alice), saddr: alice.Address, daddr: gateway, proto: protoTCP, sport: servicePort, dport: 9443,
	}.bytes())
	must.OK(t, service.(*net.TCPListener).SetDeadline(time.Now().Add(300*time.Millisecond)))
	if c, err := service.Accept(); err == nil {
		t.Errorf("a service of the host's was reached from %s", c.RemoteAddr())
	}

	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	must.OK(t, err)
	defer unix.Close(fd)
	must.OK(t, unix.Bind(fd, &unix.SockaddrInet4{Addr: gateway.As4(), Port: 30008}))
	l.alice.do(func() error { return exec.Command("ip", "route", "add", "blackhole", gateway.String()).Run() })
	if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: alice.Address.As4(), Port: servicePort}); !errors.Is(err, unix.EINPROGRESS) {
		t.Fatal(err)
	}
	l.alice.send(packet{
		dst: bridgeMAC(testBridge), src: hw(alice), saddr: alice.Address, daddr: gateway, proto: protoTCP, sport: servicePort, dport: 30008,
	}.bytes())
	settle()
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	must.OK(t, err)
	if info.State != unix.BPF_TCP_SYN_SENT {
		t.Errorf("a SYN of hers was taken for an answer: state %d", info.State)
	}
}

// Root's segments to a probe port are not counted for a connection of alice's that had the
// same ends.
func TestProbeIsNoFlow(t *testing.T) {
	l := newLab(t)
	d := l.open(t)
	l.aliceEnd.ProbePorts = sandbox.ProbePorts{servicePort}
	attachBoth(t, d, l)
	steered(t, d)
	hers, err := l.alice.dial(fmt.Sprintf("%s:%d", alice.Address, servicePort), gateway.String()+":30009")
	must.OK(t, err)
	_, err = bufio.NewReader(hers).ReadString('\n')
	must.OK(t, err)
	abort(hers)
	settle()
	flow := func() sandbox.Connection {
		t.Helper()
		all, err := d.Flows()
		must.OK(t, err)
		for _, f := range all {
			if f.Destination.Port() == 30009 {
				return f
			}
		}
		t.Fatalf("no flow of hers: %v", all)
		return sandbox.Connection{}
	}
	before := flow()
	from := net.Dialer{LocalAddr: &net.TCPAddr{IP: gateway.AsSlice(), Port: 30009}, Timeout: patience}
	c, err := from.Dial("tcp4", serviceIn(t, l.alice, alice.Address).String())
	must.OK(t, err)
	must.OK(t, greet(patience, c, bufio.NewReader(c)))
	must.OK(t, c.Close())
	if after := flow(); after != before {
		t.Errorf("got %+v, before %+v", after, before)
	}
}
