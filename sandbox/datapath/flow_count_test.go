package datapath

import (
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/internal/test/must"
	"sallyport/sandbox"
)

func uptime(t *testing.T) time.Duration {
	t.Helper()
	var now unix.Timespec
	must.OK(t, unix.ClockGettime(unix.CLOCK_MONOTONIC, &now))
	return time.Duration(now.Nano())
}

// only returns the one flow that is listed.
func only(t *testing.T, d *Datapath) sandbox.Connection {
	t.Helper()
	all, err := d.Flows()
	must.OK(t, err)
	if len(all) != 1 {
		t.Fatalf("got %d flows, want one: %+v", len(all), all)
	}
	return all[0]
}

// A sandbox's bytes both ways are counted exactly, and named as it dialled.
func TestFlows(t *testing.T) {
	l := newLab(t)
	d := l.open(t)
	attachBoth(t, d, l)
	listener := listening(t, d)
	before := uptime(t)
	c, err := l.alice.dial("", "198.51.100.2:443")
	must.OK(t, err)
	defer c.Close()
	server, err := listener.Accept()
	must.OK(t, err)
	defer server.Close()
	f := only(t, d)
	if f.Sandbox != "alice" || f.SandboxID != "id-of-alice" || f.Source.String() != c.LocalAddr().String() || f.Destination.String() != "198.51.100.2:443" {
		t.Errorf("got %+v from %v", f, c.LocalAddr())
	}
	if f.Begun != 0 || f.Sent != 0 || f.Got != 0 || f.Closed || f.Opened < before || f.Opened > uptime(t) {
		t.Errorf("got %+v at %v before a byte", f, uptime(t))
	}
	const sent, got = 3 << 20, 5 << 20 // in segments that are larger than a frame
	go io.CopyN(c, zeros{}, sent)
	_, err = io.CopyN(io.Discard, server, sent)
	must.OK(t, err)
	go io.CopyN(server, zeros{}, got)
	_, err = io.CopyN(io.Discard, c, got)
	must.OK(t, err)
	eventually(t, "all is counted", func() bool { f = only(t, d); return f.Sent == sent && f.Got == got })
	if f.Begun < f.Opened || f.Packets == 0 {
		t.Errorf("got %+v", f)
	}
	must.OK(t, c.(*net.TCPConn).CloseWrite())
	eventually(t, "the sandbox's end is a byte", func() bool { f = only(t, d); return f.Sent == sent+1 && !f.Closed })
	must.OK(t, server.Close())
	eventually(t, "it is closed", func() bool { f = only(t, d); return f.Closed })
	must.OK(t, d.ForgetFlows([]sandbox.Connection{f, f}))
	if all, err := d.Flows(); err != nil || len(all) != 0 {
		t.Errorf("got %v, %v after all were forgotten", all, err)
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// A connection that only ends has sent nothing.
func TestFlowWithoutAByte(t *testing.T) {
	l := newLab(t)
	d := l.open(t)
	attachBoth(t, d, l)
	listener := listening(t, d)
	c, err := l.alice.dial("", "198.51.100.2:443")
	must.OK(t, err)
	must.OK(t, c.Close())
	server, err := listener.Accept()
	must.OK(t, err)
	_, err = io.Copy(io.Discard, server)
	must.OK(t, err)
	must.OK(t, server.Close())
	var f sandbox.Connection
	eventually(t, "it is closed", func() bool { f = only(t, d); return f.Closed })
	if f.Begun != 0 || f.Sent > 1 {
		t.Errorf("got %+v", f)
	}
}

// Connections of the daemon's, and questions to the resolver, are no flows.
func TestNoFlows(t *testing.T) {
	l := newLab(t)
	d := l.open(t)
	attachBoth(t, d, l)
	steered(t, d)
	_, questions := resolver(t)
	go echo(questions)
	if _, err := greeted(l.alice, gateway.String()+":53"); err != nil {
		t.Error(err)
	}
	var inside net.Listener
	l.alice.do(func() (err error) { inside, err = net.Listen("tcp4", alice.Address.String()+":1023"); return err })
	defer inside.Close()
	go echo(inside)
	c, err := Dial(t.Context(), netip.AddrPortFrom(alice.Address, 1023))
	must.OK(t, err)
	defer c.Close()
	if _, err := c.Read(make([]byte, 1)); err != nil {
		t.Error(err)
	}
	if all, err := d.Flows(); err != nil || len(all) != 0 {
		t.Errorf("got %+v, %v", all, err)
	}
}

// A sandbox cannot make a connection look like another, nor count what was refused.
func TestFlowTricksAreNotCounted(t *testing.T) {
	l := newLab(t)
	d := l.open(t)
	attachBoth(t, d, l)
	l.hush(t)
	listener := listening(t, d)
	f := &flow{port: 40123, to: 443, host: outside}
	l.join(t, listener, l.answers(), f)
	opened := only(t, d).Opened
	l.alice.send(f.data(0, "hello"))
	eventually(t, "five bytes", func() bool { return only(t, d).Sent == 5 })
	begun := only(t, d).Begun
	for name, frame := range map[string][]byte{
		"a SYN in the middle":       f.segment(-1, syn, ""),
		"the same again":            f.data(0, "hello"),
		"beyond the window":         f.data(1<<24, "XXXXX"),
		"a reset beside the window": f.segment(1<<24, rst, ""),
		"an acknowledgement of what was never sent": f.segment(5, psh|ack, "XXXXX", func(tcp []byte) {
			binary.BigEndian.PutUint32(tcp[8:], binary.BigEndian.Uint32(tcp[8:])+1<<20)
		}),
	} {
		l.alice.send(frame)
		settle()
		if got := only(t, d); got.Opened != opened || got.Begun != begun || got.Sent != 5 || got.Closed {
			t.Errorf("%s: got %+v", name, got)
		}
	}
	l.alice.send(f.data(5, " world"))
	eventually(t, "eleven bytes", func() bool { return only(t, d).Sent == 11 })
}

// The same addresses and ports begin another flow when the host accepts them again.
func TestFlowAgain(t *testing.T) {
	l := newLab(t)
	d := l.open(t)
	attachBoth(t, d, l)
	listener := listening(t, d)
	var opened time.Duration
	for range 2 {
		c, err := l.alice.dial(alice.Address.String()+":40555", "198.51.100.2:443")
		must.OK(t, err)
		raw, err := c.(*net.TCPConn).SyscallConn()
		must.OK(t, err)
		must.OK(t, raw.Control(func(fd uintptr) {
			unix.SetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
		}))
		_, err = io.WriteString(c, "hello")
		must.OK(t, err)
		server, err := listener.Accept()
		must.OK(t, err)
		eventually(t, "five bytes", func() bool { return only(t, d).Sent == 5 })
		if f := only(t, d); f.Opened <= opened {
			t.Errorf("got %+v, the one before was opened at %v", f, opened)
		} else {
			opened = f.Opened
		}
		must.OK(t, c.Close()) // by a reset
		server.Close()
	}
}

// The daemon's probes of a woken sandbox's connections have numbers of no connection, and
// change no count.
func TestProbesAreNotCounted(t *testing.T) {
	l := newLab(t)
	d := l.open(t)
	attachBoth(t, d, l)
	listener := listening(t, d)
	c, err := l.alice.dial("", "198.51.100.2:443")
	must.OK(t, err)
	defer c.Close()
	server, err := listener.Accept()
	must.OK(t, err)
	defer server.Close()
	_, err = c.Write([]byte("four"))
	must.OK(t, err)
	_, err = io.ReadFull(server, make([]byte, 4))
	must.OK(t, err)
	eventually(t, "what was sent is counted", func() bool { return only(t, d).Sent == 4 })
	before := only(t, d)
	far, near := netip.MustParseAddrPort(c.LocalAddr().String()), netip.MustParseAddrPort("198.51.100.2:443")
	for range 20 {
		must.OK(t, ProbeFlows([]sandbox.Flow{{Sandbox: far, Peer: near}}))
	}
	_, err = server.Write([]byte("answer"))
	must.OK(t, err)
	_, err = io.ReadFull(c, make([]byte, 6))
	must.OK(t, err)
	if f := only(t, d); f.Sent != before.Sent || f.Got != 6 || f.Packets == 0 {
		t.Errorf("got %+v after probes, %+v before", f, before)
	}
}
