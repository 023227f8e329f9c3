package gateway_test

import (
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/gateway"
)

// A request whose body stops half way is ended, and recorded as such. One that
// goes on slowly, whose upstream has begun to answer, or that is a conversation,
// is left alone.
func TestUploadThatStopsIsEnded(t *testing.T) {
	const stall = time.Second
	for _, tt := range []struct {
		name, path, kind string
		pause            time.Duration // between two pieces of five
		status           int
	}{
		{"stops", "/upload", "text/plain", 4 * stall, 408},
		{"goes on slowly", "/upload", "text/plain", stall / 3, 200},
		{"is answered meanwhile", "/answers", "text/plain", stall * 3 / 2, 200},
		{"is a call of gRPC", "/upload", "application/grpc+proto", stall * 3 / 2, 200},
	} {
		for _, version := range []string{"h1", "h2"} {
			for _, length := range []int64{-1, 5} {
				t.Run(tt.name+" "+version, func(t *testing.T) {
					t.Parallel()
					w := newNetEnv(t, func(o *gateway.Options) { o.StallTimeout = stall })
					m := &versionEnv{netEnv: w, version: version, upstream: "h2", scheme: "https", origin: w.origin("api.example.test", "h2", true), dial: w.steer}
					m.client = w.agent(version, true, m.dial, false)
					var got atomic.Int64
					serve := func(w http.ResponseWriter, r *http.Request) {
						if r.URL.Path == "/answers" {
							_ = http.NewResponseController(w).Flush()
						}
						n, _ := io.Copy(io.Discard, r.Body)
						got.Store(n)
					}
					m.handle("/upload", serve)
					m.handle("/answers", serve)
					body, pieces := io.Pipe()
					over := make(chan struct{})
					go func() {
						for range 5 {
							if _, err := io.WriteString(pieces, "x"); err != nil {
								return
							}
							select {
							case <-time.After(tt.pause):
							case <-over:
								return
							}
						}
						pieces.Close()
					}()
					defer body.Close()
					defer close(over)
					r := m.request(t, "POST", tt.path, body)
					r.Header.Set("Content-Type", tt.kind)
					r.ContentLength = length
					resp := m.do(t, r)
					said := text(t, resp)
					if resp.StatusCode != tt.status {
						t.Fatalf("%d %s", resp.StatusCode, said)
					}
					if tt.status == 200 {
						if got.Load() != 5 {
							t.Errorf("%d bytes have arrived", got.Load())
						}
						return
					}
					if !strings.Contains(said, "stopped sending") {
						t.Error(said)
					}
					c := m.await(2)[1]
					if c.StatusID != audit.StatusFailure || !strings.Contains(c.Detail, "stopped sending") || c.HTTPResponse.Code != 408 {
						t.Errorf("completion %+v", c)
					}
				})
			}
		}
	}
}
