package http1_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"sallyport/gateway/http1"
)

// TestBreakOff has the client leave while exchanges with upstreams wait: the
// connection's first, one after another, and two at once.
func TestBreakOff(t *testing.T) {
	const whole = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
	for _, tt := range []struct {
		name   string
		before int // exchanges that come to an end
		stuck  int // exchanges at once that do not
	}{{"the first", 0, 1}, {"the third", 2, 1}, {"two at once", 1, 2}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			upstreams := []*upstream{connect(t, http1.ClientOptions{}, false), connect(t, http1.ClientOptions{}, false)}
			ends := make(chan error, tt.stuck)
			c := serve(t, &http1.Server{}, func(ctx context.Context, w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/a" {
					go upstreams[0].answers(whole)
					if got := upstreams[0].exchange(request(t, ctx, "GET", nil)); got != "200 ok" {
						t.Errorf("got %s", got)
					}
					if !within(t, upstreams[0].done, "the connection") {
						t.Error("not reusable")
					}
					hello(ctx, w, r)
					return
				}
				for i := range tt.stuck {
					go func() {
						_, err := upstreams[i].client.RoundTrip(request(t, ctx, "GET", nil), nil)
						ends <- err
					}()
				}
				<-ctx.Done()
			})
			for range tt.before {
				c.send(get)
				c.receive("GET")
			}
			c.send(lines("GET /stuck HTTP/1.1", "Host: h"))
			time.Sleep(50 * time.Millisecond)
			c.Close()
			for i := range tt.stuck {
				if err := within(t, ends, "an exchange to end"); !errors.Is(err, context.Canceled) {
					t.Errorf("exchange %d: %v", i, err)
				}
			}
			c.ended()
		})
	}
}

// TestRest has connections that idle for as long as they may, and no longer,
// with answers that take longer than that.
func TestRest(t *testing.T) {
	slowly := func(ctx context.Context, w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			select {
			case <-ctx.Done():
				t.Error("a client that is there was taken for gone")
			case <-time.After(1500 * time.Millisecond):
			}
		}
		hello(ctx, w, r)
	}
	t.Run("busy", func(t *testing.T) {
		t.Parallel()
		c := serve(t, &http1.Server{IdleTimeout: 2 * time.Second}, slowly)
		for range 8 {
			c.send(get)
			c.receive("GET")
			time.Sleep(400 * time.Millisecond)
		}
	})
	t.Run("slow answers", func(t *testing.T) {
		t.Parallel()
		c := serve(t, &http1.Server{IdleTimeout: time.Second}, slowly)
		for range 3 {
			c.send(lines("GET /slow HTTP/1.1", "Host: h"))
			if got := c.receive("GET"); got != "200 (10) GET /slow " {
				t.Errorf("got %s", got)
			}
		}
		start := time.Now()
		c.send(get)
		c.receive("GET")
		c.closed()
		if d := time.Since(start); d < time.Second || d > patience/2 {
			t.Errorf("closed after %v", d)
		}
	})
	t.Run("gone after that", func(t *testing.T) {
		t.Parallel()
		left := make(chan error, 1)
		c := serve(t, &http1.Server{IdleTimeout: 500 * time.Millisecond}, func(ctx context.Context, _ http.ResponseWriter, _ *http.Request) {
			select {
			case <-ctx.Done():
			case <-time.After(patience):
			}
			left <- ctx.Err()
		})
		c.send(get)
		time.Sleep(time.Second)
		c.Close()
		if err := within(t, left, "the handler to notice"); err == nil {
			t.Error("the handler was not told")
		}
	})
}
