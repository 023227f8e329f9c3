package gateway_test

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"sallyport/internal/test/must"
)

// A client that has gone is noticed while its upstream says nothing, also behind
// what it had sent ahead of its turn.
func TestClientThatHasGoneIsNoticed(t *testing.T) {
	t.Parallel()
	for _, ahead := range []string{"", "G", "GET / HTTP/1.1\r\n" + strings.Repeat("X-Filler: x\r\n", 2000)} {
		for _, secure := range []bool{true, false} {
			t.Run(fmt.Sprintf("%d bytes ahead, TLS %v", len(ahead), secure), func(t *testing.T) {
				l := newEnv(t)
				l.policy(allow)
				l.name("api.example.test")
				gone := make(chan struct{})
				l.upstream("api.example.test", secure, func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Content-Type", "text/event-stream")
					fmt.Fprint(w, "data: 1\n\n")
					_ = http.NewResponseController(w).Flush()
					select {
					case <-r.Context().Done():
						close(gone)
					case <-t.Context().Done():
					}
				})
				to := l.address("api.example.test").String()
				var c net.Conn
				if secure {
					tc, err := l.secure(to+":443", "api.example.test")
					must.OK(t, err)
					c = tc
				} else {
					c = l.raw(to + ":80")
				}
				defer c.Close()
				_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: api.example.test\r\n\r\n"+ahead)
				b := make([]byte, 4096)
				for got := ""; !strings.Contains(got, "data: 1"); {
					n, err := c.Read(b)
					must.OK(t, err)
					got += string(b[:n])
				}
				time.Sleep(250 * time.Millisecond) // until it is watched
				select {
				case <-gone:
					t.Fatal("taken for gone")
				default:
				}
				if over, ok := c.(*tls.Conn); ok {
					c = over.NetConn()
				}
				_ = c.Close()
				select {
				case <-gone:
				case <-time.After(patience):
					t.Error("the upstream's stream goes on")
				}
			})
		}
	}
}
