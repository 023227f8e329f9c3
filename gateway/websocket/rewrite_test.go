package websocket

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"

	"sallyport/internal/test/must"
)

// frame is one of a client (RFC 6455, section 5.2).
func frame(first byte, mask [4]byte, payload string) []byte {
	b := []byte{first}
	switch n := len(payload); {
	case n <= 125:
		b = append(b, 0x80|byte(n))
	case n <= 0xffff:
		b = binary.BigEndian.AppendUint16(append(b, 0x80|126), uint16(n))
	default:
		b = binary.BigEndian.AppendUint64(append(b, 0x80|127), uint64(n))
	}
	b = append(b, mask[:]...)
	for i := range len(payload) {
		b = append(b, payload[i]^mask[i%4])
	}
	return b
}

// spoken reads frames as a server does: what each message says, by its opcode, and control
// frames where they stand.
func spoken(t *testing.T, b []byte) (all []string) {
	t.Helper()
	var message []byte
	for len(b) > 0 {
		first, n, at := b[0], int(b[1]&0x7f), 2
		switch n {
		case 126:
			n, at = int(binary.BigEndian.Uint16(b[2:])), 4
		case 127:
			n, at = int(binary.BigEndian.Uint64(b[2:])), 10
		}
		if b[1]&0x80 == 0 {
			t.Fatal("a frame without a mask")
		}
		mask, payload := b[at:at+4], make([]byte, n)
		for i := range payload {
			payload[i] = b[at+4+i] ^ mask[i%4]
		}
		b = b[at+4+n:]
		switch op := first & 0xf; {
		case op >= opClose:
			all = append(all, fmt.Sprintf("%x:%s", op, payload))
			continue
		case op > 0:
			message = fmt.Appendf(nil, "%x:", op)
		}
		message = append(message, payload...)
		if first&0x80 != 0 {
			all = append(all, string(message))
		}
	}
	return all
}

// marking is Messages that puts a text in the place of each x, and holds the last byte back
// until the message goes on.
type marking struct {
	kept, ready []byte
	texts       []bool
	refuse      byte
}

func (m *marking) Begin(text bool) { m.texts = append(m.texts, text) }

func (m *marking) Feed(p []byte, last bool) {
	m.kept = append(m.kept, p...)
	n := len(m.kept)
	if !last && n > 0 {
		n--
	}
	m.ready = append(m.ready, m.kept[:n]...)
	m.kept = append(m.kept[:0], m.kept[n:]...)
}

func (m *marking) Next() ([]byte, error) {
	if m.refuse != 0 && bytes.IndexByte(m.ready, m.refuse) >= 0 {
		return nil, errors.New("refused")
	}
	if len(m.ready) == 0 {
		return nil, nil
	}
	p := bytes.ReplaceAll(m.ready, []byte("x"), []byte("<secret>"))
	m.ready = nil
	return p, nil
}

// Whatever pieces a client's frames come in, the messages arrive as they were changed.
func TestRewriter(t *testing.T) {
	long, longer := strings.Repeat("0123456789x", 30), strings.Repeat("abcdefghijk", 7000)
	var in []byte
	for i, f := range []struct {
		first   byte
		payload string
	}{
		{0x81, "one x two"}, {0x01, "begun "}, {0x89, "a ping x"}, {0x00, "goes on x"}, {0x80, ""}, {0x82, long}, {0x81, longer}, {0x81, ""}, {0x88, "\x03\xe8end x"},
	} {
		in = append(in, frame(f.first, [4]byte{byte(i + 1), 0x20, 0x7f, 0xc3}, f.payload)...)
	}
	said := func(text string) string { return strings.ReplaceAll(text, "x", "<secret>") }
	want := []string{"1:" + said("one x two"), "9:a ping x", "1:" + said("begun goes on x"), "2:" + said(long), "1:" + said(longer), "1:", "8:\x03\xe8end x"}
	for _, size := range []int{1, 2, 3, 5, 7, 64, len(in)} {
		var out bytes.Buffer
		m := &marking{}
		w := &Rewriter{Writer: &out, Messages: m}
		for p := in; len(p) > 0; p = p[min(size, len(p)):] {
			n, err := w.Write(p[:min(size, len(p))])
			if must.OK(t, err); n != min(size, len(p)) {
				t.Fatalf("%d bytes were taken of %d", n, min(size, len(p)))
			}
		}
		if got := spoken(t, out.Bytes()); fmt.Sprintf("%.99q", got) != fmt.Sprintf("%.99q", want) || strings.Join(got, "") != strings.Join(want, "") || fmt.Sprint(m.texts) != "[true true false true true]" {
			t.Errorf("in pieces of %d: got %.99q of %v, want %.99q", size, got, m.texts, want)
		}
	}
	// A refused message does not leave, and those before it do.
	var out bytes.Buffer
	w := &Rewriter{Writer: &out, Messages: &marking{refuse: '!'}}
	if _, err := w.Write(append(frame(0x81, [4]byte{1, 2, 3, 4}, "fine"), frame(0x81, [4]byte{1, 2, 3, 4}, "not!")...)); err == nil || strings.Join(spoken(t, out.Bytes()), "") != "1:fine" {
		t.Errorf("%v, %q has left", err, spoken(t, out.Bytes()))
	}
}
