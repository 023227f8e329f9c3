package datapath

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/internal/test/must"
	"sallyport/sandbox"
)

// The kernel hands a SYN for a connection in TIME-WAIT to a listener of the host, if there
// is one (RFC 9293, 3.6.1; TCP_TW_SYN of Linux), and chooses a sequence number for it that
// the other end can know. A sandbox gets neither the listener nor a connection.
func TestSYNInTimeWait(t *testing.T) {
	for name, tt := range map[string]struct {
		from uint16
		port uint16 // of the host
		// leave has this host end a connection of alice's with that port.
		leave func(t *testing.T, l *lab, listener net.Listener)
	}{
		"a steered connection": {40001, 9443, func(t *testing.T, l *lab, listener net.Listener) {
			c, err := l.alice.dial("10.231.0.10:40001", gateway.String()+":9443")
			must.OK(t, err)
			defer c.Close()
			server, err := listener.Accept()
			must.OK(t, err)
			must.OK(t, server.Close())
			c.SetDeadline(time.Now().Add(patience))
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
		}},
		"a probe": {servicePort, 9444, func(t *testing.T, l *lab, _ net.Listener) {
			from := net.Dialer{Timeout: patience, LocalAddr: &net.TCPAddr{IP: gateway.AsSlice(), Port: 9444}, Control: func(_, _ string, c syscall.RawConn) error {
				return c.Control(func(fd uintptr) { unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) })
			}}
			c, err := from.Dial("tcp4", serviceIn(t, l.alice, alice.Address).String())
			must.OK(t, err)
			_, err = c.Read(make([]byte, 1000))
			must.OK(t, err)
			must.OK(t, c.Close())
		}},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			d := l.open(t)
			l.aliceEnd.ProbePorts = sandbox.ProbePorts{servicePort}
			attachBoth(t, d, l)
			listener := listening(t, d)
			ends := l.alice.listen(func(f []byte) bool {
				return len(f) >= 54 && f[12] == 8 && f[13] == 0 && f[23] == protoTCP && binary.BigEndian.Uint16(f[34:]) == tt.port && f[47]&fin != 0
			})
			tt.leave(t, l, listener)
			last := <-ends
			its, hers := binary.BigEndian.Uint32(last[38:]), binary.BigEndian.Uint32(last[42:])
			settle()
			service, err := net.Listen("tcp4", fmt.Sprintf("0.0.0.0:%d", tt.port))
			must.OK(t, err)
			defer service.Close()
			raw := func(flags byte, seq, ackSeq uint32, body string) []byte {
				f := packet{
					dst: bridgeMAC(testBridge), src: hw(alice), saddr: alice.Address, daddr: gateway,
					proto: protoTCP, sport: tt.from, dport: tt.port, flags: flags, body: []byte(body),
				}.bytes()
				binary.BigEndian.PutUint32(f[38:], seq)
				binary.BigEndian.PutUint32(f[42:], ackSeq)
				mend(f)
				return f
			}
			before := dropped(t, d)[HostProcess].Packets
			l.alice.send(raw(syn, hers+100_000, 0, ""))
			settle()
			l.alice.send(raw(psh|ack, hers+100_001, its+1+65_535+2+1, "hello"))
			if n := dropped(t, d)[HostProcess].Packets - before; n != 0 {
				t.Errorf("the host's service has answered %d times", n)
			}
			must.OK(t, service.(*net.TCPListener).SetDeadline(time.Now().Add(250*time.Millisecond)))
			if c, err := service.Accept(); err == nil {
				b := make([]byte, 100)
				n, _ := c.Read(b)
				c.Close()
				t.Errorf("the host's service got %q", b[:n])
			}
			if tt.from == servicePort {
				return // which her own service has
			}
			// With the same port again she gets to the gateway, which Accept shows.
			c, err := l.alice.dial(fmt.Sprintf("10.231.0.10:%d", tt.from), fmt.Sprintf("%s:%d", gateway, tt.port))
			must.OK(t, err)
			defer c.Close()
			server, err := listener.Accept()
			must.OK(t, err)
			server.Close()
		})
	}
}
