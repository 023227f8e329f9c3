package datapath

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	agent "sallyport/sandbox/agent/wire"

	"sallyport/internal/test/must"
)

// Of an offline endpoint the port passes ARP and what can be an answer of its
// agent's, and the bridge's program only what is one.
func TestOffline(t *testing.T) {
	d := programs(t)
	off := alice
	off.Offline = true
	admit(t, d, off, loopback)
	for name, c := range map[string]struct {
		change func(*packet)
		passes bool
	}{
		"TCP":                      {func(*packet) {}, false},
		"TCP to the gateway":       {func(p *packet) { p.daddr = gateway }, false},
		"from its agent's port":    {func(p *packet) { p.sport = 1023 }, false},
		"DNS":                      {func(p *packet) { *p = aliceDNS() }, false},
		"DNS over TCP":             {func(p *packet) { p.daddr, p.dport = gateway, 53 }, false},
		"its agent's answer":       {func(p *packet) { p.daddr, p.sport = gateway, 1023 }, true},
		"ARP":                      {func(p *packet) { *p = aliceARP() }, true},
		"UDP from 1023":            {func(p *packet) { p.daddr, p.sport, p.proto = gateway, 1023, protoUDP }, false},
		"an answer with bob's MAC": {func(p *packet) { p.daddr, p.sport, p.src = gateway, 1023, hw(bob) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := aliceTCP()
			c.change(&p)
			verdict, mark := run(t, d.objs.PortIn, p, skb{})
			if passed := verdict == redirect && mark == off.Generation; passed != c.passes {
				t.Errorf("got verdict %d, want it to pass: %v", int32(verdict), c.passes)
			}
			// No socket of this host is waiting for any of it.
			verdict, _ = run(t, d.objs.BridgeIn, p, skb{skbMark: off.Generation})
			if passed := verdict == next; passed != (p.arp != nil) {
				t.Errorf("the bridge: got verdict %d", int32(verdict))
			}
		})
	}
	if agent.Port != 1023 {
		t.Error("the agent's port is another one than the programs'")
	}
}

// On the wire: the host reaches the agent of a sandbox that is offline, which
// reaches nobody.
func TestOfflineOnTheWire(t *testing.T) {
	l := newLab(t)
	d := l.open(t)
	l.aliceEnd.Offline = true
	attachBoth(t, d, l)
	if ends, err := d.Endpoints(); err != nil || len(ends) != 2 || !(ends[0].Offline != ends[1].Offline) {
		t.Fatalf("got %+v, %v, want one of them offline", ends, err)
	}
	var listener net.Listener
	l.alice.do(func() (err error) {
		listener, err = net.Listen("tcp4", fmt.Sprintf("%s:1023", alice.Address))
		return err
	})
	defer listener.Close()
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(c, "here")
			c.Close()
		}
	}()
	c, err := dialDaemon(netip.AddrPortFrom(alice.Address, 1023))
	must.OK(t, err)
	b := make([]byte, 4)
	_, err = c.Read(b)
	must.OK(t, err)
	c.Close()

	// Nobody, from whatever port, though the gateway listens.
	listener.Close()
	steered, err := Listen()
	must.OK(t, err)
	defer steered.Close()
	must.OK(t, d.Steer(steered))
	reuse := func(_, _ string, c syscall.RawConn) (err error) {
		_ = c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) })
		return err
	}
	reached := func(wait time.Duration, to netip.AddrPort, from int) error {
		var err error
		l.alice.do(func() error {
			dialer := net.Dialer{LocalAddr: &net.TCPAddr{Port: from}, Control: reuse, Timeout: wait}
			var c net.Conn
			if c, err = dialer.Dial("tcp4", to.String()); err == nil {
				c.Close()
			}
			return nil
		})
		return err
	}
	for _, to := range []netip.AddrPort{
		netip.AddrPortFrom(gateway, 80), netip.AddrPortFrom(outside, 443), netip.AddrPortFrom(bob.Address, 1023),
	} {
		for _, from := range []int{0, 1023} {
			if err := reached(brief, to, from); !silence(err) {
				t.Errorf("%v from port %d: got %v, want silence", to, from, err)
			}
		}
	}
	// The same way is open when she is not offline.
	l.aliceEnd.Offline = false
	must.OK(t, d.Attach(l.aliceEnd))
	if err := reached(patience, netip.AddrPortFrom(gateway, 80), 1023); err != nil {
		t.Errorf("online: %v", err)
	}
}

func silence(err error) bool {
	var e net.Error
	return errors.As(err, &e) && e.Timeout()
}
