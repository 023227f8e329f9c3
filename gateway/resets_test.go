package gateway_test

import (
	"net/http"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// A sandbox that resets hundreds of requests is told to go by every connection that it does so
// on, with a record; another sandbox and its own later requests are served.
func TestResetsEndTheConnection(t *testing.T) {
	t.Parallel()
	w := newNetEnv(t)
	w.quiet = true
	o := w.origin("api.example.test", "h2", true)
	o.handle("/", func(w http.ResponseWriter, r *http.Request) {})
	flood := func(dial dialler, most int, within time.Duration) (n int, told bool) {
		c := w.frames(dial, o)
		told = false
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				frame, err := c.ReadFrame()
				if err != nil {
					return
				}
				if f, ok := frame.(*http2.GoAwayFrame); ok && f.ErrCode == http2.ErrCodeNo {
					told = true
					return
				}
			}
		}()
		for ; n < most; n++ {
			id, err := c.open(true, o.request("/")...)
			if err == nil {
				err = c.WriteRSTStream(id, http2.ErrCodeCancel)
			}
			if err != nil {
				break
			}
			if n%50 == 49 { // as they are worked on, and not beyond what the library keeps of them
				time.Sleep(20 * time.Millisecond)
			}
			select {
			case <-done:
				return n, told
			default:
			}
		}
		select {
		case <-done:
		case <-time.After(within):
			c.Close()
			<-done
		}
		return n, told
	}
	if n, told := flood(w.connect, 100, 500*time.Millisecond); told {
		t.Errorf("told to go after %d requests that were reset", n)
	}
	if n, told := flood(w.steer, 3000, patience); !told {
		t.Errorf("not told to go after %d requests that were reset", n)
	}
	if n, told := flood(w.steer, 200, patience); !told {
		t.Errorf("its next connection: not told to go after %d", n)
	}
	w.settled(t)
	found := 0
	w.mu.Lock()
	for _, e := range w.events {
		if e.Rule != nil && e.Rule.Name == "resets" && e.Unmapped.Sallyport.SandboxID == "sb-1" {
			found++
		}
	}
	w.mu.Unlock()
	if found == 0 {
		t.Error("nothing is on record")
	}
	for _, dial := range []dialler{w.connect, w.steer} {
		if resp, _ := get(t, w.agent("h2", true, dial, false), o.url("https", "/")); resp.StatusCode != 200 {
			t.Errorf("afterwards: %d", resp.StatusCode)
		}
	}
}
