package gateway_test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"testing"
	"time"

	"sallyport/internal/test/must"
)

// TestIdlingInEarnest is silent for as long as SALLYPORT_IDLE says, by the clock
// on the wall and over sockets: what TestHoursOfSilence cannot have, TCP's
// keep-alive and a server of gRPC that minds how often it is pinged, is here.
func TestIdlingInEarnest(t *testing.T) {
	silence, err := time.ParseDuration(os.Getenv("SALLYPORT_IDLE"))
	if err != nil {
		t.Skip("takes SALLYPORT_IDLE=20m")
	}
	begun := time.Now()
	for _, way := range []string{"transparent", "explicit"} {
		for _, version := range []string{"h1", "h2"} {
			t.Run(fmt.Sprint("WebSocket/", way, "/", version), func(t *testing.T) {
				m := newVersionEnv(t, way, version, "h1", "https")
				if m.explicit {
					m.dial = m.connect
				}
				m.mux.Handle("/ws", echoing)
				s, _, err := m.upgrade(t, "/ws")
				must.OK(t, err)
				s.echoes(t, "hello")
				t.Parallel()
				time.Sleep(silence - time.Since(begun))
				s.echoes(t, "still there")
				t.Logf("after %v", time.Since(begun))
				s.Close()
			})
		}
		t.Run("gRPC/"+way, func(t *testing.T) {
			w := newNetEnv(t)
			o := w.interopServer("api.example.test", true)
			dial := dialler(w.steer)
			if way == "explicit" {
				dial = w.connect
			}
			in, out := io.Pipe()
			r, err := http.NewRequest("POST", o.url("https", "/grpc.testing.TestService/FullDuplexCall"), in)
			must.OK(t, err)
			r.Header.Set("Content-Type", "application/grpc")
			r.Header.Set("Te", "trailers")
			// Wants one message of one byte: response_parameters {size: 1}.
			ask := func() { _, _ = out.Write([]byte{0, 0, 0, 0, 4, 0x12, 2, 8, 1}) }
			go ask()
			resp, err := w.agent("h2", true, dial, false).Do(r)
			must.OK(t, err)
			answer := func() {
				t.Helper()
				var head [5]byte
				if _, err := io.ReadFull(resp.Body, head[:]); err != nil {
					t.Fatal(err)
				}
				if _, err := io.CopyN(io.Discard, resp.Body, int64(head[4])); err != nil {
					t.Fatal(err)
				}
			}
			answer()
			t.Parallel()
			time.Sleep(silence - time.Since(begun))
			go ask()
			answer()
			out.Close()
			if _, err := io.ReadAll(resp.Body); err != nil || resp.Trailer.Get("Grpc-Status") != "0" {
				t.Errorf("%v %v", err, resp.Trailer)
			}
			resp.Body.Close()
			t.Logf("after %v", time.Since(begun))
		})
	}
}
