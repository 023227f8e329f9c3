package scrub_test

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"hash/crc32"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"

	"sallyport/internal/test/must"
)

// event is a message of Amazon's event streams, without headers.
func event(payload string) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(16+len(payload)))
	b = binary.BigEndian.AppendUint32(b, 0)
	b = binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
	b = append(b, payload...)
	return binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
}

// watched is a message of a watch.
func watched(payload string) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(payload))), payload...)
}

// webText is a message of gRPC-Web in base64.
func webText(payload string) []byte {
	return []byte(base64.StdEncoding.EncodeToString(message{0, payload}.bytes()))
}

// streamOf are the kinds of streams whose messages begin with their lengths.
var streamOf = map[string]struct {
	contentType string
	message     func(string) []byte
}{
	"events":            {"application/vnd.amazon.eventstream", event},
	"a watch":           {"application/vnd.kubernetes.protobuf;stream=watch", watched},
	"base64":            {"application/grpc-web-text+proto; charset=utf-8", webText},
	"base64, no format": {"Application/GRPC-Web-Text", webText},
}

// scrubStream scrubs a body of a media type.
func scrubStream(t *testing.T, contentType string, body io.Reader) io.Reader {
	t.Helper()
	r := &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {contentType}}, Body: io.NopCloser(body), ContentLength: -1}
	must.OK(t, scrubber(token).Response(r, nil))
	return r.Body
}

// wire is a body whose server waits between what it sends.
type wire struct {
	*io.PipeWriter
	mu  sync.Mutex
	got []byte
	err error
}

func newWire(t *testing.T, contentType string) *wire {
	in, out := io.Pipe()
	w := &wire{PipeWriter: out}
	r := scrubStream(t, contentType, in)
	go func() {
		for buf, err := make([]byte, 4<<10), error(nil); err == nil; {
			var n int
			n, err = r.Read(buf)
			w.mu.Lock()
			w.got, w.err = append(w.got, buf[:n]...), err
			w.mu.Unlock()
		}
	}()
	return w
}

// send returns what comes after a message was sent, while the server sends nothing
// more.
func (w *wire) send(sent []byte) (got []byte) {
	_, _ = w.Write(sent)
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	got, w.got = w.got, nil
	return got
}

// A message comes when it was sent, whatever comes after it, and so does each part
// of a long one, but for a tail.
func TestStreamsOfMessages(t *testing.T) {
	tail := 20 * len(token)
	for name, kind := range streamOf {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWire(t, kind.contentType)
				defer w.Close()
				for size := range 30 {
					m := kind.message(strings.Repeat("x", size))
					if got := w.send(m); !bytes.Equal(got, m) {
						t.Fatalf("of a message of %d bytes %d came", len(m), len(got))
					}
				}
				m := kind.message("you sent " + token + ".")
				if got := w.send(m); len(got) != len(m) || bytes.Equal(got, m) || bytes.Count(got, []byte("*")) < len(token)-1 {
					t.Errorf("with a secret: %q", got)
				}
				m = kind.message(strings.Repeat("some of it. ", tail))
				if got := w.send(m[:2*tail]); !bytes.Equal(got, m[:tail]) {
					t.Errorf("of a long message's %d bytes so far came %d, want %d", 2*tail, len(got), tail)
				}
				if got := w.send(m[2*tail:]); !bytes.Equal(got, m[tail:]) {
					t.Errorf("of its other %d bytes came %d", len(m)-tail, len(got))
				}
				m = kind.message("cut off")
				if got := w.send(m[:len(m)-1]); len(got) > 0 {
					t.Errorf("before its end came %q", got)
				}
				_ = w.Close()
				if got := w.send(nil); w.err != io.EOF || !bytes.Equal(got, m[:len(m)-1]) {
					t.Errorf("cut off: %q, %v", got, w.err)
				}
			})
		})
	}
}

// A stream whose next length cannot be is searched as one text to its end, and as much of
// it is kept back as of any text. So a secret is found where a head would have been.
func TestStreamsOfOther(t *testing.T) {
	tail := 20 * len(token)
	plain := strings.Repeat("k8s and so on ", tail)
	for name, test := range map[string]struct {
		contentType string
		body        []byte
	}{
		"one object":                 {"application/vnd.kubernetes.protobuf", []byte("k8s\x00" + plain)},
		"an object of a watch":       {"application/vnd.kubernetes.protobuf;stream=watch", []byte("k8s\x00" + plain)},
		"a length beyond belief":     {"application/vnd.kubernetes.protobuf;stream=watch", []byte("\x01\x00\x00\x00" + plain)},
		"an event of no length":      {"application/vnd.amazon.eventstream", []byte("\x00\x00\x00\x00" + plain)},
		"an event shorter than that": {"application/vnd.amazon.eventstream", []byte("\x00\x00\x00\x03" + plain)},
		"an event beyond belief":     {"application/vnd.amazon.eventstream", []byte("\x01\x80\x00\x01" + plain)},
		"no base64":                  {"application/grpc-web-text", []byte("AAAA-AAAA" + plain)},
		"base64 of no message":       {"application/grpc-web-text", []byte(strings.Repeat("U2Vj", tail))},
		"a head apart":               {"application/grpc-web-text", []byte("AAAAAAE=" + strings.Repeat("QUFB", tail))},
		"base64 across messages":     {"application/grpc-web-text", []byte(base64.StdEncoding.EncodeToString(bytes.Repeat(message{0, "12"}.bytes(), tail)))},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWire(t, test.contentType)
				got := w.send(test.body)
				if !bytes.Equal(got, test.body[:len(test.body)-tail]) {
					t.Errorf("%d of %d bytes came, want all but %d", len(got), len(test.body), tail)
				}
				got = append(got, w.send([]byte(token))...)
				_ = w.Close()
				got = append(got, w.send(nil)...)
				if want := string(test.body) + stars(len(token)); w.err != io.EOF || string(got) != want {
					t.Errorf("%d bytes, want %d, %v", len(got), len(want), w.err)
				}
			})
		})
	}
	for name, kind := range streamOf {
		for _, before := range []string{"", "\x01", string(kind.message("")) + "\x02"} {
			got, err := io.ReadAll(scrubStream(t, kind.contentType, iotest.OneByteReader(strings.NewReader(before+token))))
			if err != nil || string(got) != before+stars(len(token)) {
				t.Errorf("%s: %q, %v", name, got, err)
			}
		}
	}
}

// FuzzStreamScrub gives hostile bytes as streams: they stay as long as they are, and
// what has no secret in it stays as it is.
func FuzzStreamScrub(f *testing.F) {
	for _, kind := range streamOf {
		f.Add(kind.contentType, append(kind.message("hello"), kind.message(token)...), uint64(1))
	}
	f.Fuzz(func(t *testing.T, contentType string, body []byte, seed uint64) {
		got, err := io.ReadAll(scrubStream(t, contentType, newCutter(body, seed)))
		if err != nil {
			t.Skip("not a stream that gRPC reads")
		}
		whole, _ := io.ReadAll(scrubStream(t, contentType, bytes.NewReader(body)))
		if len(got) != len(body) || !bytes.Equal(got, whole) {
			t.Errorf("%d bytes of %d; in one piece %q, in several %q", len(got), len(body), whole, got)
		}
	})
}
