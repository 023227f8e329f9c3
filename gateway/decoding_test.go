package gateway_test

import (
	"bytes"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/zstd"

	"sallyport/gateway"
	"sallyport/gateway/credential/decode"
)

func zstded(text []byte) []byte {
	var b bytes.Buffer
	w, _ := zstd.NewWriter(&b, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(8<<20))
	_, _ = w.Write(text)
	_ = w.Flush()
	return b.Bytes()
}

func brotlied(text []byte) []byte {
	var b bytes.Buffer
	w := brotli.NewWriterOptions(&b, brotli.WriterOptions{Quality: 5, LGWin: 24})
	_, _ = w.Write(text)
	_ = w.Flush()
	return b.Bytes()
}

func inUse() uint64 {
	runtime.GC()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return s.HeapAlloc
}

// However many compressed answers a sandbox leaves stuck, they hold no more memory
// than it has a share of.
func TestStuckAnswersHoldBoundedMemory(t *testing.T) {
	for _, tt := range []struct {
		coding string
		code   func([]byte) []byte
		size   int // of the text
		status int // of those that there is no memory for
		why    string
	}{
		{"zstd", zstded, 2000, 503, "too many compressed answers"},
		{"br", brotlied, 17 << 20, 503, "too many compressed answers"},
		{"zstd, zstd, zstd", func(p []byte) []byte { return zstded(zstded(zstded(p))) }, 2000, 502, "cannot be searched"},
	} {
		t.Run(tt.coding, func(t *testing.T) {
			if tt.coding == "br" && !soaking() {
				t.Skip("bounded as zstd is: needs SALLYPORT_SOAK")
			}
			m := newVersionEnv(t, "transparent", "h2", "h1", "https")
			m.quiet = true
			m.credential("key", token)
			m.policy(m.keyed)
			m.handle("/keyed", func(http.ResponseWriter, *http.Request) {})
			body, done := tt.code(make([]byte, tt.size)), make(chan struct{})
			m.handle("/", func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Encoding", tt.coding)
				_, _ = w.Write(body)
				_ = http.NewResponseController(w).Flush()
				select {
				case <-done:
				case <-r.Context().Done():
				}
			})
			text(t, m.do(t, m.request(t, "GET", "/keyed", nil)))
			before := inUse()
			const n, kept = 64, 1000 // more than is kept back of an answer that has not ended
			var read, refused atomic.Int64
			var readers sync.WaitGroup
			for range n {
				readers.Go(func() {
					resp, err := m.client.Do(m.request(t, "GET", "/stuck", nil))
					if err != nil {
						t.Error(err)
						return
					}
					defer resp.Body.Close()
					if resp.StatusCode == 200 {
						k, _ := io.CopyN(io.Discard, resp.Body, int64(tt.size-kept))
						read.Add(k)
						<-done
						return
					}
					if body := text(t, resp); resp.StatusCode != tt.status || !strings.Contains(body, tt.why) {
						t.Errorf("%d %s", resp.StatusCode, body)
					}
					refused.Add(1)
				})
			}
			for last, end := int64(-1), time.Now().Add(30*time.Second); refused.Load() != last && time.Now().Before(end) || refused.Load() == 0; time.Sleep(time.Second) {
				last = refused.Load()
			}
			const most = decode.MaxShare + 32<<20 // the rest is of connections
			held := int64(inUse()) - int64(before)
			t.Logf("%d stuck answers, %d of them refused, hold %.1f MiB", n, refused.Load(), float64(held)/(1<<20))
			if held > most {
				t.Errorf("more than %d MiB", most>>20)
			}
			if tt.status == 503 && read.Load() < int64(tt.size-kept) {
				t.Error("none was read")
			}
			close(done)
			readers.Wait()
			for end := time.Now().Add(patience); m.gauge("sallyport_gateway_decoding_bytes") > 0; time.Sleep(20 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("what has ended holds memory")
				}
			}
		})
	}
}

// An answer that is left unread gives its memory back in the end, and is recorded
// as left.
func TestDecodedAnswerLeftUnreadIsEnded(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"h1", "h2"} {
		t.Run(version, func(t *testing.T) {
			w := newNetEnv(t, func(o *gateway.Options) { o.StallTimeout = 2 * time.Second })
			w.quiet = true
			m := &versionEnv{netEnv: w, version: version, upstream: "h1", scheme: "https", origin: w.origin("api.example.test", "h1", true), dial: w.steer}
			m.client = w.agent(version, true, m.dial, false)
			m.credential("key", token)
			m.policy(m.keyed)
			m.handle("/keyed", func(http.ResponseWriter, *http.Request) {})
			body := zstded(make([]byte, 64<<20))
			m.handle("/", func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Encoding", "zstd")
				_, _ = w.Write(body)
			})
			text(t, m.do(t, m.request(t, "GET", "/keyed", nil)))
			resp := m.do(t, m.request(t, "GET", "/left", nil))
			_, _ = io.CopyN(io.Discard, resp.Body, 10)
			const gauge = "sallyport_gateway_decoding_bytes"
			if got := m.gauge(gauge); got < 8<<20 {
				t.Fatalf("%v bytes are held", got)
			}
			for end := time.Now().Add(patience); m.gauge(gauge) > 0; time.Sleep(20 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("%v bytes are held", m.gauge(gauge))
				}
			}
			events := m.await(4)
			if c := events[3]; c.Detail != "the sandbox went away" {
				t.Errorf("completion %+v", c)
			}
		})
	}
}
