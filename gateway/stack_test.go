package gateway_test

import (
	"net/http"
	"runtime"
	"testing"

	"sallyport/internal/test/must"
)

// A handshake takes a stack of 16 KB. A connection that waits gives half of it
// back or more, when the collector has come by.
func TestIdleConnectionsHaveSmallStacks(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector's stacks are larger")
	}
	const n, each = 200, 12 << 10
	l := newEnv(t)
	l.policy(allow)
	l.upstream("api.example.test", true, func(w http.ResponseWriter, r *http.Request) {})
	to := l.name("api.example.test").String() + ":443"
	open := func() {
		c, err := l.secure(to, "api.example.test")
		must.OK(t, err)
		t.Cleanup(func() { c.Close() })
		if resp, _ := send(t, c, "GET / HTTP/1.1\r\nHost: api.example.test\r\n\r\n"); resp.StatusCode != http.StatusOK {
			t.Fatalf("got %s", resp.Status)
		}
	}
	stacks := func() int64 {
		for range 5 { // each halves a stack at most once
			runtime.GC()
		}
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.StackInuse)
	}
	open()
	before := stacks()
	for range n {
		open()
	}
	if got := (stacks() - before) / n; got > each {
		t.Errorf("got a stack of %d bytes for each idle connection, want at most %d", got, each)
	} else {
		t.Logf("%d bytes each", got)
	}
}
