package datapath

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"sallyport/internal/test/must"
)

// flow is a TCP connection of alice's, whose every segment the test makes: her
// namespace has no address, so that its own TCP says nothing to it.
type flow struct {
	port, to uint16
	host     netip.Addr
	acked    uint32 // sequence number of the gateway's first byte
	server   net.Conn
}

const flowStart = 1 // the sequence number of the SYN

// segment is one of the flow's, with data from an offset on, which may be
// negative. change alters its TCP header before its checksum is made.
func (f *flow) segment(at int, flags byte, data string, change ...func(tcp []byte)) []byte {
	p := aliceTCP()
	p.daddr, p.sport, p.dport, p.flags, p.body = f.host, f.port, f.to, flags, []byte(data)
	frame := p.bytes()
	tcp := frame[tcpAt:]
	binary.BigEndian.PutUint32(tcp[4:], uint32(flowStart+1+at))
	binary.BigEndian.PutUint32(tcp[8:], f.acked)
	for _, c := range change {
		c(tcp)
	}
	mend(frame)
	return frame
}

func (f *flow) data(at int, data string) []byte { return f.segment(at, psh|ack, data) }

// hush takes alice's address from her own TCP.
func (l *lab) hush(t *testing.T) {
	t.Helper()
	must.OK(t, l.alice.handle.AddrDel(l.alice.link, &netlink.Addr{IPNet: &net.IPNet{IP: alice.Address.AsSlice(), Mask: net.CIDRMask(16, 32)}}))
}

// answers are SYNs that were answered, by port.
func (l *lab) answers() <-chan []byte {
	return l.alice.listen(func(f []byte) bool {
		return len(f) >= 54 && f[12] == 8 && f[13] == 0 && f[ipAt+9] == protoTCP && f[tcpAt+13]&(syn|ack) == syn|ack
	})
}

// join makes a connection.
func (l *lab) join(t *testing.T, ln *net.TCPListener, answers <-chan []byte, f *flow) {
	t.Helper()
	first := f.segment(-1, syn, "")
	l.alice.send(first)
	for timeout := time.After(patience); f.acked == 0; {
		select {
		case a := <-answers:
			if binary.BigEndian.Uint16(a[tcpAt+2:]) == f.port {
				f.acked = binary.BigEndian.Uint32(a[tcpAt+4:]) + 1
			}
		case <-timeout:
			t.Fatal("no answer to a SYN")
		}
	}
	l.alice.send(f.segment(0, ack, ""))
	must.OK(t, ln.SetDeadline(time.Now().Add(patience)))
	var err error
	f.server, err = ln.Accept()
	must.OK(t, err)
	t.Cleanup(func() { f.server.Close() })
}

// got is what whoever reads the connection gets: the bytes, and then "end",
// "reset", or nothing where it is still open. It looks again and again: at an
// urgent byte the kernel tells a reader whose thread has a signal waiting that
// there is nothing (net/ipv4/tcp.c, tcp_recvmsg_locked), Go's scheduler sends
// signals, and no news comes of what had arrived before. It looks until it has what is
// wanted, and then for what else may come.
func (f *flow) got(t *testing.T, has func(string) bool) string {
	t.Helper()
	var all strings.Builder
	for deadline, more := time.Now().Add(patience), 12; more > 0 && time.Now().Before(deadline); {
		if has(all.String()) {
			more--
		}
		must.OK(t, f.server.SetReadDeadline(time.Now().Add(5*time.Millisecond)))
		_, err := io.Copy(&all, f.server)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
		case errors.Is(err, syscall.ECONNRESET):
			return all.String() + "|reset"
		case err == nil:
			return all.String() + "|end"
		default:
			t.Fatal(err)
		}
	}
	return all.String()
}

// flowTrick is done to a connection that stands. A middlebox that reassembles could read
// something else than the receiver: here nobody does, and the gateway's kernel is the only
// reader.
type flowTrick struct {
	name string
	sent func(l *lab, f *flow)
	want string // of flow.got
	why  string
}

func all(frames ...func(f *flow) []byte) func(*lab, *flow) {
	return func(l *lab, f *flow) {
		for _, frame := range frames {
			l.alice.send(frame(f))
		}
	}
}

func data(at int, s string) func(*flow) []byte {
	return func(f *flow) []byte { return f.data(at, s) }
}

func header(at int, flags byte, s string, change ...func([]byte)) func(*flow) []byte {
	return func(f *flow) []byte { return f.segment(at, flags, s, change...) }
}

var flowTricks = []flowTrick{
	{"control: in order", all(data(0, "hello"), data(5, " world")), "hello world", "it is what everybody sends"},
	{"the second first", all(data(5, " world"), data(0, "hello")), "hello world", "put in order"},
	{"a byte each, from the last", all(data(4, "o"), data(3, "l"), data(2, "l"), data(1, "e"), data(0, "h")), "hello", "put in order"},
	{"again, with other bytes", all(data(0, "hello"), data(0, "HELLO")), "hello", "what has been taken stays"},
	{"overlapping behind", all(data(0, "hello"), data(3, "XXworld")), "helloworld", "what has been taken stays"},
	{"overlapping ahead", all(data(3, "loworld"), data(0, "helXXXX")), "helXXXXrld", "the first in the order of the stream counts"},
	{"overlapping inside of what waits", all(data(2, "llo"), data(3, "X"), data(0, "he")), "hello", "what waits stays"},
	{"around what waits", all(data(2, "l"), data(1, "XXXX"), data(0, "h")), "hXXXX", "what covers all of it replaces it"},
	{"an hour late", all(data(0, "hello"), data(-5, "XXXXX"), data(5, "!")), "hello!", "before the window"},
	{"beyond the window", all(data(1<<24, "XXXXX"), data(0, "hello")), "hello", "beyond the window"},
	{"at the other end of the numbers", all(data(1<<31-1, "XXXXX"), data(0, "hello")), "hello", "neither before nor behind"},
	{"a bad checksum first", func(l *lab, f *flow) {
		bad := f.data(0, "XXXXX")
		bad[tcpAt+16] ^= 0x55
		l.alice.send(bad, f.data(0, "hello"))
	}, "hello", "TCP drops it"},
	{"an acknowledgement of what was never sent", all(header(0, psh|ack, "XXXXX", func(tcp []byte) {
		binary.BigEndian.PutUint32(tcp[8:], binary.BigEndian.Uint32(tcp[8:])+1<<20)
	}), data(0, "hello")), "hello", "TCP drops it (RFC 5961, section 5)"},
	{"no acknowledgement", all(header(0, psh, "XXXXX"), data(0, "hello")), "hello", "TCP drops it"},
	{"no flags", all(header(0, 0, "XXXXX"), data(0, "hello")), "hello", "TCP drops it"},
	{"reserved flags", all(header(0, psh|ack, "hello", func(tcp []byte) { tcp[12] |= 0xe })), "hello", "nobody reads them (RFC 9293, section 3.1)"},
	{"ECE and CWR", all(header(0, psh|ack|ece|cwr, "hello")), "hello", "ECN was not agreed on"},
	{"an urgent byte", all(header(0, psh|ack|urg, "Xhello", func(tcp []byte) { tcp[19] = 1 })), "hello", "it is beside the stream, which nobody reads (RFC 6093)"},
	{"urgent beyond the data", all(header(0, psh|ack|urg, "hello", func(tcp []byte) { tcp[18] = 0xff })), "hello", "nothing is there yet"},
	{"a window of 0", all(header(0, psh|ack, "hello", func(tcp []byte) { tcp[14], tcp[15] = 0, 0 })), "hello", "the sandbox's own loss"},
	{"an option of length 0", func(l *lab, f *flow) {
		frame := f.segment(0, psh|ack, "\x13\x00\x00\x00hello", func(tcp []byte) { tcp[12] = 6 << 4 })
		l.alice.send(frame)
	}, "hello", "TCP stops reading options"},
	{"a SYN in the middle", all(header(0, syn, ""), data(0, "hello")), "hello", "a challenge (RFC 5961, section 4)"},
	{"a SYN with data in the middle", all(header(0, syn|ack, "XXXXX"), data(0, "hello")), "hello", "a challenge"},
	{"a reset beyond the window", all(header(1<<24, rst|ack, ""), data(0, "hello")), "hello", "nothing is reset"},
	{"a reset before the window", all(header(-100, rst|ack, ""), data(0, "hello")), "hello", "nothing is reset"},
	{"a reset in the window", all(header(7, rst|ack, ""), data(0, "hello")), "hello", "a challenge (RFC 5961, section 3)"},
	{"a reset at its place", all(data(0, "hello"), header(5, rst|ack, "")), "hello|reset", "it is the sandbox's right"},
	{"a reset with data at its place", all(header(0, rst|ack, "XXXXX")), "|reset", "its data is an explanation for people (RFC 9293, section 3.5.3)"},
	{"an end before the data", all(header(5, fin|ack, ""), data(0, "hello")), "hello|end", "put in order"},
	{"data behind the end", all(header(0, fin|psh|ack, "hello"), data(6, "XXXXX")), "hello|end", "an end is one"},
	{"an end and a SYN", all(header(0, fin|syn|ack, "XXXXX"), data(0, "hello")), "hello", "a challenge"},
	{"in fragments", func(l *lab, f *flow) {
		whole := f.data(0, "XXXXX-XXXXX-XXXXX-XXXXX")
		for at := 0; at < len(whole)-tcpAt; at += 8 {
			l.alice.send(fragment(whole, at, min(at+8, len(whole)-tcpAt)))
		}
		l.alice.send(f.data(0, "hello"))
	}, "hello", "dropped, each, before anybody puts them together"},
	{"its last bytes in a fragment that overlaps", func(l *lab, f *flow) {
		whole := f.data(0, "XXXXXXXXXXXXXXXX")
		l.alice.send(fragment(whole, 0, 24), fragment(whole, 16, len(whole)-tcpAt), f.data(0, "hello"))
	}, "hello", "dropped, each"},
}

// fragment is a part of a packet's payload.
func fragment(whole []byte, from, to int) []byte {
	frame := append(bytes.Clone(whole[:tcpAt]), whole[tcpAt+from:tcpAt+to]...)
	binary.BigEndian.PutUint16(frame[ipAt+2:], uint16(len(frame)-ipAt))
	offset := uint16(from / 8)
	if tcpAt+to < len(whole) {
		offset |= 0x2000
	}
	binary.BigEndian.PutUint16(frame[ipAt+6:], offset)
	sum(frame[ipAt:tcpAt], 10)
	return frame
}

// foreignTricks are done to alice's connection by others.
var foreignTricks = []flowTrick{
	{"bob's reset of it", func(l *lab, f *flow) {
		reset := f.segment(0, rst|ack, "")
		l.bob.send(reset)
		copy(reset[6:], hw(bob))
		l.bob.send(reset)
		l.alice.send(f.data(0, "hello"))
	}, "hello", "neither alice's MAC address nor her address are bob's"},
	{"bob's data in it", func(l *lab, f *flow) {
		l.bob.send(f.data(0, "XXXXX"))
		l.alice.send(f.data(0, "hello"))
	}, "hello", "not his address"},
	{"a stranger's reset of it", func(l *lab, f *flow) {
		l.stranger.send(f.segment(0, rst|ack, ""))
		l.alice.send(f.data(0, "hello"))
	}, "hello", "nobody vouches for its port"},
	{"the outside's reset of it", func(l *lab, f *flow) {
		reset := f.segment(0, rst|ack, "")
		link := l.outside.link.Attrs().HardwareAddr
		up, err := netlink.LinkByIndex(l.outside.host)
		must.OK(l.outside.t, err)
		copy(reset, up.Attrs().HardwareAddr)
		copy(reset[6:], link)
		l.outside.send(reset)
		l.alice.send(f.data(0, "hello"))
	}, "hello", "a sandbox's address does not come from there"},
}

// helloTricks are ways to cut a ClientHello. Two names of one length make two hellos
// that differ in the name alone.
func helloTricks() (list []flowTrick, names map[string]string) {
	good := clientHello("allow.example.test")
	bad := strings.ReplaceAll(good, "allow.example.test", "denyy.example.test")
	at := strings.Index(good, "allow.example.test")
	names = map[string]string{"good": "allow.example.test", "bad": "denyy.example.test"}
	pieces := func(hello string, size int, reverse bool) func(*lab, *flow) {
		return func(l *lab, f *flow) {
			var frames [][]byte
			for i := 0; i < len(hello); i += size {
				frames = append(frames, f.data(i, hello[i:min(i+size, len(hello))]))
			}
			if reverse {
				for i, j := 0, len(frames)-1; i < j; i, j = i+1, j-1 {
					frames[i], frames[j] = frames[j], frames[i]
				}
			}
			l.alice.send(frames...)
		}
	}
	return []flowTrick{
		{"control: whole", pieces(good, 1<<15, false), "good", ""},
		{"in pieces of 7", pieces(bad, 7, false), "bad", ""},
		{"in pieces of 7, from the last", pieces(bad, 7, true), "bad", ""},
		{"a byte each, from the last", pieces(bad[:at+40], 1, true), "", "it is not whole"},
		{"the good name over the bad one", all(data(0, bad[:at+18]), data(at, good[at:])), "bad", "what has been taken stays"},
		{"the bad name over the good one", all(data(0, good[:at+18]), data(at, bad[at:])), "good", "what has been taken stays"},
		{"the good name ahead of the bad one", all(data(at, good[at:at+18]), data(at+18, bad[at+18:]), data(0, bad[:at+18])), "bad", "the first in the order of the stream counts"},
		{"the bad name ahead of the good one", all(data(at, bad[at:at+18]), data(at+18, good[at+18:]), data(0, good[:at+18])), "good", "the first in the order of the stream counts"},
		{"the good name with a bad checksum", func(l *lab, f *flow) {
			frame := f.data(0, good)
			frame[tcpAt+16] ^= 0x55
			l.alice.send(frame, f.data(0, bad))
		}, "bad", "TCP drops the first"},
		{"the good name beyond the window", all(data(1<<24, good), data(0, bad)), "bad", ""},
		{"the good name before a reset that is none", all(header(9, rst|ack, good), data(0, bad)), "bad", ""},
		{"the good name in an urgent byte's place", all(header(0, psh|ack|urg, "X"+bad, func(tcp []byte) { tcp[19] = 1 })), "bad", "the byte is beside the stream"},
	}, names
}

// clientHello is what crypto/tls sends, without a post-quantum key share: it is
// to fit one segment.
func clientHello(name string) string {
	near, far := net.Pipe()
	go func() {
		_ = tls.Client(near, &tls.Config{ServerName: name, InsecureSkipVerify: true, CurvePreferences: []tls.CurveID{tls.X25519}}).Handshake()
	}()
	defer near.Close()
	defer far.Close()
	b := make([]byte, 1<<15)
	n, err := far.Read(b)
	if err != nil {
		panic(err)
	}
	return string(b[:n])
}

// sni is the name that a TLS server finds in what it gets.
func sni(stream string) (name string) {
	near, far := net.Pipe()
	go func() {
		_, _ = io.WriteString(near, stream)
		near.Close()
	}()
	defer far.Close()
	_ = tls.Server(far, &tls.Config{GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		name = h.ServerName
		return nil, errors.New("seen")
	}}).Handshake()
	return name
}

// TestFlowTricks does them to connections that are steered to the gateway, and
// the same to one of the kernel's own, without any of our programs: what arrives
// is the same, byte for byte, but for fragments, which the kernel puts together.
func TestFlowTricks(t *testing.T) {
	guarded, unguarded := map[string]string{}, map[string]string{}
	run := func(t *testing.T, l *lab, ln *net.TCPListener, to netip.AddrPort, got map[string]string, guarding bool) {
		tricks := flowTricks
		l.hush(t)
		answers := l.answers()
		hellos, names := helloTricks()
		for i, trick := range append(append([]flowTrick{}, tricks...), hellos...) {
			t.Run(trick.name, func(t *testing.T) {
				f := &flow{port: uint16(42000 + i), host: to.Addr(), to: to.Port()}
				l.join(t, ln, answers, f)
				trick.sent(l, f)
				reads := func(s string) string { return s }
				if i >= len(tricks) {
					reads, trick.want = sni, names[trick.want]
				}
				pieces := trick.name == "in fragments" && !guarding
				if pieces {
					trick.want = "XXXXX-XXXXX-XXXXX-XXXXX" // so they are a way
				}
				s := reads(f.got(t, func(s string) bool { return reads(s) == trick.want }))
				key := fmt.Sprintf("%d %s", i, trick.name)
				if got[key] = s; pieces {
					got[key] = guarded[key]
				}
				if s != trick.want {
					t.Errorf("got %q, want %q: %s", s, trick.want, trick.why)
				}
			})
		}
	}
	t.Run("steered", func(t *testing.T) {
		l := newLab(t)
		d := l.open(t)
		attachBoth(t, d, l)
		ln, err := Listen()
		must.OK(t, err)
		defer ln.Close()
		must.OK(t, d.Steer(ln))
		to := netip.AddrPortFrom(outside, 443)
		run(t, l, ln, to, guarded, true)
	})
	t.Run("the kernel's own", func(t *testing.T) {
		l := newLab(t)
		l.plain(t)
		bridge, err := netlink.LinkByName(l.config.Bridge)
		must.OK(t, err)
		must.OK(t, netlink.NeighSet(&netlink.Neigh{LinkIndex: bridge.Attrs().Index, State: netlink.NUD_PERMANENT, IP: alice.Address.AsSlice(), HardwareAddr: hw(alice)}))
		// The mark is for the next tests: what these have left open speaks in them.
		config := net.ListenConfig{Control: Mark}
		config.SetMultipathTCP(false)
		some, err := config.Listen(t.Context(), "tcp4", gateway.String()+":0")
		must.OK(t, err)
		ln := some.(*net.TCPListener)
		defer ln.Close()
		run(t, l, ln, netip.MustParseAddrPort(ln.Addr().String()), unguarded, false)
	})
	if diff := cmp.Diff(unguarded, guarded); diff != "" {
		t.Errorf("steered connections read otherwise than the kernel's own:\n%s", diff)
	}
}

// TestForeignSegments has others send segments of alice's connection.
func TestForeignSegments(t *testing.T) {
	l := newLab(t)
	d := l.open(t)
	attachBoth(t, d, l)
	ln, err := Listen()
	must.OK(t, err)
	defer ln.Close()
	must.OK(t, d.Steer(ln))
	l.hush(t)
	answers := l.answers()
	for i, trick := range foreignTricks {
		t.Run(trick.name, func(t *testing.T) {
			f := &flow{port: uint16(43000 + i), host: outside, to: 443}
			l.join(t, ln, answers, f)
			trick.sent(l, f)
			if s := f.got(t, func(s string) bool { return s == trick.want }); s != trick.want {
				t.Errorf("got %q, want %q: %s", s, trick.want, trick.why)
			}
		})
	}
}
