package gateway_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A sandbox that takes its time to wake holds nobody up but those who visit it.
func TestInboundSlowWake(t *testing.T) {
	t.Parallel()
	n, token := newInbound(t)
	other := n.expose(t, "other", "sb-2", n.port)
	n.slow = make(chan struct{})
	release := sync.OnceFunc(func() { close(n.slow) })
	defer release()
	var visits sync.WaitGroup
	var fine atomic.Int32
	for range 40 {
		visits.Go(func() {
			if r, _ := n.ask(t, "GET / HTTP/1.1\r\nHost: "+n.host("demo")+"\r\nAuthorization: Bearer "+token+"\r\n\r\n"); r.StatusCode == 200 {
				fine.Add(1)
			}
		})
	}
	for deadline := time.Now().Add(3 * time.Second); n.wakes.Load() == 0 && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(100 * time.Millisecond)
	began := time.Now()
	if r, body := n.ask(t, "GET / HTTP/1.1\r\nHost: "+n.host("other")+"\r\nAuthorization: Bearer "+other+"\r\n\r\n"); r.StatusCode != 200 || time.Since(began) > time.Second {
		t.Errorf("another sandbox, after %v: %d %s", time.Since(began), r.StatusCode, body)
	}
	release()
	visits.Wait()
	if fine.Load() != 40 {
		t.Errorf("%d of its visits came through", fine.Load())
	}
}
