package datapath

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sallyport/internal/test/must"
	"sallyport/sandbox"
)

// dial connects from within the space; the connection outlives the thread.
func (s *space) dial(from, to string) (net.Conn, error) {
	s.t.Helper()
	return s.dialFor(patience, from, to)
}

func (s *space) dialFor(wait time.Duration, from, to string) (c net.Conn, err error) {
	s.t.Helper()
	s.do(func() error {
		dialer := net.Dialer{Timeout: wait, Control: func(_, _ string, c syscall.RawConn) error {
			return c.Control(func(fd uintptr) { unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) })
		}}
		if from != "" {
			dialer.LocalAddr = net.TCPAddrFromAddrPort(netip.MustParseAddrPort(from))
		}
		// One address, one attempt: Go dials on this thread.
		c, err = dialer.DialContext(context.Background(), "tcp4", to)
		return nil
	})
	return c, err
}

// greeted dials and returns the address that the listener says was dialled.
func greeted(s *space, to string) (string, error) {
	c, err := s.dial("", to)
	if err != nil {
		return "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	line, err := bufio.NewReader(c).ReadString('\n')
	return strings.TrimSpace(line), err
}

// refused wants that nothing answers: neither the gateway nor the host.
func refused(t *testing.T, s *space, to, who string) {
	t.Helper()
	c, err := s.dialFor(brief, "", to)
	if err == nil {
		c.Close()
		t.Errorf("%s got to %s", who, to)
	} else if !os.IsTimeout(err) {
		t.Errorf("%s dialling %s: got %v, want silence", who, to, err)
	}
}

func steered(t *testing.T, d *Datapath) *net.TCPListener {
	t.Helper()
	listener, err := Listen()
	must.OK(t, err)
	t.Cleanup(func() { listener.Close() })
	must.OK(t, d.Steer(listener))
	go echo(listener)
	return listener
}

// bridgeNetfilter is whether the kernel can pass what bridges forward to iptables. A
// module that is loaded for it goes again: elsewhere, too, bridges work otherwise with it.
func bridgeNetfilter(t *testing.T) bool {
	t.Helper()
	there := func() bool {
		_, err := os.Stat("/proc/sys/net/bridge/bridge-nf-call-iptables")
		return err == nil
	}
	if !there() && exec.Command("modprobe", "br_netfilter").Run() == nil {
		t.Cleanup(func() { must.OK(t, exec.Command("modprobe", "-r", "br_netfilter").Run()) })
	}
	return there()
}

func TestSteer(t *testing.T) {
	calls := []string{"absent"}
	if bridgeNetfilter(t) {
		calls = []string{"0", "1"}
	}
	for _, call := range calls {
		t.Run("bridge-nf-call-iptables="+call, func(t *testing.T) {
			l := newLab(t)
			d := l.open(t)
			if call != "absent" {
				sysctl(t, "bridge/bridge-nf-call-iptables", call)
			}
			attachBoth(t, d, l)
			steered(t, d)
			for _, to := range []string{
				"198.51.100.2:443", "203.0.113.9:8443", "169.254.169.254:80", "198.18.0.1:22",
				"198.51.100.1:22", "10.231.0.1:443", "10.231.0.1:9999",
			} {
				if got, err := greeted(l.alice, to); got != to {
					t.Errorf("dialling %s: got to %q, %v", to, got, err)
				}
			}
			refused(t, l.alice, "10.231.0.11:80", "alice")
			refused(t, l.stranger, "198.51.100.2:443", "the stranger")
		})
	}
}

// The source address of an accepted connection is the sandbox's: the gateway
// knows it by that.
func TestSteerSource(t *testing.T) {
	l := newLab(t)
	d := l.open(t)
	attachBoth(t, d, l)
	listener := listening(t, d)
	c, err := l.bob.dial("", "198.51.100.2:443")
	must.OK(t, err)
	defer c.Close()
	got, err := listener.Accept()
	must.OK(t, err)
	defer got.Close()
	if ip := got.RemoteAddr().(*net.TCPAddr).AddrPort().Addr(); ip != bob.Address {
		t.Errorf("got a connection from %s, want %s", ip, bob.Address)
	}
}

// Large segments and checksums left to the device pass both ways; also those of
// more than 64 KB (BIG TCP), whose length the IPv4 header cannot say.
func TestSteerBulk(t *testing.T) {
	for _, size := range []int{65536, 180_000} {
		t.Run(fmt.Sprintf("segments of %d at most", size), func(t *testing.T) {
			l := newLab(t)
			d := l.open(t)
			must.OK(t, l.alice.handle.LinkSetGSOIPv4MaxSize(l.alice.link, size))
			for _, i := range []int{l.alice.host, d.bridge} {
				port, err := netlink.LinkByIndex(i)
				must.OK(t, err)
				must.OK(t, netlink.LinkSetGSOIPv4MaxSize(port, size))
			}
			attachBoth(t, d, l)
			steered(t, d)
			bulk(t, l, d)
		})
	}
}

func bulk(t *testing.T, l *lab, d *Datapath) {
	t.Helper()
	c, err := l.alice.dial("", "198.51.100.2:443")
	must.OK(t, err)
	defer c.Close()
	must.OK(t, c.SetDeadline(time.Now().Add(5*patience)))
	r := bufio.NewReaderSize(c, 1<<20)
	_, err = r.ReadString('\n')
	must.OK(t, err)
	want := make([]byte, 64<<20)
	rand.Read(want)
	began := time.Now()
	sent := make(chan error, 1)
	go func() {
		_, err := c.Write(want)
		sent <- err
	}()
	got := make([]byte, len(want))
	_, err = io.ReadFull(r, got)
	must.OK(t, err)
	must.OK(t, <-sent)
	if !bytes.Equal(got, want) {
		t.Error("the echo differs")
	}
	if n := dropped(t, d)[Malformed].Packets; n != 0 {
		t.Errorf("%d frames were dropped on the way", n)
	}
	t.Logf("%d MiB there and back, %.0f MB/s each way, %d frames", len(want)>>20, float64(len(want))/1e6/time.Since(began).Seconds(), counters(t, d).Sent.Packets)
}

// The daemon reaches a server in the sandbox, and only such a reply passes
// unsteered.
func TestDaemonDials(t *testing.T) {
	l := newLab(t)
	d := l.open(t)
	attachBoth(t, d, l)
	var server net.Listener
	l.alice.do(func() (err error) {
		server, err = net.Listen("tcp4", "10.231.0.10:8080")
		return err
	})
	defer server.Close()
	go echo(server)
	for _, moment := range []string{"no listener", "with a listener"} {
		if moment == "with a listener" {
			steered(t, d)
		}
		c, err := dialDaemon(netip.MustParseAddrPort("10.231.0.10:8080"))
		if err != nil {
			t.Fatalf("%s: %v", moment, err)
		}
		c.SetDeadline(time.Now().Add(patience))
		want := bytes.Repeat([]byte("from the host\n"), 100_000)
		go c.Write(want)
		r := bufio.NewReader(c)
		r.ReadString('\n')
		got := make([]byte, len(want))
		if _, err := io.ReadFull(r, got); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: the echo differs: %v", moment, err)
		}
		c.Close()
	}
}

func TestResolver(t *testing.T) {
	l := newLab(t)
	d := l.open(t)
	attachBoth(t, d, l)
	steered(t, d)
	pc, tcp := resolver(t)
	go func() {
		b := make([]byte, 512)
		for {
			n, from, err := pc.ReadFrom(b)
			if err != nil {
				return
			}
			pc.WriteTo(append([]byte("answer to "), b[:n]...), from)
		}
	}()
	go echo(tcp)

	var c net.Conn
	l.alice.do(func() (err error) {
		c, err = net.Dial("udp4", gateway.String()+":53")
		return err
	})
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	fmt.Fprint(c, "question")
	b := make([]byte, 512)
	n, err := c.Read(b)
	if string(b[:n]) != "answer to question" {
		t.Errorf("over UDP: got %q, %v", b[:n], err)
	}
	if got, err := greeted(l.alice, gateway.String()+":53"); got != gateway.String()+":53" {
		t.Errorf("over TCP: got %q, %v", got, err)
	}
}

// The gateway closes first, and the sandbox uses the same port again at once.
func TestSteerPortAgain(t *testing.T) {
	l := newLab(t)
	d := l.open(t)
	attachBoth(t, d, l)
	listener := listening(t, d)
	for i := range 5 {
		// The port is taken for a minute where TIME-WAIT is in the way.
		c, err := l.alice.dialFor(20*time.Second, "10.231.0.10:40001", "198.51.100.2:443")
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		server, err := listener.Accept()
		must.OK(t, err)
		must.OK(t, server.Close()) // leaves TIME-WAIT at the gateway
		c.SetDeadline(time.Now().Add(patience))
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Fatalf("connection %d: %v", i, err)
		}
		must.OK(t, c.Close())
	}
}

func TestKilledDaemon(t *testing.T) {
	l := newLab(t)
	d := l.open(t)
	attachBoth(t, d, l)
	must.OK(t, d.Close())

	first := startDaemon(t)
	if got, err := greeted(l.alice, "198.51.100.2:443"); err != nil {
		t.Fatalf("with a daemon: got %q, %v", got, err)
	}
	must.OK(t, first.Process.Kill())
	first.Wait()
	l.none(t, "after kill -9")
	refused(t, l.alice, "198.51.100.2:443", "alice after kill -9")

	startDaemon(t)
	for _, s := range []*space{l.alice, l.bob} {
		if got, err := greeted(s, "198.51.100.2:443"); err != nil {
			t.Errorf("with the next daemon: got %q, %v", got, err)
		}
	}
	l.none(t, "with the next daemon")
}

// dialDaemon connects as the daemon does.
func dialDaemon(to netip.AddrPort) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return Dial(ctx, to)
}

// resolver has the sockets of the daemon's.
func resolver(t *testing.T) (net.PacketConn, net.Listener) {
	t.Helper()
	config := net.ListenConfig{Control: Mark}
	config.SetMultipathTCP(false)
	pc, err := config.ListenPacket(t.Context(), "udp4", gateway.String()+":53")
	must.OK(t, err)
	t.Cleanup(func() { pc.Close() })
	tcp, err := config.Listen(t.Context(), "tcp4", gateway.String()+":53")
	must.OK(t, err)
	t.Cleanup(func() { tcp.Close() })
	return pc, tcp
}

func sorted(t *testing.T, d *Datapath) []sandbox.Endpoint {
	t.Helper()
	got, err := d.Endpoints()
	must.OK(t, err)
	slices.SortFunc(got, func(a, b sandbox.Endpoint) int { return int(a.Generation) - int(b.Generation) })
	return got
}
