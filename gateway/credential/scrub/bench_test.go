package scrub_test

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"sallyport/internal/test/must"
)

// cpu reports how many bytes a second of processor time is enough for, which
// unlike MB/s does not depend on what else the machine does.
func cpu(b *testing.B, size int) func() {
	spent := func() time.Duration {
		var u syscall.Rusage
		must.OK(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
		return time.Duration(u.Utime.Nano())
	}
	begin := spent()
	return func() { b.ReportMetric(float64(size)*float64(b.N)/(spent()-begin).Seconds()/1e6, "MB/cpu-s") }
}

func BenchmarkScrub(b *testing.B) {
	repeat := func(text string) []byte { return bytes.Repeat([]byte(text), 1<<20/len(text)) }
	random := make([]byte, 1<<20)
	for i := range random {
		random[i] = byte(rand.Uint32())
	}
	bodies := []struct {
		name string
		body []byte
	}{
		{"zero", make([]byte, 1<<20)},
		{"json", repeat(`{"id":"chatcmpl-A1b2C3","object":"chat.completion.chunk","created":1694268190,"choices":[{"index":0,"delta":{"content":" and the answer"}}]}` + "\n")},
		{"nested", repeat(`{"event":"message","data":"{\"delta\":\"and <b>the<\/b> answer\\n\",\"url\":\"https://example.test/?q=a%20b%2Fc&amp;lang=en\"}"}` + "\n")},
		{"form", repeat(`%61%6e%64+%74%68%65+%61%6e%73%77%65%72&x=%C3%BC`)},
		{"random", random},
		{"hex", []byte(hex.EncodeToString(random))[:1<<20]},
		{"base64", []byte(base64.StdEncoding.EncodeToString(random))[:1<<20]},
	}
	for _, n := range []int{1, 16} {
		var values []string
		for i := range n {
			key := fmt.Sprintf("sk-proj-%02dT3BlbkFJabcdefghijklmnop%d", i, i*7919)
			values = append(values, key, "Bearer "+key)
		}
		s := scrubber(values...)
		for _, t := range bodies {
			b.Run(fmt.Sprintf("%s/%d", t.name, n), func(b *testing.B) {
				b.SetBytes(int64(len(t.body)))
				b.ReportAllocs()
				defer cpu(b, len(t.body))()
				buf := make([]byte, 32<<10)
				for b.Loop() {
					r := s.Reader(io.NopCloser(bytes.NewReader(t.body)), nil)
					for {
						if _, err := r.Read(buf); err != nil {
							break
						}
					}
				}
			})
		}
	}
}

func BenchmarkNewScrubber(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		scrubber("sk-proj-T3BlbkFJabcdefghijklmnop0123456789")
	}
}

// BenchmarkContent reads what takes more than searching.
func BenchmarkContent(b *testing.B) {
	line := `{"id":"chatcmpl-A1b2C3","object":"chat.completion.chunk","created":1694268190,"choices":[{"index":0,"delta":{"content":" and the answer"}}]}` + "\n"
	text := strings.Repeat(line, 1<<20/len(line))
	s := scrubber("sk-proj-00T3BlbkFJabcdefghijklmnop0")
	var small []byte
	for range 1 << 20 / len(line) {
		small = append(small, message{0, line}.bytes()...)
	}
	type content struct {
		name string
		size int
		open func() io.Reader
	}
	response := func(header http.Header, body []byte) func() io.Reader {
		return func() io.Reader {
			r := &http.Response{StatusCode: 200, Header: header.Clone(), Body: io.NopCloser(bytes.NewReader(body))}
			must.OK(b, s.Response(r, nil))
			return r.Body
		}
	}
	all := []content{
		{"messages", len(small), response(http.Header{"Content-Type": {"application/grpc"}}, small)},
		{"message", len(text), response(http.Header{"Content-Type": {"application/grpc"}}, message{0, text}.bytes())},
		{"frame", len(text), func() io.Reader { return s.Frames(bytes.NewReader(frame{0x81, text}.bytes()), nil, nil) }},
	}
	var frames []byte
	for range 1 << 20 / len(line) {
		frames = append(frames, frame{0x81, line}.bytes()...)
	}
	all = append(all, content{"frames", len(frames), func() io.Reader { return s.Frames(bytes.NewReader(frames), nil, nil) }})
	for _, name := range []string{"gzip", "br", "zstd"} {
		all = append(all, content{name, len(text), response(http.Header{"Content-Encoding": {name}}, coded(b, name, text))})
	}
	for _, c := range all {
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(int64(c.size))
			b.ReportAllocs()
			defer cpu(b, c.size)()
			buf := make([]byte, 32<<10)
			for b.Loop() {
				r := c.open()
				for {
					if _, err := r.Read(buf); err != nil {
						break
					}
				}
			}
		})
	}
}
