package gateway_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"sallyport/audit"
	"sallyport/gateway"
	"sallyport/internal/test/must"
)

// request is the fields of a plain request.
func (o *origin) request(path string) []field {
	return []field{{":method", "GET"}, {":scheme", "https"}, {":path", path}, {":authority", fmt.Sprintf("%s:%d", o.name, o.port)}}
}

// TestFloodOfHTTP2 has a client abuse its connection until that ends or a lot
// has been sent. It may be ended or be put up with; the gateway's memory and
// goroutines are no more than before, and others are served.
func TestFloodOfHTTP2(t *testing.T) {
	const many = 50_000
	tests := []struct {
		name string
		ends bool // the connection has to end
		send func(c *frames, o *origin) error
	}{
		{"rapid reset", false, func(c *frames, o *origin) error {
			for range many / 4 {
				id, err := c.open(true, o.request("/")...)
				if err == nil {
					err = c.WriteRSTStream(id, http2.ErrCodeCancel)
				}
				if err != nil {
					return err
				}
			}
			return nil
		}},
		{"rapid reset of bodies", false, func(c *frames, o *origin) error {
			body := make([]byte, 16<<10)
			for range many / 50 {
				id, err := c.open(false, append(o.request("/"), field{"content-length", "99999999"})...)
				if err == nil {
					err = c.WriteData(id, false, body)
				}
				if err == nil {
					err = c.WriteRSTStream(id, http2.ErrCodeCancel)
				}
				if err != nil {
					return err
				}
			}
			return nil
		}},
		{"more streams than are allowed", false, func(c *frames, o *origin) error {
			for range many {
				if _, err := c.open(false, o.request("/hang")...); err != nil {
					return err
				}
			}
			return nil
		}},
		{"CONTINUATION without end", true, func(c *frames, o *origin) error {
			if err := c.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: c.headers(o.request("/")...)}); err != nil {
				return err
			}
			block := c.headers(field{"x-a", strings.Repeat("a", 8000)})
			for range many {
				if err := c.WriteContinuation(1, false, block); err != nil {
					return err
				}
			}
			return nil
		}},
		{"empty CONTINUATION without end", false, func(c *frames, o *origin) error {
			if err := c.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: c.headers(o.request("/")...)}); err != nil {
				return err
			}
			for range many {
				if err := c.WriteContinuation(1, false, nil); err != nil {
					return err
				}
			}
			return nil
		}},
		{"header that is small on the wire only", false, func(c *frames, o *origin) error {
			var block bytes.Buffer
			e := hpack.NewEncoder(&block)
			for _, f := range o.request("/") {
				_ = e.WriteField(hpack.HeaderField{Name: f.name, Value: f.value})
			}
			for range 8000 { // each a byte, and 4 KB
				_ = e.WriteField(hpack.HeaderField{Name: "x-a", Value: strings.Repeat("a", 3900)})
			}
			for range 20 {
				if err := c.WriteHeaders(http2.HeadersFrameParam{StreamID: c.next, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true}); err != nil {
					return err
				}
				c.next += 2
			}
			return nil
		}},
		{"pings, unread", false, func(c *frames, o *origin) error {
			for range many {
				if err := c.WritePing(false, [8]byte{}); err != nil {
					return err
				}
			}
			return nil
		}},
		{"settings, unread", false, func(c *frames, o *origin) error {
			for range many {
				if err := c.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1}); err != nil {
					return err
				}
			}
			return nil
		}},
		{"empty frames of a body", false, func(c *frames, o *origin) error {
			id, err := c.open(false, o.request("/hang")...)
			for range many {
				if err != nil {
					return err
				}
				err = c.WriteData(id, false, nil)
			}
			return nil
		}},
		{"priorities", false, func(c *frames, o *origin) error {
			for i := range uint32(many) {
				if err := c.WritePriority(2*i+1, http2.PriorityParam{StreamDep: 2*i + 3}); err != nil {
					return err
				}
			}
			return nil
		}},
		{"window beyond its size", true, func(c *frames, o *origin) error {
			for range many {
				if err := c.WriteWindowUpdate(0, 1<<31-1); err != nil {
					return err
				}
			}
			return nil
		}},
		{"body beyond its window", false, func(c *frames, o *origin) error {
			id, err := c.open(false, o.request("/hang")...)
			for body := make([]byte, 16<<10); err == nil && c.next < 20_000; c.next += 2 {
				err = c.WriteData(id, false, body)
			}
			return err
		}},
	}
	w := newNetEnv(t)
	o := w.origin("api.example.test", "h2", true)
	o.handle("/hang", func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	o.handle("/", func(w http.ResponseWriter, r *http.Request) {})
	client := w.agent("h2", true, w.steer, false)
	get(t, client, o.url("https", "/"))
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			before := runtime.NumGoroutine()
			c, err := w.framed(w.steer, o)
			must.OK(t, err)
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(patience))
			start := time.Now()
			var ended error
			grew := heap(func() {
				if ended = test.send(c, o); ended == nil && test.ends {
					ended = c.drained()
				}
				start := time.Now()
				if resp, _ := get(t, client, o.url("https", "/")); resp.StatusCode != 200 || time.Since(start) > soon {
					t.Errorf("another request: %d after %v", resp.StatusCode, time.Since(start))
				}
			})
			t.Logf("%v after %v, heap +%d KiB", ended, time.Since(start), grew>>10)
			if test.ends && ended == nil {
				t.Error("the connection goes on")
			}
			if grew > flat {
				t.Errorf("the heap grew by %d MiB", grew>>20)
			}
			c.Close()
			settles(t, before)
			w.mu.Lock()
			defer w.mu.Unlock()
			w.events, w.trace = nil, nil
		})
	}
}

// drained reads until the connection ends, and says how.
func (f *frames) drained() error {
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return err
		}
		if g, ok := frame.(*http2.GoAwayFrame); ok && g.ErrCode != http2.ErrCodeNo {
			return errors.New(g.ErrCode.String())
		}
	}
}

// settles waits until there are no more goroutines than before.
func settles(t *testing.T, before int) {
	t.Helper()
	for deadline := time.Now().Add(patience); runtime.NumGoroutine() > before+2; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			stacks := make([]byte, 1<<20)
			t.Fatalf("%d goroutines, %d before\n%s", runtime.NumGoroutine(), before, stacks[:runtime.Stack(stacks, true)])
		}
	}
}

func TestHeaderThatIsTooLarge(t *testing.T) {
	t.Parallel()
	w := newNetEnv(t)
	o := w.origin("api.example.test", "h2", true)
	o.handle("/", func(w http.ResponseWriter, r *http.Request) {})
	for _, test := range []struct {
		size   int
		status string
	}{{100 << 10, "200"}, {127_000, "431"}, {200 << 10, "" /* with its connection */}, {100, "200"}} {
		c := w.frames(w.steer, o)
		var fields []field
		for i := 0; i < test.size; i += 1000 {
			fields = append(fields, field{fmt.Sprintf("x-%d", i), strings.Repeat("a", 1000)})
		}
		block := c.headers(append(o.request("/"), fields...)...)
		id := c.next
		c.next += 2
		first := min(len(block), 16<<10)
		err := c.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block[:first], EndStream: true, EndHeaders: first == len(block)})
		for rest := block[first:]; len(rest) > 0 && err == nil; {
			n := min(len(rest), 16<<10)
			err = c.WriteContinuation(id, n == len(rest), rest[:n])
			rest = rest[n:]
		}
		if a := c.wait(id); a.status != test.status || (a.status == "") != a.gone {
			t.Errorf("%d bytes: %q, want %q, %v", test.size, a.status, test.status, err)
		}
	}
}

// Half a header is waited for no longer than a connection without a request.
func TestHeaderThatNeverEnds(t *testing.T) {
	t.Parallel()
	w := newNetEnv(t, func(o *gateway.Options) { o.IdleTimeout = 300 * time.Millisecond })
	o := w.origin("api.example.test", "h2", true)
	c := w.frames(w.steer, o)
	must.OK(t, c.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: c.headers(o.request("/")...)}))
	start := time.Now()
	_ = c.SetReadDeadline(start.Add(soon))
	if _, err := io.Copy(io.Discard, c); err != nil {
		t.Errorf("%v after %v", err, time.Since(start))
	}
}

// Clients that open windows of nothing hold no more than those of the upstream.
func TestStreamsWithoutAWindow(t *testing.T) {
	w := newNetEnv(t)
	o := w.origin("api.example.test", "h2", true)
	o.handle("/", func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, &endless{left: 64 << 20}) })
	c := w.frames(w.steer, o)
	must.OK(t, c.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}))
	const streams = 50
	const window = 1 << 20 // of an upstream's stream
	grew := heap(func() {
		for range streams {
			if _, err := c.open(true, o.request("/")...); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Second)
	})
	if grew > streams*(window+512<<10) {
		t.Errorf("the heap grew by %d MiB for %d streams", grew>>20, streams)
	}
	c.Close()
	w.settled(t)
}

func TestRequestsOfASandboxAreBounded(t *testing.T) {
	w := newNetEnv(t, func(o *gateway.Options) { o.ConnectionsPerSandbox = 5 })
	o := w.origin("api.example.test", "h2", true)
	arrived := make(chan struct{}, 10)
	o.handle("/hang", func(w http.ResponseWriter, r *http.Request) { arrived <- struct{}{}; <-r.Context().Done() })
	o.handle("/", func(w http.ResponseWriter, r *http.Request) {})
	first, second := w.frames(w.steer, o), w.frames(w.steer, o)
	var last uint32
	for i := range 5 {
		c := first
		if i%2 == 1 {
			c = second
		}
		id, err := c.open(true, o.request("/hang")...)
		must.OK(t, err)
		if c == first {
			last = id
		}
	}
	for range 5 {
		await(t, arrived)
	}
	a := second.ask(t, o.request("/")...)
	if a.status != "429" || !strings.Contains(a.body, "too many requests open") || a.header["sallyport-decision"] == "" {
		t.Errorf("a sixth: %+v", a)
	}
	if a := w.frames(w.connect, o).ask(t, o.request("/")...); a.status != "200" {
		t.Errorf("another sandbox's: %+v", a)
	}
	must.OK(t, first.WriteRSTStream(last, http2.ErrCodeCancel))
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		if a = second.ask(t, o.request("/")...); a.status == "200" || time.Now().After(deadline) {
			break
		}
	}
	if a.status != "200" {
		t.Errorf("after one ended: %+v", a)
	}
}

// A client whose connection dies takes its requests with it, all of them.
func TestDeadConnectionEndsItsStreams(t *testing.T) {
	for _, version := range []string{"h1", "h2"} {
		t.Run("to "+version, func(t *testing.T) {
			w := newNetEnv(t)
			o := w.origin("api.example.test", version, true)
			const streams = 100
			arrived, told := make(chan struct{}, streams), make(chan struct{}, streams)
			o.handle("/", func(w http.ResponseWriter, r *http.Request) {
				arrived <- struct{}{}
				<-r.Context().Done()
				told <- struct{}{}
			})
			before := runtime.NumGoroutine()
			c := w.frames(w.steer, o)
			for range streams {
				if _, err := c.open(true, o.request("/")...); err != nil {
					t.Fatal(err)
				}
			}
			for range streams {
				await(t, arrived)
			}
			c.Close()
			start := time.Now()
			for range streams {
				await(t, told)
			}
			if took := time.Since(start); took > soon {
				t.Errorf("the upstream was told after %v", took)
			}
			_, completions := w.settled(t)
			for _, e := range completions {
				if e.StatusID == audit.StatusSuccess || e.Detail != "the sandbox went away" {
					t.Errorf("completion %d %q", e.StatusID, e.Detail)
				}
			}
			w.pool.Forget("sb-1")
			settles(t, before)
		})
	}
}

// A connection that was let in before a shutdown, and begins to speak after it, is not
// waited for until it asks for something.
func TestShutdownEndsWhoComesLate(t *testing.T) {
	t.Parallel()
	w := newNetEnv(t)
	o := w.origin("api.example.test", "h2", true)
	raw, err := w.steer(t.Context(), "tcp", o.address())
	must.OK(t, err)
	must.Soon(t, "it is taken", func() bool { return w.gauge("sallyport_gateway_connections") == 1 })
	ended := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), soon)
		defer cancel()
		ended <- w.gateway.Shutdown(ctx)
	}()
	time.Sleep(100 * time.Millisecond)
	// It asks for nothing: no answer can tell it to go.
	late := w.frames(func(context.Context, string, string) (net.Conn, error) { return raw, nil }, o)
	if a := late.wait(1); !a.gone {
		t.Errorf("it is answered: %+v", a)
	}
	if err := <-ended; err != nil {
		t.Errorf("it is waited for: %v", err)
	}
}

func TestShutdownSaysGoodbye(t *testing.T) {
	for _, patient := range []bool{true, false} {
		t.Run(fmt.Sprint("patient ", patient), func(t *testing.T) {
			w := newNetEnv(t)
			o := w.origin("api.example.test", "h2", true)
			arrived, finish := make(chan struct{}, 3), make(chan struct{})
			o.handle("/", func(w http.ResponseWriter, r *http.Request) {
				arrived <- struct{}{}
				select {
				case <-finish:
					io.WriteString(w, "whole")
				case <-r.Context().Done():
				}
			})
			busy, idle, elsewhere := w.frames(w.steer, o), w.frames(w.steer, o), w.frames(w.connect, o)
			id, err := busy.open(true, o.request("/")...)
			must.OK(t, err)
			other, err := elsewhere.open(true, o.request("/")...)
			must.OK(t, err)
			await(t, arrived)
			await(t, arrived)
			limit := soon
			if !patient {
				limit = 200 * time.Millisecond
			}
			ended := make(chan error, 1)
			start := time.Now()
			go func() {
				ctx, cancel := context.WithTimeout(context.Background(), limit)
				defer cancel()
				ended <- w.gateway.Shutdown(ctx)
			}()
			if a := idle.wait(1); !a.gone { // it ends first: the others are told to go by then
				t.Errorf("the idle connection: %+v", a)
			}
			if patient {
				close(finish)
			}
			for name, a := range map[string]answer{"sandbox": busy.wait(id), "client elsewhere": elsewhere.wait(other)} {
				if patient && (a.status != "200" || a.body != "whole") || !patient && a.status == "200" {
					t.Errorf("the request of the %s: %+v", name, a)
				}
			}
			if patient && busy.goodbye == nil {
				t.Error("no GOAWAY")
			}
			err = <-ended
			if patient && err != nil || !patient && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v", err)
			}
			if took := time.Since(start); took > soon {
				t.Errorf("took %v", took)
			}
			_, completions := w.settled(t)
			for _, c := range completions {
				if (c.StatusID == audit.StatusSuccess) != patient || !patient && c.Detail != "the gateway is shutting down" {
					t.Errorf("completion %d %q", c.StatusID, c.Detail)
				}
			}
		})
	}
}
