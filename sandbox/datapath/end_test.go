package datapath

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"sallyport/internal/test/must"
	"sallyport/sandbox"
)

// The next sandbox with an address gets nothing of what this host's sockets still have for the
// one before: the daemon's, whether open or closed with something left to send, and root's to
// a probe port. Others are left alone.
func TestEndFlows(t *testing.T) {
	l, d, probed, _ := newProbed(t, false)
	next := l.bobEnd
	next.Address, next.Generation, next.ProbePorts = alice.Address, bob.Generation+100, sandbox.ProbePorts{servicePort}
	must.OK(t, d.Detach(bob.Generation))
	conns := map[string]net.Conn{}
	connect := func(what string, dial func() (net.Conn, error)) *bufio.Reader {
		c, err := dial()
		must.OK(t, err)
		t.Cleanup(func() { abort(c) })
		r := bufio.NewReader(c)
		must.OK(t, greet(patience, c, r))
		conns[what] = c
		return r
	}
	connect("the daemon's", func() (net.Conn, error) { return Dial(t.Context(), probed) })
	connect("the daemon's that is closed", func() (net.Conn, error) { return Dial(t.Context(), probed) })
	connect("root's", func() (net.Conn, error) { return net.DialTimeout("tcp4", probed.String(), patience) })
	host, err := net.Listen("tcp4", "127.0.0.1:0")
	must.OK(t, err)
	go echo(ending{host, t.Context()})
	defer host.Close()
	r := connect("another", func() (net.Conn, error) { return net.Dial("tcp4", host.Addr().String()) })
	another := conns["another"]
	delete(conns, "another")

	listener := listening(t, d)
	waiting, err := l.alice.dial("", "198.51.100.2:443")
	must.OK(t, err)
	defer waiting.Close()

	must.OK(t, d.Detach(alice.Generation))
	for what, c := range conns {
		fmt.Fprintf(c, "for alice, on %s", what)
	}
	must.OK(t, conns["the daemon's that is closed"].Close())
	if flows, err := Flows(alice.Address); err != nil || len(flows) != len(conns)+1 {
		t.Fatalf("got %v, %v, want %d", flows, err, len(conns)+1)
	}
	must.OK(t, d.EndFlows(alice.Address))
	if flows, err := Flows(alice.Address); err != nil || len(flows) > 0 {
		t.Errorf("left are %v, %v", flows, err)
	}
	// One that waited for the gateway is over before that takes it, which can see so.
	server, err := listener.Accept()
	must.OK(t, err)
	defer server.Close()
	raw, err := server.(*net.TCPConn).SyscallConn()
	must.OK(t, err)
	must.OK(t, raw.Control(func(fd uintptr) {
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err != nil || info.State != unix.BPF_TCP_CLOSE {
			t.Errorf("one that waited: state %d, %v", info.State, err)
		}
	}))
	leaked := l.bob.listen(func(f []byte) bool { return bytes.Contains(f, []byte("for alice")) })
	must.OK(t, d.Attach(next))
	for what, c := range conns {
		fmt.Fprintf(c, "for alice, on %s", what)
	}
	settle()
	if len(leaked) > 0 {
		t.Errorf("the next one got %q", <-leaked)
	}
	if err := greet(patience, another, r); err != nil {
		t.Errorf("another connection: %v", err)
	}
}
