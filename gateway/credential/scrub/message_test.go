package scrub_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"sallyport/gateway/credential/decode"
	"sallyport/gateway/credential/scrub"
	"sallyport/internal/test/must"
)

// message is one of gRPC's.
type message struct {
	flags byte
	data  string
}

func (m message) bytes() []byte {
	return append(binary.BigEndian.AppendUint32([]byte{m.flags}, uint32(len(m.data))), m.data...)
}

// messages takes a body apart.
func messages(body []byte) (all []message, rest []byte) {
	for len(body) >= 5 {
		n := int(binary.BigEndian.Uint32(body[1:]))
		if n > len(body)-5 {
			break
		}
		all = append(all, message{body[0], string(body[5 : 5+n])})
		body = body[5+n:]
	}
	return all, body
}

// scrubMessages scrubs a body of messages.
func scrubMessages(t testing.TB, contentType, encoding string, body io.Reader, hit func(scrub.Found), secrets ...string) (*http.Response, io.Reader) {
	t.Helper()
	r := &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {contentType}}, Body: io.NopCloser(body), ContentLength: -1}
	header := "Grpc-Encoding"
	if strings.HasPrefix(contentType, "application/connect") {
		header = "Connect-Content-Encoding"
	}
	if encoding != "" {
		r.Header.Set(header, encoding)
	}
	must.OK(t, scrubber(secrets...).Response(r, hit))
	if encoding != "" && encoding != "identity" && r.Header.Get(header) != "" {
		t.Errorf("%s: %s is left", header, r.Header.Get(header))
	}
	return r, r.Body
}

func TestMessages(t *testing.T) {
	said := "you sent " + token
	clean := "you sent " + stars(len(token))
	long := strings.Repeat("x", 100_000)
	tests := []struct {
		name, contentType, encoding string
		in, want                    []message
	}{
		{"none", "application/grpc", "", nil, nil},
		{"empty", "application/grpc", "", []message{{0, ""}, {0, ""}}, []message{{0, ""}, {0, ""}}},
		{"plain", "application/grpc+proto", "", []message{{0, said}, {0, "ok"}}, []message{{0, clean}, {0, "ok"}}},
		{"long", "application/grpc", "", []message{{0, long + said}, {0, said + long}}, []message{{0, long + clean}, {0, clean + long}}},
		{"of two messages", "application/grpc", "", []message{{0, said[:20]}, {0, said[20:]}}, []message{{0, said[:20]}, {0, said[20:]}}},
		{"gzip", "application/grpc; x=y", "gzip", []message{{1, said}, {0, said}, {1, ""}}, []message{{0, clean}, {0, clean}, {0, ""}}},
		{"deflate", "application/grpc", "deflate", []message{{1, said + long}}, []message{{0, clean + long}}},
		{"zstd", "application/grpc", "zstd", []message{{1, said}}, []message{{0, clean}}},
		{"identity", "application/grpc", "identity", []message{{0, said}}, []message{{0, clean}}},
		{"for the web", "Application/GRPC-Web+proto", "gzip", []message{{1, said}, {0x80, "x: " + token}, {0x81, "x: " + token}}, []message{{0, clean}, {0x80, "x: " + stars(len(token))}, {0x80, "x: " + stars(len(token))}}},
		{"Connect", "application/connect+json", "gzip", []message{{1, said}, {2, said}, {3, said}}, []message{{0, clean}, {2, clean}, {2, clean}}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var body []byte
			for _, m := range test.in {
				if m.flags&1 != 0 {
					m.data = string(coded(t, test.encoding, m.data))
				}
				body = append(body, m.bytes()...)
			}
			for name, src := range map[string]io.Reader{"whole": bytes.NewReader(body), "byte by byte": iotest.OneByteReader(bytes.NewReader(body)), "with EOF": iotest.DataErrReader(bytes.NewReader(body))} {
				_, r := scrubMessages(t, test.contentType, test.encoding, src, nil, token)
				got, err := io.ReadAll(r)
				all, rest := messages(got)
				if err != nil || len(rest) > 0 || fmt.Sprint(all) != fmt.Sprint(test.want) {
					t.Errorf("%s: %v, %d messages, %d bytes left", name, err, len(all), len(rest))
				}
			}
		})
	}
}

func TestMessagesRefused(t *testing.T) {
	member := strings.Repeat("\x00", 1<<20)
	gzips := bytes.Repeat(coded(t, "gzip", member), 5)
	zstds := bytes.Repeat(coded(t, "zstd", member), 5)
	tests := []struct {
		name, contentType, encoding string
		body                        []byte
		hidden                      bool
	}{
		{"unknown flags", "application/grpc", "", message{2, token}.bytes(), true},
		{"a trailer in gRPC", "application/grpc", "", message{0x80, token}.bytes(), true},
		{"compressed in a way not said", "application/grpc", "", message{1, token}.bytes(), true},
		{"compressed in no way", "application/grpc", "identity", message{1, token}.bytes(), true},
		{"not what it says", "application/grpc", "gzip", message{1, token}.bytes(), false},
		{"two compressed as one", "application/grpc", "deflate", message{1, string(coded(t, "deflate", "a")) + string(coded(t, "deflate", token))}.bytes(), false},
		{"long", "application/grpc", "gzip", message{1, string(gzips)}.bytes(), true},
		{"long by another coding", "application/grpc", "zstd", message{1, string(zstds)}.bytes(), true},
		{"cut in its head", "application/grpc", "", []byte{0, 0, 0}, false},
		{"cut", "application/grpc", "", message{0, token}.bytes()[:20], false},
		{"cut when compressed", "application/grpc", "gzip", message{1, string(coded(t, "gzip", token))}.bytes()[:20], false},
		{"cut before it is compressed", "application/grpc", "gzip", []byte{1, 0, 0, 0, 9}, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, r := scrubMessages(t, test.contentType, test.encoding, bytes.NewReader(append(message{0, "ok"}.bytes(), test.body...)), nil, token)
			got, err := io.ReadAll(r)
			if err == nil || errors.Is(err, scrub.ErrHidden) != test.hidden || !bytes.HasPrefix(got, message{0, "ok"}.bytes()) || strings.Contains(string(got), token) {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
}

// A message comes when it was sent, and so does each part of a long one.
func TestMessagesStream(t *testing.T) {
	in, out := io.Pipe()
	_, r := scrubMessages(t, "application/grpc", "gzip", in, nil, token)
	buf := make([]byte, 1000)
	tail := 20 * len(token)
	long := strings.Repeat("some of it. ", tail)
	for _, m := range []struct{ sent, want []byte }{
		{message{0, "hello " + token[:20]}.bytes(), message{0, "hello " + token[:20]}.bytes()},
		{message{1, string(coded(t, "gzip", token))}.bytes(), message{0, stars(len(token))}.bytes()},
		{[]byte{0, 0, 0, 8, 0}, []byte{0, 0, 0, 8, 0}},
		{[]byte(long[:tail] + "more. " + token[:10]), []byte(long[:16])},
		{[]byte(token[10:] + "!"), []byte(long[16:][:len(token)-10+1])},
	} {
		go out.Write(m.sent)
		n, err := io.ReadFull(r, buf[:len(m.want)])
		if err != nil || !bytes.Equal(buf[:n], m.want) {
			t.Fatalf("%q: %q, %v", m.sent, buf[:n], err)
		}
	}
	out.Close()
	if _, err := r.Read(buf); err != io.ErrUnexpectedEOF {
		t.Errorf("cut off: %v", err)
	}
}

// FuzzGRPCScrub compares messages, cut in pieces, with each one scrubbed as a
// whole.
func FuzzGRPCScrub(f *testing.F) {
	f.Add("sk-12345678", []byte("\x00\x00\x00\x00\x05hello"), uint64(1))
	f.Add("hunter22", append(message{1, string(coded(f, "gzip", "hunter22"))}.bytes(), message{0, "x"}.bytes()...), uint64(2))
	f.Fuzz(func(t *testing.T, secret string, hostile []byte, seed uint64) {
		secret = strings.TrimSpace(secret)
		if len(secret) < scrub.MinLength || len(secret) > 100 {
			t.Skip("no secret of a length that is tried")
		}
		s := newSpeller(seed)
		encoding := []string{"gzip", "deflate", "br", "zstd"}[s.IntN(4)]
		var body, want []byte
		broken := false
		for range s.IntN(5) {
			m := message{0, string(s.body(secret, hostile[:min(len(hostile), 50)]))}
			clean, _ := scrubbed(t, scrubber(secret), strings.NewReader(m.data))
			want = append(want, message{0, clean}.bytes()...)
			if s.IntN(2) == 0 {
				m = message{1, string(coded(t, encoding, m.data))}
			}
			body = append(body, m.bytes()...)
		}
		// The rest may be anything.
		for at := 0; at < len(hostile) && !broken; {
			rest := hostile[at:]
			size := -1
			if len(rest) >= 5 {
				size = int(binary.BigEndian.Uint32(rest[1:]))
			}
			if size < 0 || size > len(rest)-5 || rest[0] > 1 {
				broken = true
				break
			}
			data := rest[5 : 5+size]
			if rest[0] == 1 {
				r, _ := decode.NewReader(bytes.NewReader(data), []string{encoding}, nil)
				var err error
				if data, err = io.ReadAll(io.LimitReader(r, 65<<20)); err != nil || len(data) > 64<<20 {
					broken = true
					break
				}
			}
			clean, _ := scrubbed(t, scrubber(secret), bytes.NewReader(data))
			want = append(want, message{0, clean}.bytes()...)
			at += 5 + size
		}
		body = append(body, hostile...)

		_, r := scrubMessages(t, "application/grpc", encoding, newCutter(body, seed), nil, secret)
		got, err := io.ReadAll(iotest.HalfReader(r))
		if (err != nil) != broken || !bytes.HasPrefix(got, want) || !broken && len(got) != len(want) {
			t.Errorf("%v, broken %v\n got %q\nwant %q", err, broken, got, want)
		}
	})
}
