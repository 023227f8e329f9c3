package gateway_test

import (
	"sync"
	"sync/atomic"
	"testing"

	"sallyport/internal/test/must"
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
	must.Soon(t, "the visits", func() bool {
		n.env.mu.Lock()
		defer n.env.mu.Unlock()
		return n.wakes.Load() == 1 && len(n.env.events) == 40 // they are decided on before they wait
	})
	if r, body := n.ask(t, "GET / HTTP/1.1\r\nHost: "+n.host("other")+"\r\nAuthorization: Bearer "+other+"\r\n\r\n"); r.StatusCode != 200 {
		t.Errorf("another sandbox: %d %s", r.StatusCode, body)
	}
	release()
	visits.Wait()
	if fine.Load() != 40 {
		t.Errorf("%d of its visits came through", fine.Load())
	}
}
