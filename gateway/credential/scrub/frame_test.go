package scrub_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"sallyport/gateway/credential/scrub"
)

// frame is one of a WebSocket's; its first byte has FIN and the opcode.
type frame struct {
	first   byte
	payload string
}

func (f frame) bytes() []byte {
	b := []byte{f.first}
	switch n := len(f.payload); {
	case n < 126:
		b = append(b, byte(n))
	case n < 1<<16:
		b = binary.BigEndian.AppendUint16(append(b, 126), uint16(n))
	default:
		b = binary.BigEndian.AppendUint64(append(b, 127), uint64(n))
	}
	return append(b, f.payload...)
}

func stream(frames ...frame) (all []byte) {
	for _, f := range frames {
		all = append(all, f.bytes()...)
	}
	return all
}

// parse takes a stream apart.
func parse(stream []byte) (frames []frame, rest []byte) {
	for len(stream) >= 2 {
		head, n := 2, uint64(stream[1])
		switch {
		case n == 126 && len(stream) >= 4:
			head, n = 4, uint64(binary.BigEndian.Uint16(stream[2:]))
		case n == 127 && len(stream) >= 10:
			head, n = 10, binary.BigEndian.Uint64(stream[2:])
		case n >= 126:
			return frames, stream
		}
		if uint64(len(stream)-head) < n {
			break
		}
		frames = append(frames, frame{stream[0], string(stream[head : head+int(n)])})
		stream = stream[head+int(n):]
	}
	return frames, stream
}

// whole puts messages together. Each is where its last frame is among the
// control frames.
func whole(t testing.TB, frames []frame) (all []frame) {
	t.Helper()
	var message *frame
	for _, f := range frames {
		switch {
		case f.first&8 != 0:
			all = append(all, f)
			continue
		case (message != nil) != (f.first&0xF == 0):
			t.Fatalf("out of order: %v", frames)
		case message == nil:
			message = &frame{f.first | 0x80, ""}
		}
		message.payload += f.payload
		if f.first&0x80 != 0 {
			all = append(all, *message)
			message = nil
		}
	}
	return all
}

func TestFrames(t *testing.T) {
	said, clean := "you sent "+token, "you sent "+stars(len(token))
	long := strings.Repeat("x. ", 50_000)
	tests := []struct {
		name     string
		in, want []frame
		same     bool // the frames, not only the messages
	}{
		{"none", nil, nil, true},
		{"text", []frame{{0x81, said}, {0x81, "ok"}, {0x81, ""}}, []frame{{0x81, clean}, {0x81, "ok"}, {0x81, ""}}, true},
		{"binary", []frame{{0x82, "\x00\xff" + said}}, []frame{{0x82, "\x00\xff" + clean}}, true},
		{"lengths", []frame{{0x81, long[:125]}, {0x81, long[:126]}, {0x81, long[:65535]}, {0x81, long[:65536]}, {0x81, said + long + said}},
			[]frame{{0x81, long[:125]}, {0x81, long[:126]}, {0x81, long[:65535]}, {0x81, long[:65536]}, {0x81, clean + long + clean}}, true},
		{"fragments", []frame{{0x01, said[:15]}, {0x00, said[15:20]}, {0x80, said[20:]}}, []frame{{0x81, clean}}, false},
		{"single bytes", slices.Concat([]frame{{0x01, ""}}, func() (all []frame) {
			for _, c := range said {
				all = append(all, frame{0x00, string(c)}, frame{0x00, ""})
			}
			return all
		}(), []frame{{0x80, ""}}), []frame{{0x81, clean}}, false},
		{"long fragments", []frame{{0x02, long + said[:20]}, {0x00, said[20:] + long + said[:15]}, {0x80, said[15:] + long}},
			[]frame{{0x82, long + clean + long + clean + long}}, false},
		{"control frames between", []frame{{0x01, said[:15]}, {0x89, "ping"}, {0x00, said[15:20]}, {0x8A, said}, {0x80, said[20:]}, {0x88, "\x03\xe8" + said}},
			[]frame{{0x89, "ping"}, {0x8A, clean}, {0x81, clean}, {0x88, "\x03\xe8" + clean}}, false},
		{"of two messages", []frame{{0x81, said[:20]}, {0x81, said[20:]}}, []frame{{0x81, said[:20]}, {0x81, said[20:]}}, true},
		{"close without a reason", []frame{{0x88, ""}}, []frame{{0x88, ""}}, true},
		{"no UTF-8 is broken", []frame{{0x01, "é" + token[:9] + ""}, {0x80, token[9:] + "é"}}, []frame{{0x81, "é" + stars(len(token)) + "é"}}, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			in := stream(test.in...)
			for name, src := range map[string]io.Reader{"whole": bytes.NewReader(in), "byte by byte": iotest.OneByteReader(bytes.NewReader(in)), "with EOF": iotest.DataErrReader(bytes.NewReader(in))} {
				got, err := io.ReadAll(scrubber(token).Frames(src, nil, nil))
				frames, rest := parse(got)
				if err != nil || len(rest) > 0 {
					t.Errorf("%s: %v, %d bytes left", name, err, len(rest))
				}
				if !test.same {
					frames = whole(t, frames)
				}
				if diff := cmp.Diff(frames, test.want, cmp.AllowUnexported(frame{})); diff != "" {
					t.Errorf("%s: %.1000s", name, diff)
				}
			}
		})
	}
}

func TestFramesRefused(t *testing.T) {
	ok := frame{0x81, "ok"}
	tests := []struct {
		name string
		in   []byte
	}{
		{"compressed", frame{0xC1, "x"}.bytes()},
		{"reserved bit 2", frame{0xA1, "x"}.bytes()},
		{"reserved bit 3", frame{0x91, "x"}.bytes()},
		{"reserved bit of a control frame", frame{0xC9, "x"}.bytes()},
		{"reserved bit of a continuation", stream(frame{0x01, "x"}, frame{0xC0, "x"})},
		{"opcode 3", frame{0x83, "x"}.bytes()},
		{"opcode 7", frame{0x87, "x"}.bytes()},
		{"opcode 11", frame{0x8B, "x"}.bytes()},
		{"opcode 15", frame{0x8F, "x"}.bytes()},
		{"masked", []byte{0x81, 0x81, 1, 2, 3, 4, 'x'}},
		{"continuation of nothing", frame{0x80, "x"}.bytes()},
		{"message in a message", stream(frame{0x01, "x"}, frame{0x81, "x"})},
		{"control frame in parts", frame{0x09, "x"}.bytes()},
		{"long control frame", frame{0x89, strings.Repeat("x", 126)}.bytes()},
		{"close with half a status", frame{0x88, "x"}.bytes()},
		{"long form of a short length", []byte{0x81, 126, 0, 125}},
		{"longest form of a short length", []byte{0x81, 127, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF}},
		{"negative length", []byte{0x81, 127, 0x80, 0, 0, 0, 0, 0, 0, 0}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			in := append(append(ok.bytes(), test.in...), frame{0x81, token}.bytes()...)
			got, err := io.ReadAll(scrubber(token).Frames(bytes.NewReader(in), nil, nil))
			frames, rest := parse(got)
			if !errors.Is(err, scrub.ErrHidden) || len(rest) > 0 || len(frames) < 2 || frames[0] != ok {
				t.Fatalf("%v, %q", err, got)
			}
			last := frames[len(frames)-1]
			if last.first != 0x88 || !strings.HasPrefix(last.payload, "\x03\xea") || len(last.payload) > 125 || strings.Contains(string(got), token) {
				t.Errorf("%q", frames)
			}
		})
	}
	t.Run("after Close", func(t *testing.T) {
		in := stream(frame{0x88, "\x03\xe8"}, frame{0x81, token})
		got, err := io.ReadAll(scrubber(token).Frames(bytes.NewReader(in), nil, nil))
		if !errors.Is(err, scrub.ErrHidden) || !bytes.Equal(got, frame{0x88, "\x03\xe8"}.bytes()) {
			t.Errorf("%v, %q", err, got)
		}
	})
}

func TestFramesCut(t *testing.T) {
	in := stream(frame{0x01, "you "}, frame{0x89, "ping"}, frame{0x80, strings.Repeat("sent ", 40) + token})
	for n := 1; n < len(in); n++ {
		got, err := io.ReadAll(scrubber(token).Frames(bytes.NewReader(in[:n]), nil, nil))
		if err != io.ErrUnexpectedEOF || strings.Contains(string(got), token[:8]) {
			t.Errorf("after %d of %d bytes: %v, %q", n, len(in), err, got)
		}
	}
	reset := errors.New("reset")
	if _, err := io.ReadAll(scrubber(token).Frames(iotest.ErrReader(reset), nil, nil)); err != reset {
		t.Errorf("error %v", err)
	}
}

// The decided part goes out before more comes in: a message at its end, a control frame at
// once, and of a frame all but its tail.
func TestFramesStream(t *testing.T) {
	in, out := io.Pipe()
	hits := 0
	r := scrubber(token).Frames(in, func(scrub.Found) { hits++ }, nil)
	buf := make([]byte, 100_000)
	long := strings.Repeat("more. ", 10_000)
	tail := 20 * len(token)
	for i, step := range []struct{ sent, want []byte }{
		{frame{0x81, "hello " + token[:20]}.bytes(), frame{0x81, "hello " + token[:20]}.bytes()},
		{frame{0x01, long + token[:9]}.bytes(), frame{0x01, long[:len(long)+9-tail]}.bytes()},
		{frame{0x89, "ping"}.bytes(), frame{0x89, "ping"}.bytes()},
		{frame{0x00, token[9:] + ". "}.bytes(), frame{0x00, long[len(long)+9-tail:][:len(token)-9+2]}.bytes()},
		{frame{0x80, "end"}.bytes(), frame{0x80, long[len(long)+len(token)+2-tail:] + stars(len(token)) + ". end"}.bytes()},
		{frame{0x82, long}.bytes()[:20_000], frame{0x82, long}.bytes()[:20_000-tail]},
		{frame{0x82, long}.bytes()[20_000:], frame{0x82, long}.bytes()[20_000-tail:]},
	} {
		go out.Write(step.sent)
		n, err := io.ReadFull(r, buf[:len(step.want)])
		if err != nil || !bytes.Equal(buf[:n], step.want) {
			t.Fatalf("step %d: %.100q, %v", i, buf[:n], err)
		}
	}
	out.Close()
	if n, err := r.Read(buf); n != 0 || err != io.EOF || hits != 1 {
		t.Errorf("at the end %d, %v, %d hits", n, err, hits)
	}
}

// A small message goes out by one write, as it came in.
func TestFramesStayInOnePiece(t *testing.T) {
	in := stream(frame{0x81, "one"}, frame{0x89, ""}, frame{0x81, strings.Repeat("two", 100)})
	r := scrubber(token).Frames(bytes.NewReader(in), nil, nil)
	for _, want := range []frame{{0x81, "one"}, {0x89, ""}, {0x81, strings.Repeat("two", 100)}} {
		buf := make([]byte, 1000)
		n, err := r.Read(buf)
		if err != nil || !bytes.Equal(buf[:n], want.bytes()) {
			t.Errorf("%q, %v", buf[:n], err)
		}
	}
}

// FuzzWebSocketScrub compares messages in fragments, cut in pieces, with each one
// scrubbed as a whole; and what comes after them, whatever it is, in pieces and
// not.
func FuzzWebSocketScrub(f *testing.F) {
	f.Add("sk-12345678", []byte("\x81\x05hello"), uint64(1))
	f.Add("hunter22", []byte("\x01\x04hunt\x89\x00\x80\x04er22"), uint64(2))
	f.Add("hunter22hunter22", []byte("\x81\x7e\x00\x7d"), uint64(3))
	f.Fuzz(func(t *testing.T, secret string, hostile []byte, seed uint64) {
		secret = strings.TrimSpace(secret)
		if len(secret) < scrub.MinLength || len(secret) > 100 {
			t.Skip("no secret of a length that is tried")
		}
		s := newSpeller(seed)
		scrubber := scrubber(secret)
		var in, want []frame
		control := func() {
			f := frame{byte(0x89 + s.IntN(2)), secret}
			in = append(in, f)
			f.payload, _ = scrubbed(t, scrubber, strings.NewReader(f.payload))
			want = append(want, f)
		}
		for range s.IntN(5) {
			data := s.body(secret, hostile[:min(len(hostile), 50)])
			if s.IntN(3) == 0 {
				data = append(bytes.Repeat([]byte("long. "), s.IntN(2000)), data...)
			}
			clean, _ := scrubbed(t, scrubber, bytes.NewReader(data))
			op := byte(1 + s.IntN(2))
			message := frame{0x80 | op, clean}
			for s.IntN(4) > 0 {
				n := s.IntN(len(data) + 1)
				in = append(in, frame{op, string(data[:n])})
				data, op = data[n:], 0
				if s.IntN(2) == 0 {
					control()
				}
			}
			in = append(in, frame{0x80 | op, string(data)})
			want = append(want, message)
		}
		good := stream(in...)
		hits := 0
		got, err := io.ReadAll(iotest.HalfReader(scrubber.Frames(newCutter(good, seed), func(scrub.Found) { hits++ }, nil)))
		frames, rest := parse(got)
		if frames = whole(t, frames); err != nil || len(rest) > 0 || fmt.Sprint(frames) != fmt.Sprint(want) {
			t.Errorf("%v, %q left\n got %q\nwant %q", err, rest, frames, want)
		}

		bad := append(good, hostile...)
		one, oneErr := io.ReadAll(scrubber.Frames(bytes.NewReader(bad), nil, nil))
		two, twoErr := io.ReadAll(scrubber.Frames(newCutter(bad, seed), nil, nil))
		if !bytes.Equal(one, two) || fmt.Sprint(oneErr) != fmt.Sprint(twoErr) || !bytes.HasPrefix(one, got) {
			t.Errorf("after the good ones: %q, %v; in pieces: %q, %v", one, oneErr, two, twoErr)
		}
	})
}
