package resolver

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/miekg/dns"
	"golang.org/x/net/dns/dnsmessage"

	"sallyport/internal/hostname"
	"sallyport/internal/test/must"
	"sallyport/policy"
)

// ask reads the question of a packet with another library than the server does.
func ask(packet []byte) (q dnsmessage.Question, name string, err error) {
	var p dnsmessage.Parser
	if _, err = p.Start(packet); err == nil {
		q, err = p.Question()
	}
	return q, strings.ToLower(strings.TrimSuffix(q.Name.String(), ".")), err
}

// plain reports whether a packet is a query for an address and nothing else, its
// name written out.
func plain(packet []byte, q dnsmessage.Question) bool {
	var b bytes.Buffer
	for label := range strings.SplitSeq(q.Name.String(), ".") {
		b.WriteByte(byte(len(label)))
		b.WriteString(label)
	}
	b.WriteString("\x00\x01\x00\x01")
	return packet[2]&0xf8 == 0 && bytes.Equal(packet[4:headerSize], []byte("\x00\x01\x00\x00\x00\x00\x00\x00")) && bytes.Equal(packet[headerSize:], b.Bytes())
}

func packets(f *testing.F) [][]byte {
	var all [][]byte
	for _, m := range []*dns.Msg{
		question("allow.example.test.", dns.TypeA), question("ALLOW.Example.Test.", dns.TypeA), question("deny.example.test.", dns.TypeA),
		question("16.0.18.198.in-addr.arpa.", dns.TypePTR), question("x.", dns.TypeANY), question(".", dns.TypeNS), question("a.localhost.", dns.TypeA),
		question("tunnel.example.test.", dns.TypeHTTPS), question(`allow\.example.test.`, dns.TypeA), question(`allow.example.test\000.`, dns.TypeA),
		question("allow.example.test.", dns.TypeAAAA).SetEdns0(512, true), question("broken.example.test.", dns.TypeAXFR),
		question(strings.Repeat("a.", 124)+"deny5.", dns.TypeA).SetEdns0(4096, false),
	} {
		b, err := m.Pack()
		must.OK(f, err)
		all = append(all, b)
	}
	header := all[0][:headerSize]
	return append(all,
		append(bytes.Clone(header), "\xc0\x0c\x00\x01\x00\x01"...),                   // the name points at itself,
		append(bytes.Clone(header), "\x05allow\xc0\x04\x00\x01\x00\x01"...),          // into the header,
		append(bytes.Clone(header), "\x05allow\xc0\x16\x00\x01\x00\x01\x01x\x00"...), // behind the question
		append(bytes.Clone(header), "\x45allow\x00\x00\x01\x00\x01"...))
}

// FuzzAnswer: the policy is asked for the name that another library reads in a
// packet, for the one that the address in it stands for, or not at all; the answer is to that question, small, the same each time,
// and has no address but one that stands for the name.
func FuzzAnswer(f *testing.F) {
	for _, b := range packets(f) {
		f.Add(b)
	}
	l := newServerEnv(f)
	var asked []string
	l.o.Decide = func(ctx context.Context, in policy.Input) policy.Decision {
		asked = append(asked, in.Destination.Host)
		return decide(ctx, in)
	}
	who, _ := identify(netip.MustParseAddr("127.0.1.1"))
	f.Fuzz(func(t *testing.T, packet []byte) {
		asked = nil
		sent := bytes.Clone(packet)
		got := l.answer(t.Context(), who, netip.Addr{}, packet)
		want, name, err := ask(sent)
		about := name
		if addr, reverse := forward(name); reverse {
			about, _ = l.o.Table.Name(who.ID, addr)
		}
		if len(asked) > 1 || len(asked) == 1 && (err != nil || asked[0] != about || want.Class != dnsmessage.ClassINET) {
			t.Errorf("%x asks for %q, the policy is asked for %q; %v", sent, name, asked, err)
		}
		if err == nil && len(asked) == 0 && plain(sent, want) && hostname.Valid(name) && !loopback(name) {
			t.Errorf("the policy is not asked about %q", name)
		}
		if again := l.answer(t.Context(), who, netip.Addr{}, sent); !bytes.Equal(again, got) {
			t.Errorf("answer %x, then %x", got, again)
		}
		if got == nil {
			if len(sent) >= headerSize && sent[2]&0x80 == 0 {
				t.Errorf("no answer to %x", sent)
			}
			return
		}
		if len(got) > dns.MinMsgSize {
			t.Errorf("answer of %d bytes", len(got))
		}
		var m dnsmessage.Message
		if unreadable := m.Unpack(got); unreadable != nil {
			if err == nil || binary.BigEndian.Uint16(got[6:]) != 0 || new(dns.Msg).Unpack(got) != nil {
				t.Errorf("answer %x to %x: %v", got, sent, unreadable)
			}
			return // it repeats a name that the other library does not take
		}
		if !bytes.Equal(got[:2], sent[:2]) || !m.Response || m.OpCode != dnsmessage.OpCode(sent[2]>>3&0xf) || len(m.Authorities) > 0 || len(m.Additionals) > 1 {
			t.Errorf("%x is no answer to %x", got, sent)
		}
		if len(m.Questions) > 1 || len(m.Questions) == 1 && (err != nil || m.Questions[0] != want) || len(m.Questions) == 0 && len(m.Answers) > 0 {
			t.Errorf("asked %v, answered %v", want, m.Questions)
		}
		for _, r := range m.Answers {
			a, ok := r.Body.(*dnsmessage.AResource)
			if r.Header.Name.String() != want.Name.String() {
				t.Errorf("asked %v, answered %v", want, r.Header.Name)
			}
			if !ok {
				continue
			}
			addr := netip.AddrFrom4(a.A)
			if addr == Refusal || addr.IsLoopback() && loopback(name) {
				continue
			}
			stands, ok := l.table.Name(who.ID, addr)
			first, _, _ := strings.Cut(name, ".")
			if !ok || stands != name || !slices.Contains([]string{"allow", "intranet", "tunnel", "approve"}, first) {
				t.Errorf("%s got %v, which stands for %q", name, addr, stands)
			}
		}
	})
}

// pieces is a connection that says what it was told to, some bytes at a time.
type pieces struct {
	net.Conn // none
	say      []byte
	size     int
	heard    bytes.Buffer
}

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.say) == 0 {
		return 0, io.EOF
	}
	n := copy(b[:min(len(b), p.size)], p.say)
	p.say = p.say[n:]
	return n, nil
}

func (p *pieces) Write(b []byte) (int, error) { return p.heard.Write(b) }
func (p *pieces) SetDeadline(time.Time) error { return nil }

// FuzzStream: a TCP connection gets the answers that its messages get one by one,
// in whatever pieces they come, up to the first that deserves none.
func FuzzStream(f *testing.F) {
	frame := func(b []byte) []byte { return append(binary.BigEndian.AppendUint16(nil, uint16(len(b))), b...) }
	all := packets(f)
	for i, b := range all {
		f.Add(append(frame(b), frame(all[0])...), uint8(i))
	}
	f.Add(append(frame(all[0]), 0, 0), uint8(0))
	f.Add(append(frame(all[0]), 0x10, 1), uint8(0))
	l := newServerEnv(f)
	from := netip.MustParseAddr("127.0.1.1")
	who, _ := identify(from)
	f.Fuzz(func(t *testing.T, sent []byte, piece uint8) {
		l.limiters, _ = simplelru.NewLRU[string, limits](1, nil) // as if time had passed
		// A name has its address from its first question on, which a reverse
		// question before that would not know.
		l.serveConn(t.Context(), &pieces{say: sent, size: len(sent) + 1}, who.ID, from)
		c := &pieces{say: sent, size: int(piece) + 1}
		l.limiters, _ = simplelru.NewLRU[string, limits](1, nil)
		l.serveConn(t.Context(), c, who.ID, from)
		var want []byte
		for rest := sent; len(rest) >= 2; {
			n := int(rest[0])<<8 | int(rest[1])
			if n > 4096 || len(rest) < 2+n {
				break
			}
			answer := l.answer(t.Context(), who, from, rest[2:2+n])
			if answer == nil {
				break
			}
			want, rest = append(want, frame(answer)...), rest[2+n:]
		}
		// Beyond the budget of questions they differ.
		if got := c.heard.Bytes(); !bytes.Equal(got, want) && len(sent) < queryBurst*(2+headerSize) {
			t.Errorf("%x is answered by %x, want %x", sent, got, want)
		}
	})
}

var dotted = regexp.MustCompile(`^([0-9]{1,3})\.([0-9]{1,3})\.([0-9]{1,3})\.([0-9]{1,3})\.in-addr\.arpa$`)

// FuzzSynthetic: an address stands for a name only if it was given for it, in
// every spelling of it that a packet or a question may have.
func FuzzSynthetic(f *testing.F) {
	table := openTable(f, f.TempDir(), NameTableOptions{})
	given := map[string]string{}
	for _, name := range []string{"a.example.test", "b.example.test", "c"} {
		given[assign(f, table, "id-1", name).String()] = name
	}
	s := NewServer(Options{Table: table, Decide: func(context.Context, policy.Input) policy.Decision {
		return policy.Decision{Action: policy.Allow}
	}})
	who, _ := identify(netip.MustParseAddr("127.0.1.1"))
	for _, text := range []string{"198.18.0.16", "198.18.0.17", "198.18.0.1", "198.18.0.15", "198.19.255.255", "198.20.0.0", "::ffff:198.18.0.16", "::198.18.0.16", "64:ff9b::c612:10"} {
		a := netip.MustParseAddr(text)
		b := a.AsSlice()
		f.Add(b, fmt.Sprintf("%d.%d.%d.%d.in-addr.arpa", b[3], b[2], b[1], b[0]))
	}
	for _, text := range []string{"016.0.18.198.in-addr.arpa", "16.18.198.in-addr.arpa", "0.16.0.18.198.in-addr.arpa", "10.0.12.c6.in-addr.arpa", "in-addr.arpa", "16.0.18.198.in-addr.arpa.in-addr.arpa"} {
		f.Add([]byte(nil), text)
	}
	f.Fuzz(func(t *testing.T, raw []byte, text string) {
		if a, ok := netip.AddrFromSlice(raw); ok {
			v4 := a.Is4() || bytes.HasPrefix(raw, append(make([]byte, 10), 0xff, 0xff))
			four := raw[len(raw)-4:]
			spelt := fmt.Sprintf("%d.%d.%d.%d", four[0], four[1], four[2], four[3])
			want := ""
			if v4 {
				want = given[spelt]
			}
			if got, ok := table.Name(who.ID, a); got != want || ok != (want != "") {
				t.Errorf("%v stands for %q, want %q", a, got, want)
			}
			if got, ok := table.Name("id-2", a); ok {
				t.Errorf("%v stands for %q in another sandbox", a, got)
			}
			n, ok := index(a)
			if inside := a.Is4() && raw[0] == 198 && raw[1]&0xfe == 18 && (raw[1] > 18 || raw[2] > 0 || raw[3] >= 16); ok != inside || ok && address(n) != a {
				t.Errorf("%v has the number %d, %v", a, n, ok)
			}
		}
		want := ""
		if m := dotted.FindStringSubmatch(text); m != nil {
			want = given[m[4]+"."+m[3]+"."+m[2]+"."+m[1]] // as they are written there: no zeros before
		}
		got := ""
		if m, _ := s.reverse(t.Context(), who, question(".", dns.TypePTR), text); len(m.Answer) > 0 {
			got = strings.TrimSuffix(m.Answer[0].(*dns.PTR).Ptr, ".")
		}
		if got != want {
			t.Errorf("%q stands for %q, want %q", text, got, want)
		}
	})
}

// wholeLine is what a line of a sandbox's names looks like.
var wholeLine = regexp.MustCompile(`^198\.(18|19)\.([0-9]+)\.([0-9]+) ([a-z0-9_.-]{1,253}) ([0-9a-f]{8})$`)

// FuzzParse: what is read of a file of names is what it says byte for byte, from
// its beginning, each address in its turn and no name twice.
func FuzzParse(f *testing.F) {
	good := appendLine(appendLine(nil, 0, "a.test"), 1, "b.test")
	f.Add([]byte(nil))
	f.Add(good)
	f.Add(append(bytes.Clone(good[:len(good)/2]), "198.18.0.17 b"...))
	f.Add(append(bytes.Clone(good[:len(good)/2]), "\x00\x00\n"...))
	f.Add(append(bytes.Clone(good), good...))
	f.Fuzz(func(t *testing.T, data []byte) {
		names, size, err := parse(data)
		if err != nil {
			if names != nil || size != 0 {
				t.Errorf("%q, %d and %v", names, size, err)
			}
			return
		}
		var again []byte
		seen := map[string]bool{}
		lines := strings.Split(string(data[:size]), "\n")
		for n, name := range names {
			if !hostname.Valid(name) || seen[name] {
				t.Errorf("%q is no host name, or there twice", name)
			}
			seen[name] = true
			again = appendLine(again, n, name)
			m := wholeLine.FindStringSubmatch(lines[n])
			if m == nil || m[4] != name {
				t.Fatalf("%q in %q", name, lines[n])
			}
			second, _ := strconv.Atoi(m[1])
			third, _ := strconv.Atoi(m[2])
			fourth, _ := strconv.Atoi(m[3])
			if (second-18)<<16|third<<8|fourth != n+16 {
				t.Errorf("line %d is %q", n, lines[n])
			}
		}
		if !bytes.Equal(again, data[:size]) {
			t.Errorf("read %q from %q", names, data)
		}
		// A line left out can only be the end of a write that was cut off.
		if rest, _, whole := bytes.Cut(data[size:], []byte("\n")); whole && bytes.IndexByte(rest, 0) < 0 {
			t.Errorf("%q was left out", data[size:])
		}
	})
}
