package gateway_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sallyport/internal/test/must"
)

// sizable is how many bytes TestBodiesInEveryVersion sends each way: more than
// may lie anywhere on the way. TestLargeBodies sends more.
var sizable = func() int64 {
	if raceEnabled {
		return 32 << 20
	}
	return 64 << 20
}()

// flat is how much the heap may grow while a body goes through, in bytes, with
// client, gateway and upstream in one process.
const flat = 48 << 20

// endless gives bytes until n of them have been read, and counts.
type endless struct {
	left int64
	read atomic.Int64
}

func (e *endless) Read(p []byte) (int, error) {
	left := e.left - e.read.Load()
	if left <= 0 {
		return 0, io.EOF
	}
	n := min(int64(len(p)), left)
	for i := range p[:n] {
		p[i] = byte(i)
	}
	e.read.Add(n)
	return int(n), nil
}

// heap watches the heap while f runs, and returns by how much it grew at most.
func heap(f func()) int64 {
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	now := func() int64 { metrics.Read(sample); return int64(sample[0].Value.Uint64()) }
	defer debug.SetGCPercent(debug.SetGCPercent(20)) // what counts is what lives
	runtime.GC()
	before := now()
	var most int64
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for tick := time.NewTicker(5 * time.Millisecond); ; {
			select {
			case <-tick.C:
				most = max(most, now()-before)
			case <-stop:
				tick.Stop()
				return
			}
		}
	}()
	f()
	close(stop)
	<-done
	return most
}

func TestBodiesInEveryVersion(t *testing.T) {
	eachVersionAlone(t, func(t *testing.T, open func() *versionEnv) { // one by one, for the heap is all tests'
		m := open()
		m.handle("/up", func(w http.ResponseWriter, r *http.Request) {
			n, err := io.Copy(io.Discard, r.Body)
			fmt.Fprint(w, n, err)
		})
		m.handle("/down", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", strconv.FormatInt(sizable, 10))
			_, _ = io.Copy(w, &endless{left: sizable})
		})
		start := time.Now()
		grew := heap(func() {
			if got, want := text(t, m.do(t, m.request(t, "PUT", "/up", &endless{left: sizable}))), fmt.Sprint(sizable, " <nil>"); got != want {
				t.Errorf("sent: %s, want %s", got, want)
			}
		})
		up := time.Since(start)
		start = time.Now()
		grew = max(grew, heap(func() {
			if n, err := io.Copy(io.Discard, m.do(t, m.request(t, "GET", "/down", nil)).Body); n != sizable || err != nil {
				t.Errorf("received %d %v", n, err)
			}
		}))
		t.Logf("%d bytes: sent in %v, received in %v, heap +%d KiB", sizable, up, time.Since(start), grew>>10)
		if grew > flat {
			t.Errorf("the heap grew by %d MiB", grew>>20)
		}
		decisions, completions := m.settled(t)
		if up := completions[decisions[0].ID()]; up.Traffic.BytesOut != sizable {
			t.Errorf("completion says %d bytes out", up.Traffic.BytesOut)
		}
		if down := completions[decisions[1].ID()]; down.Traffic.BytesIn != sizable {
			t.Errorf("completion says %d bytes in", down.Traffic.BytesIn)
		}
	})
}

// stalled waits until a counter has begun and stands still, for as long as patience has it,
// and returns it.
func stalled(n func() int64) int64 {
	last, since := n(), time.Now()
	for end := since.Add(patience); (last == 0 || time.Since(since) < 300*time.Millisecond) && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
		if now := n(); now != last {
			last, since = now, time.Now()
		}
	}
	return last
}

// buffered is what sockets, windows and buffers between a client and an upstream
// may hold of a body that nobody reads, in bytes. The kernel's part is largest.
const buffered = 40 << 20

func TestUploadWaitsForItsUpstream(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, m *versionEnv) {
		size := int64(64 << 20)
		proceed := make(chan struct{})
		m.handle("/up", func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.ReadFull(r.Body, make([]byte, 10))
			<-proceed
			n, err := io.Copy(io.Discard, r.Body)
			fmt.Fprint(w, n+10, err)
		})
		m.handle("/other", func(http.ResponseWriter, *http.Request) {})
		body := &endless{left: size}
		answer := make(chan string, 1)
		go func() {
			resp, err := m.client.Do(m.request(t, "POST", "/up", body))
			if err != nil {
				answer <- err.Error()
				return
			}
			defer resp.Body.Close()
			b, err := io.ReadAll(resp.Body)
			answer <- fmt.Sprint(string(b), err)
		}()
		if n := stalled(body.read.Load); n == 0 || n > buffered {
			t.Errorf("%d bytes were taken for an upstream that does not read", n)
		}
		if resp := m.do(t, m.request(t, "GET", "/other", nil)); resp.StatusCode != 200 {
			t.Errorf("%d beside an upload that waits", resp.StatusCode)
		}
		close(proceed)
		if got, want := <-answer, fmt.Sprint(size, "<nil><nil>"); strings.ReplaceAll(got, " ", "") != want {
			t.Errorf("got %s, want %s", got, want)
		}
	})
}

func TestDownloadWaitsForItsClient(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, m *versionEnv) {
		body := &endless{left: 64 << 20}
		m.handle("/down", func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, body) })
		m.handle("/other", func(http.ResponseWriter, *http.Request) {})
		resp := m.do(t, m.request(t, "GET", "/down", nil))
		if n := stalled(body.read.Load); n == 0 || n > buffered {
			t.Errorf("%d bytes were taken for a client that does not read", n)
		}
		if resp := m.do(t, m.request(t, "GET", "/other", nil)); resp.StatusCode != 200 {
			t.Errorf("%d beside a download that waits", resp.StatusCode)
		}
		if n, err := io.Copy(io.Discard, resp.Body); n != body.left || err != nil {
			t.Errorf("received %d %v", n, err)
		}
	})
}

func TestUploadIsStreamed(t *testing.T) {
	eachVersionInTurn(t, func(t *testing.T, m *versionEnv) {
		got := make(chan string)
		m.handle("/up", func(w http.ResponseWriter, r *http.Request) {
			for b := make([]byte, 100); ; {
				n, err := r.Body.Read(b)
				if n > 0 {
					got <- string(b[:n])
				}
				if err != nil {
					return
				}
			}
		})
		r, w := io.Pipe()
		done := make(chan struct{})
		go func() {
			defer close(done)
			resp, err := m.client.Do(m.request(t, "POST", "/up", r))
			if err != nil {
				t.Error(err)
				return
			}
			resp.Body.Close()
		}()
		for _, piece := range []string{"one", "two", "three"} {
			if _, err := io.WriteString(w, piece); err != nil {
				t.Fatal(err)
			}
			if s := await(t, got); s != piece {
				t.Errorf("got %q, want %q", s, piece)
			}
		}
		w.Close()
		<-done
	})
}

// await receives what has to come.
func await[T any](t *testing.T, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(patience):
		t.Error("nothing has come")
	}
	return v
}

func TestResponseIsStreamed(t *testing.T) {
	eachVersionInTurn(t, func(t *testing.T, m *versionEnv) {
		next := make(chan struct{})
		m.handle("/events", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", r.URL.Query().Get("type"))
			if r.URL.Query().Has("known") {
				w.Header().Set("Content-Length", "27")
			}
			w.WriteHeader(200)
			w.(http.Flusher).Flush()
			for i := range 3 {
				<-next
				fmt.Fprintf(w, "data: %d\n\n", i)
				w.(http.Flusher).Flush()
			}
		})
		for _, path := range []string{"/events?type=text/event-stream", "/events?type=application/x-ndjson", "/events?type=text/plain&known"} {
			head := make(chan *http.Response, 1)
			go func() {
				resp, err := m.client.Do(m.request(t, "GET", path, nil))
				if err != nil {
					t.Error(err)
				}
				head <- resp
			}()
			var resp *http.Response
			if strings.HasSuffix(path, "known") {
				next <- struct{}{}
				resp = await(t, head)
			} else { // before there is anything to send
				resp = await(t, head)
				next <- struct{}{}
			}
			if resp == nil {
				t.Fatal("no head")
			}
			defer resp.Body.Close()
			for i := range 3 {
				line := make(chan string, 1)
				go func() {
					b := make([]byte, 9)
					_, _ = io.ReadFull(resp.Body, b)
					line <- string(b)
				}()
				if got, want := await(t, line), fmt.Sprintf("data: %d\n\n", i); got != want {
					t.Fatalf("got %q, want %q", got, want)
				}
				if i < 2 {
					next <- struct{}{}
				}
			}
			if rest := text(t, resp); rest != "" {
				t.Errorf("and then %q", rest)
			}
		}
	})
}

func TestEncodedBodyIsUntouched(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, m *versionEnv) {
		var packed bytes.Buffer
		z := gzip.NewWriter(&packed)
		_, _ = io.WriteString(z, strings.Repeat("content ", 1000))
		z.Close()
		m.handle("/", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Accepts", r.Header.Get("Accept-Encoding"))
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write(packed.Bytes())
		})
		r := m.request(t, "GET", "/", nil)
		r.Header.Set("Accept-Encoding", "br, gzip;q=0.5")
		resp := m.do(t, r)
		if got := text(t, resp); got != packed.String() || resp.Header.Get("Content-Encoding") != "gzip" || resp.Header.Get("X-Accepts") != "br, gzip;q=0.5" {
			t.Errorf("%v, %d bytes of %d", resp.Header, len(got), packed.Len())
		}
		resp = m.do(t, m.request(t, "GET", "/", nil))
		if accepts := resp.Header.Get("X-Accepts"); accepts != "" {
			t.Errorf("the upstream was told that %s is accepted, by nobody", accepts)
		}
	})
}

func TestClientThatGoesAwayIsNoticedUpstream(t *testing.T) {
	eachVersionInTurn(t, func(t *testing.T, m *versionEnv) {
		begun, ended := make(chan struct{}, 1), make(chan string, 1)
		m.handle("/wait", func(w http.ResponseWriter, r *http.Request) {
			begun <- struct{}{}
			<-r.Context().Done()
			ended <- "told"
		})
		m.handle("/down", func(w http.ResponseWriter, r *http.Request) {
			begun <- struct{}{}
			for r.Context().Err() == nil {
				if _, err := w.Write(make([]byte, 100)); err != nil {
					break
				}
				w.(http.Flusher).Flush()
				time.Sleep(time.Millisecond)
			}
			ended <- "told"
		})
		m.handle("/quiet", func(w http.ResponseWriter, r *http.Request) {
			w.(http.Flusher).Flush()
			begun <- struct{}{}
			<-r.Context().Done()
			ended <- "told"
		})
		m.handle("/up", func(w http.ResponseWriter, r *http.Request) {
			begun <- struct{}{}
			if _, err := io.Copy(io.Discard, r.Body); err != nil {
				ended <- "told"
			} else {
				ended <- "the body looks complete"
			}
		})
		for _, path := range []string{"/wait", "/down", "/quiet", "/up"} {
			t.Run(path, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var body io.Reader
				more := func(error) error { return nil }
				if path == "/up" {
					r, w := io.Pipe()
					go func() { _, _ = io.WriteString(w, "some") }()
					body, more = r, w.CloseWithError
				}
				r := m.request(t, "POST", path, body).WithContext(ctx)
				done := make(chan struct{})
				go func() {
					defer close(done)
					resp, err := m.client.Do(r)
					if err == nil {
						_, _ = io.Copy(io.Discard, resp.Body)
						resp.Body.Close()
					}
				}()
				await(t, begun)
				time.Sleep(50 * time.Millisecond)
				cancel()
				if got := await(t, ended); got != "told" {
					t.Errorf("got %q", got)
				}
				_ = more(context.Canceled) // the client waits for its own body
				<-done
			})
		}
		_, completions := m.settled(t)
		for _, c := range completions {
			if c.StatusID == 1 || c.Detail != "the sandbox went away" {
				t.Errorf("completion %d %q", c.StatusID, c.Detail)
			}
		}
	})
}

func TestUpstreamThatBreaksOffIsNoticedByTheClient(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, m *versionEnv) {
		m.handle("/before", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
		m.handle("/during", func(w http.ResponseWriter, r *http.Request) {
			io.WriteString(w, "half")
			w.(http.Flusher).Flush()
			time.Sleep(50 * time.Millisecond)
			panic(http.ErrAbortHandler)
		})
		m.handle("/known", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "100")
			io.WriteString(w, "half")
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		})
		m.handle("/upload", func(w http.ResponseWriter, r *http.Request) {
			_, _ = r.Body.Read(make([]byte, 1))
			// To abort, net/http would read the rest of a body of HTTP/1.1.
			if c, _, err := http.NewResponseController(w).Hijack(); err == nil {
				c.Close()
				return
			}
			panic(http.ErrAbortHandler)
		})
		for _, path := range []string{"/before", "/during", "/known", "/upload"} {
			t.Run(path, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), soon)
				defer cancel()
				var body io.Reader
				if path == "/upload" {
					r, w := io.Pipe()
					defer w.Close()
					go func() { _, _ = io.WriteString(w, "some") }()
					body = r
				}
				resp, err := m.client.Do(m.request(t, "POST", path, body).WithContext(ctx))
				must.OK(t, err)
				defer resp.Body.Close()
				b, err := io.ReadAll(resp.Body)
				if whole := path == "/before" || path == "/upload"; whole && (resp.StatusCode != 502 || err != nil) || !whole && (resp.StatusCode != 200 || err == nil) {
					t.Errorf("%d %s %v", resp.StatusCode, b, err)
				}
				if ctx.Err() != nil {
					t.Error("it was not noticed")
				}
			})
		}
		_, completions := m.settled(t)
		for _, c := range completions {
			if c.StatusID == 1 {
				t.Errorf("completion %+v", c)
			}
		}
		if len(completions) != 4 {
			t.Errorf("%d completions", len(completions))
		}
	})
}

// An answer before the request's end reaches the client, which need not have
// sent all of it.
func TestAnswerBeforeTheBody(t *testing.T) {
	eachVersionInTurn(t, func(t *testing.T, m *versionEnv) {
		m.handle("/", func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(413)
			io.WriteString(w, "too much")
		})
		body, w := io.Pipe()
		defer w.CloseWithError(errors.New("over"))
		go func() { _, _ = w.Write(make([]byte, 1<<20)) }()
		head := make(chan string, 1)
		go func() {
			resp, err := m.client.Do(m.request(t, "POST", "/", body))
			if err != nil {
				head <- err.Error()
				return
			}
			defer resp.Body.Close()
			b, _ := io.ReadAll(resp.Body)
			head <- fmt.Sprint(resp.StatusCode, " ", string(b))
		}()
		if got := await(t, head); got != "413 too much" {
			t.Errorf("got %q", got)
		}
	})
}
