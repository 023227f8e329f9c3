package api_test

import (
	"crypto/tls"
	"net"
	"strings"
	"testing"
	"time"

	"sallyport/internal/api"
	"sallyport/internal/test/must"
	"sallyport/sandbox/client"
)

// Clients without a key hold as many connections as they can, and keep nobody out.
func TestStrangersKeepNobodyOut(t *testing.T) {
	_, _, h := serve(t, false)
	good, text := keyed(t, h, "good", "", "read")
	at := strings.TrimPrefix(h.remote.URL, "https://")
	var held []net.Conn
	defer func() {
		for _, c := range held {
			_ = c.Close()
		}
	}()
	for i := range 700 {
		c := need[net.Conn](t)(net.Dial("tcp", at))
		held = append(held, c)
		if i%8 == 0 { // some are further on
			over := tls.Client(c, &tls.Config{InsecureSkipVerify: true})
			if err := over.HandshakeContext(t.Context()); err != nil {
				t.Fatalf("connection %d: %v", i, err)
			}
			_, _ = over.Write([]byte("GET /v1/status HTTP/1.1\r\n"))
		}
	}
	began := time.Now()
	if _, err := api.GetStatus.Do(t.Context(), good, client.None{}); err != nil || time.Since(began) > time.Minute {
		t.Errorf("with a key, after %v: %v", time.Since(began), err)
	}
	must.Soon(t, "no more than 200 open connections of one source", func() bool {
		open := 0
		for _, c := range held {
			_ = c.SetReadDeadline(time.Now().Add(5 * time.Millisecond))
			if _, err := c.Read(make([]byte, 4096)); err != nil && !strings.Contains(err.Error(), "timeout") {
				continue
			}
			open++
		}
		return open <= 200
	})
	// A caller's connections do not count as unauthenticated.
	for range 200 {
		c := dialed(t, h, text)
		if _, err := api.GetStatus.Do(t.Context(), c, client.None{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := api.GetStatus.Do(t.Context(), good, client.None{}); err != nil {
		t.Errorf("among many of its own: %v", err)
	}
}
