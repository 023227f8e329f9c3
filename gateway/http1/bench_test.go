package http1_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"sallyport/gateway/http1"
	"sallyport/internal/test/must"
	"sallyport/internal/test/testnet"
)

const browser = "Host: api.example.test\r\nUser-Agent: Go-http-client/1.1\r\nAccept: application/json\r\nAccept-Encoding: gzip\r\nX-Request-Id: 7d1f\r\n"

var document = strings.Repeat("a", 1024)

// BenchmarkServe is what a request costs beside its handler.
func BenchmarkServe(b *testing.B) {
	for _, bb := range []struct{ name, text string }{
		{"get", "GET /v1/models HTTP/1.1\r\n" + browser + "\r\n"},
		{"post", "POST /v1/models HTTP/1.1\r\n" + browser + "Content-Length: 1024\r\n\r\n" + document},
		{"chunked", "POST /v1/models HTTP/1.1\r\n" + browser + "Transfer-Encoding: chunked\r\n\r\n400\r\n" + document + "\r\n0\r\n\r\n"},
	} {
		b.Run(bb.name, func(b *testing.B) {
			b.ReportAllocs()
			kind, length := []string{"application/json"}, []string{"1024"}
			body := []byte(document)
			buf := make([]byte, 4<<10)
			(&http1.Server{}).ServeConn(context.Background(), &testnet.Again{Text: bb.text, N: b.N}, func(_ context.Context, w http.ResponseWriter, r *http.Request) {
				for {
					if _, err := r.Body.Read(buf); err != nil {
						break
					}
				}
				w.Header()["Content-Type"], w.Header()["Content-Length"] = kind, length
				_, _ = w.Write(body)
			})
		})
	}
}

// BenchmarkRoundTrip is what a request to an upstream costs.
func BenchmarkRoundTrip(b *testing.B) {
	text := fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nDate: Sun, 22 Nov 2026 01:02:03 GMT\r\nContent-Length: %d\r\n\r\n%s", len(document), document)
	for _, method := range []string{"GET", "POST"} {
		b.Run(method, func(b *testing.B) {
			b.ReportAllocs()
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			c := http1.NewClientConn(&testnet.Again{Text: text, N: b.N}, http1.ClientOptions{})
			buf := make([]byte, 4<<10)
			for range b.N {
				r := (&http.Request{Method: method, Host: "h", URL: target, Header: http.Header{"Accept": {"application/json"}, "User-Agent": {""}}}).WithContext(ctx)
				if method == "POST" {
					r.Body, r.ContentLength = io.NopCloser(strings.NewReader(document)), int64(len(document))
				}
				resp, err := c.RoundTrip(r, nil)
				must.OK(b, err)
				for err == nil {
					_, err = resp.Body.Read(buf)
				}
				resp.Body.Close()
			}
		})
	}
}
