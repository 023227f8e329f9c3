package gateway_test

import (
	"net/http"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"sallyport/internal/test/must"
	"sallyport/policy"
)

// A sandbox that has hundreds of requests begun, and resets them, has few of them in work at a time:
// the others wait asleep, and another sandbox's request is not behind them.
func TestFloodWaitsForItsTurn(t *testing.T) {
	w := newNetEnv(t)
	w.quiet = true
	o := w.origin("api.example.test", "h2", true)
	o.handle("/", func(w http.ResponseWriter, r *http.Request) {})
	var entered atomic.Int64
	release := make(chan struct{})
	w.policy(func(in policy.Input) policy.Decision {
		if in.Sandbox.ID == "sb-1" && in.Phase == policy.PhaseRequest {
			entered.Add(1)
			<-release
		}
		return w.allow(in)
	})
	const conns, each = 5, 100
	for range conns {
		c := w.frames(w.steer, o)
		for range each {
			if _, err := c.open(true, o.request("/")...); err != nil {
				t.Fatal(err)
			}
		}
	}
	most := int64(16 * runtime.GOMAXPROCS(0))
	for deadline := time.Now().Add(patience); entered.Load() < most && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
	time.Sleep(300 * time.Millisecond) // more would have come
	if n := entered.Load(); n != most {
		t.Errorf("%d of %d requests of a sandbox are decided about at once, want %d", n, conns*each, most)
	}
	for range 3 {
		if resp, _ := get(t, w.agent("h2", true, w.connect, false), o.url("https", "/")); resp.StatusCode != 200 {
			t.Errorf("another sandbox's: %d", resp.StatusCode)
		}
	}
	// Those that are reset while they wait go on waiting.
	const resets = 1000
	flood := w.frames(w.steer, o)
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for range resets {
			id, err := flood.open(true, o.request("/")...)
			if err == nil {
				err = flood.WriteRSTStream(id, http2.ErrCodeCancel)
			}
			if err != nil {
				return
			}
		}
	}()
	time.Sleep(300 * time.Millisecond) // more would have come
	if n := entered.Load(); n != most {
		t.Errorf("with %d that are reset %d requests of a sandbox are decided about at once, want %d", resets, n, most)
	}
	if resp, _ := get(t, w.agent("h2", true, w.connect, false), o.url("https", "/")); resp.StatusCode != 200 {
		t.Errorf("another sandbox's meanwhile: %d", resp.StatusCode)
	}
	close(release)
	<-sent
	w.settled(t)
	// Those that have ended with their connections leave their places by and by.
	client, after := w.agent("h2", true, w.steer, false), 0
	for deadline := time.Now().Add(patience); after != 200 && time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		resp, _ := get(t, client, o.url("https", "/"))
		after = resp.StatusCode
	}
	if after != 200 {
		t.Errorf("its own, afterwards: %d", after)
	}
}

// Requests that wait for their turn count among those that a sandbox may have open, also when
// their connection has ended: however often it opens and leaves connections, no more wait.
func TestWaitingRequestsAreCounted(t *testing.T) {
	t.Parallel()
	w := newNetEnv(t)
	w.quiet = true
	o := w.origin("api.example.test", "h2", true)
	o.handle("/", func(w http.ResponseWriter, r *http.Request) {})
	release := make(chan struct{})
	w.policy(func(in policy.Input) policy.Decision {
		if in.Sandbox.ID == "sb-1" && in.Phase == policy.PhaseRequest {
			<-release
		}
		return w.allow(in)
	})
	const each = 128
	pile := func() { // opens streams, and leaves
		c := w.frames(w.steer, o)
		defer c.Close()
		for range each {
			if _, err := c.open(true, o.request("/")...); err != nil {
				t.Fatal(err)
			}
		}
		must.OK(t, c.WritePing(false, [8]byte{1}))
		for { // all of it has been read
			f, err := c.ReadFrame()
			must.OK(t, err)
			if p, ok := f.(*http2.PingFrame); ok && p.IsAck() {
				return
			}
		}
	}
	status := func() string {
		c := w.frames(w.steer, o)
		defer c.Close()
		id, err := c.open(true, o.request("/")...)
		must.OK(t, err)
		return c.waitFor(id, 2*time.Second).status
	}
	// Some of a connection's requests begin only when it has ended, and count for nothing.
	last := ""
	for n := 0; n < 64 && last != "429"; n++ {
		pile()
		if n >= 1024/each-1 {
			last = status()
		}
	}
	if last != "429" {
		t.Errorf("whatever waits, one more request gets %q, want 429", last)
	}
	if resp, _ := get(t, w.agent("h2", true, w.connect, false), o.url("https", "/")); resp.StatusCode != 200 {
		t.Errorf("another sandbox's meanwhile: %d", resp.StatusCode)
	}
	close(release)
	w.settled(t)
	// Those that have ended with their connections leave their places by and by.
	client, after := w.agent("h2", true, w.steer, false), 0
	for deadline := time.Now().Add(patience); after != 200 && time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		resp, _ := get(t, client, o.url("https", "/"))
		after = resp.StatusCode
	}
	if after != 200 {
		t.Errorf("its own, afterwards: %d", after)
	}
}
