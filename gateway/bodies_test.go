package gateway_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/gateway"
	"sallyport/internal/test/must"
	"sallyport/policy"
)

func TestBodiesAreJudged(t *testing.T) {
	t.Parallel()
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, _ = io.WriteString(z, toolCall("search"))
	_ = z.Close()
	large := toolCall("search") + strings.Repeat(" ", 64<<10-len(toolCall("search")))
	tests := []struct {
		name, path, body string
		method           string // default: POST
		header           string // "Name: value", in lines; default: JSON
		chunked          bool
		status           int
		reason           string
	}{
		{name: "an allowed call", body: toolCall("search"), status: 200},
		{name: "another way to write it", body: ` {"method":"tools/c\u0061ll","params":{"name":"search"}}` + "\n", status: 200},
		{name: "in chunks", body: toolCall("search"), chunked: true, status: 200},
		{name: "the largest", body: large, status: 200},
		{name: "the largest, in chunks", body: large, chunked: true, status: 200},
		{name: "a batch", body: "[" + toolCall("search") + "," + toolCall("search") + "]", status: 200},
		{name: "a charset", body: toolCall("search"), header: "Content-Type: application/json; charset=UTF-8", status: 200},
		{name: "another type of JSON", body: toolCall("search"), header: "Content-Type: application/mcp+json", status: 200},
		{name: "identity", body: toolCall("search"), header: "Content-Type: application/json\nContent-Encoding: identity", status: 200},
		{name: "what is not looked at", path: "/other", body: toolCall("delete"), header: "Content-Type: text/plain", status: 200},
		{name: "a GET where the rule has no such method", method: "GET", status: 200},

		{name: "a denied call", body: toolCall("delete"), status: 403, reason: "no other tool"},
		{name: "a denied call, escaped", body: `{"method":"tools/c\u0061ll","params":{"name":"d\u0065lete"}}`, status: 403, reason: "no other tool"},
		{name: "a batch with one", body: "[" + toolCall("search") + "," + toolCall("delete") + "]", status: 403, reason: "no other tool"},
		{name: "a second name", body: `{"method":"ping","method":"tools/call","params":{"name":"delete"}}`, status: 403, reason: "twice"},
		{name: "a second name in capitals", body: `{"method":"ping","Method":"tools/call","params":{"name":"delete"}}`, status: 403, reason: "twice"},
		{name: "a second document", body: `{"method":"ping"}` + toolCall("delete"), status: 403, reason: "something follows"},
		{name: "nesting", body: strings.Repeat("[", 1000) + strings.Repeat("]", 1000), status: 403, reason: "nested"},
		{name: "a huge number", body: `{"method":"ping","id":1e999}`, status: 403, reason: "number"},
		{name: "a byte order mark", body: "\ufeff" + toolCall("delete"), status: 403, reason: "UTF-8"},
		{name: "UTF-16", body: "\xff\xfe{\x00}\x00", status: 403, reason: "UTF-8"},
		{name: "too large", body: large + " ", status: 413, reason: "64KiB"},
		{name: "too large, in chunks", body: large + " ", chunked: true, status: 413, reason: "64KiB"},
		{name: "much too large", body: large + strings.Repeat(" ", 1<<20), status: 413, reason: "64KiB"},
		{name: "much too large, in chunks", body: large + strings.Repeat(" ", 1<<20), chunked: true, status: 413, reason: "64KiB"},
		{name: "nothing", status: 403, reason: "there is none"},
		{name: "nothing in chunks", chunked: true, body: "", status: 403},
		{name: "another type", body: toolCall("delete"), header: "Content-Type: text/plain", status: 403, reason: "Content-Type"},
		{name: "no type", body: toolCall("delete"), header: "Content-Type:", status: 403, reason: "Content-Type"},
		{name: "two types", body: toolCall("delete"), header: "Content-Type: application/json\nContent-Type: text/plain", status: 403, reason: "Content-Type"},
		{name: "another charset", body: toolCall("search"), header: "Content-Type: application/json; charset=utf-7", status: 403, reason: "Content-Type"},
		{name: "two charsets", body: toolCall("search"), header: "Content-Type: application/json; charset=utf-8; charset=utf-7", status: 403, reason: "Content-Type"},
		{name: "parts", body: "--x\r\n\r\n" + toolCall("delete") + "\r\n--x--", header: "Content-Type: multipart/form-data; boundary=x", status: 403, reason: "Content-Type"},
		{name: "a form", body: toolCall("delete"), header: "Content-Type: application/x-www-form-urlencoded", status: 403, reason: "Content-Type"},
		{name: "a second header, as CGI reads it", body: toolCall("search"), header: "Content-Type: application/json\nContent_Encoding: gzip", status: 403, reason: "underscore"},
		{name: "compressed", body: zipped.String(), header: "Content-Type: application/json\nContent-Encoding: gzip", status: 403, reason: "content coding"},
		{name: "coded in an unknown way", body: toolCall("search"), header: "Content-Type: application/json\nContent-Encoding: x-rot13", status: 403, reason: "content coding"},
		{name: "coded twice", body: toolCall("search"), header: "Content-Type: application/json\nContent-Encoding: identity\nContent-Encoding: br", status: 403, reason: "content coding"},
		{name: "gRPC", path: "/graphql", body: "\x00\x00\x00\x00\x00", header: "Content-Type: application/grpc-web", status: 403, reason: "Content-Type"},

		{name: "GraphQL", path: "/graphql", body: `{"query": "{ viewer }"}`, status: 200},
		{name: "a mutation", path: "/graphql", body: `{"query": "mutation { drop }"}`, status: 403, reason: "reading only"},
		{name: "a mutation that operationName hides", path: "/graphql", body: `{"query": "query A { a } mutation B { drop }", "operationName": "A"}`, status: 403, reason: "reading only"},
		{name: "a query by GET", path: "/graphql?query=mutation%20%7Bdrop%7D", method: "GET", status: 403, reason: "there is none"},
		{name: "a second query", path: "/graphql?query=mutation%20%7Bdrop%7D", body: `{"query": "{ viewer }"}`, status: 403, reason: "query parameters"},
		{name: "a batch of GraphQL", path: "/graphql", body: `[{"query": "mutation { drop }"}]`, status: 403, reason: "not a GraphQL request"},
	}
	for _, pair := range []struct{ in, out string }{{"h1", "h1"}, {"h1", "h2"}, {"h2", "h1"}, {"h2", "h2"}} {
		t.Run(pair.in+" to "+pair.out, func(t *testing.T) {
			j := newBodyEnv(t, pair.out, true)
			client := j.agent(pair.in, true, j.steer, false)
			for _, test := range tests {
				method, path, header := "POST", "/mcp", "Content-Type: application/json"
				if test.method != "" {
					method = test.method
				}
				if test.path != "" {
					path = test.path
				}
				if test.header != "" {
					header = test.header
				}
				var body io.Reader
				if test.body != "" || test.chunked {
					body = strings.NewReader(test.body)
				}
				if test.chunked {
					body = io.MultiReader(body)
				}
				r, err := http.NewRequestWithContext(t.Context(), method, j.origin.url("https", path), body)
				must.OK(t, err)
				for line := range strings.SplitSeq(header, "\n") {
					name, value, _ := strings.Cut(line, ":")
					if value = strings.TrimSpace(value); value != "" {
						r.Header[name] = append(r.Header[name], value)
					}
				}
				resp, err := client.Do(r)
				if err != nil {
					t.Errorf("%s: %v", test.name, err)
					continue
				}
				said := text(t, resp)
				got := j.taken()
				if resp.StatusCode != test.status || !strings.Contains(said, test.reason) || strings.Contains(said, "sesame") {
					t.Errorf("%s: %d %s, want %d %s", test.name, resp.StatusCode, said, test.status, test.reason)
				}
				if test.status == 200 && (len(got) != 1 || got[0] != test.body) || test.status != 200 && len(got) > 0 {
					t.Errorf("%s: the upstream got %.200q of %.200q", test.name, got, test.body)
				}
			}
			if n := j.all.Load(); n != 12 {
				t.Errorf("%d requests came to the upstream", n)
			}
			decisions, completions := j.settled(t)
			j.silent(t, "sesame")
			for _, d := range decisions {
				if c := completions[d.ID()]; c != nil && c.Traffic.BytesOut != d.HTTPRequest.Length && d.HTTPRequest.URL.Path == "/mcp" && d.ActivityID == audit.HTTPActivity("POST") {
					t.Errorf("completion of %s: %+v, length %d", d.ID(), c.Traffic, d.HTTPRequest.Length)
				}
			}
		})
	}
}

// A client that waits to be asked for its body is asked, by the gateway and once.
func TestJudgedBodyIsAskedFor(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"h1", "h2"} {
		j := newBodyEnv(t, "h1", true)
		client := j.agent(version, true, j.steer, false)
		for _, test := range []struct {
			body string
			want int
		}{{toolCall("search"), 200}, {toolCall("delete"), 403}, {strings.Repeat("x", 65<<10), 413}} {
			var body countingReader
			body.Reader = strings.NewReader(test.body)
			r, _ := http.NewRequestWithContext(t.Context(), "POST", j.origin.url("https", "/mcp"), &body)
			r.ContentLength = int64(len(test.body))
			r.Header.Set("Content-Type", "application/json")
			r.Header.Set("Expect", "100-continue")
			resp, err := client.Do(r)
			must.OK(t, err)
			text(t, resp)
			if resp.StatusCode != test.want || resp.Header.Get("X-Expect") != "" || test.want == 413 && body.n.Load() > 0 {
				t.Errorf("%s: got %d %v after %d bytes, want %d", version, resp.StatusCode, resp.Header, body.n.Load(), test.want)
			}
		}
		if got := j.taken(); len(got) != 1 || got[0] != toolCall("search") {
			t.Errorf("%s: the upstream got %q", version, got)
		}
	}
}

type countingReader struct {
	io.Reader
	n atomic.Int64
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// On the wire of HTTP/1.1: what follows a judged body is the next request, and a
// body that is not what it says goes nowhere.
func TestJudgedBodyOnTheWire(t *testing.T) {
	t.Parallel()
	j := newBodyEnv(t, "h1", false, func(o *gateway.Options) { o.HandshakeTimeout = 3 * time.Second })
	host := fmt.Sprintf("mcp.example.test:%d", j.origin.port)
	head := func(lines ...string) string {
		return "POST /mcp HTTP/1.1\r\nHost: " + host + "\r\nContent-Type: application/json\r\n" + strings.Join(lines, "\r\n") + "\r\n\r\n"
	}
	sized := func(n int) string { return fmt.Sprint("Content-Length: ", n) }
	ok, bad := toolCall("search"), toolCall("delete")
	last := "GET /end HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n"
	for _, test := range []struct {
		name, send string
		close      bool // the client's direction ends there
		want       []string
		took       []string
	}{
		{name: "pipelined", send: head(sized(len(ok))) + ok + head(sized(len(ok))) + ok + last, want: []string{"200", "200", "200"}, took: []string{ok, ok, ""}},
		{name: "pipelined after a denied one", send: head(sized(len(bad))) + bad + head(sized(len(ok))) + ok + last, want: []string{"403", "200", "200"}, took: []string{ok, ""}},
		{name: "pipelined after one in chunks", send: head("Transfer-Encoding: chunked") + fmt.Sprintf("%x\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n", 5, ok[:5], len(ok)-5, ok[5:]) + last,
			want: []string{"200", "200"}, took: []string{ok, ""}},
		{name: "with a trailer", send: head("Transfer-Encoding: chunked", "Trailer: X-Late") + fmt.Sprintf("%x\r\n%s\r\n0\r\nX-Late: here\r\n\r\n", len(ok), ok) + last,
			want: []string{"200 here", "200"}, took: []string{ok, ""}},
		{name: "with a trailer that was not announced", send: head("Transfer-Encoding: chunked") + fmt.Sprintf("%x\r\n%s\r\n0\r\nX-Late: here\r\n\r\n", len(ok), ok) + last,
			want: []string{"200 ", "200"}, took: []string{ok, ""}},
		{name: "shorter than its length", send: head(sized(len(ok)+1)) + ok, close: true, want: []string{"400"}},
		{name: "slower than may be", send: head(sized(len(ok))) + ok[:len(ok)-1], want: []string{"408"}},
		{name: "chunks without an end", send: head("Transfer-Encoding: chunked") + fmt.Sprintf("%x\r\n%s\r\n", len(ok), ok), want: []string{"408"}},
		{name: "chunks of no size", send: head("Transfer-Encoding: chunked") + "zz\r\n" + ok, want: []string{"400"}},
		{name: "a denied call behind the length", send: head(sized(2)) + "{}" + bad + "\r\n\r\n", want: []string{"200", "400"}, took: []string{"{}"}},
		{name: "a WebSocket", send: strings.Replace(head("Upgrade: websocket", "Connection: Upgrade", sized(len(ok))), "", "", 1) + ok, want: []string{"400"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, err := j.steer(context.Background(), "tcp", host)
			must.OK(t, err)
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(patience))
			if _, err := io.WriteString(c, test.send); err != nil {
				t.Fatal(err)
			}
			if half, ok := c.(interface{ CloseWrite() error }); ok && test.close {
				_ = half.CloseWrite()
			}
			in := bufio.NewReader(c)
			for i, want := range test.want {
				resp, err := http.ReadResponse(in, nil)
				if err != nil {
					t.Fatalf("response %d: %v", i, err)
				}
				said := text(t, resp)
				if status, late, given := strings.Cut(want, " "); fmt.Sprint(resp.StatusCode) != status || given && said != "ok "+late {
					t.Errorf("response %d: %d %s, want %s", i, resp.StatusCode, said, want)
				}
			}
			if got := j.taken(); strings.Join(got, "|") != strings.Join(test.took, "|") {
				t.Errorf("the upstream got %q, want %q", got, test.took)
			}
		})
	}
}

// A stream of HTTP/2 whose body does not come holds up no other.
func TestJudgedBodyOfAStream(t *testing.T) {
	t.Parallel()
	j := newBodyEnv(t, "h2", true, func(o *gateway.Options) { o.HandshakeTimeout = 3 * time.Second })
	client := j.agent("h2", true, j.steer, false)
	post := func(body io.Reader, length int64) (int, error) {
		r, _ := http.NewRequestWithContext(t.Context(), "POST", j.origin.url("https", "/mcp"), body)
		r.Header.Set("Content-Type", "application/json")
		r.ContentLength = length
		resp, err := client.Do(r)
		if err != nil {
			return 0, err
		}
		text(t, resp)
		return resp.StatusCode, nil
	}
	slow, more := io.Pipe()
	defer more.Close()
	var late int
	var failed error
	var wait sync.WaitGroup
	wait.Go(func() { late, failed = post(slow, 1000) })
	_, _ = io.WriteString(more, toolCall("search"))
	if status, err := post(strings.NewReader(toolCall("search")), -1); status != 200 || err != nil {
		t.Errorf("meanwhile: %d %v", status, err)
	}
	wait.Wait()
	if late != 408 {
		t.Errorf("a slow body: %d %v", late, failed)
	}
	gone, cut := io.Pipe()
	_ = cut.CloseWithError(io.ErrUnexpectedEOF)
	if status, err := post(gone, 1000); err == nil {
		t.Errorf("a stream that is reset: %d", status)
	}
	if got := j.taken(); len(got) != 1 {
		t.Errorf("the upstream got %q", got)
	}
	const held = "sallyport_gateway_held_body_bytes"
	for deadline := time.Now().Add(patience); j.gauge(t, held) != 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%v bytes are held in the end", j.gauge(t, held))
		}
	}
}

// In observe mode a body that cannot be judged leaves as it came.
func TestJudgedBodyObserved(t *testing.T) {
	t.Parallel()
	j := newBodyEnv(t, "h1", true)
	j.doc.Observe = []policy.Observation{{Sandboxes: policy.Selector{Names: []string{"demo"}}, Until: time.Now().Add(time.Hour)}}
	j.load(t)
	for _, version := range []string{"h1", "h2"} {
		client := j.agent(version, true, j.steer, false)
		for _, body := range []string{`{"torn": 1, "Torn": 2}`, "no JSON", strings.Repeat("0123456789abcdef", 64<<10)} {
			for _, chunked := range []bool{false, true} {
				var in io.Reader = strings.NewReader(body)
				if chunked {
					in = io.MultiReader(in)
				}
				resp, err := client.Post(j.origin.url("https", "/mcp"), "application/json", in)
				must.OK(t, err)
				said := text(t, resp)
				if got := j.taken(); resp.StatusCode != 200 || len(got) != 1 || got[0] != body {
					t.Errorf("%s: %d %.100s, %d bodies, not the %d bytes of %.20q (in chunks: %t)", version, resp.StatusCode, said, len(got), len(body), body, chunked)
				}
			}
		}
	}
	decisions, completions := j.settled(t)
	for _, d := range decisions {
		if c := completions[d.ID()]; c == nil || c.Traffic.BytesOut == 0 {
			t.Errorf("no byte of %s went out", d.ID())
		}
	}
}

// A request under way is judged again with its body, after a change of the policy.
func TestJudgedBodyIsJudgedAgain(t *testing.T) {
	t.Parallel()
	j := newBodyEnv(t, "h1", true)
	begun := make(chan struct{})
	j.origin.handle("/mcp", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.(http.Flusher).Flush()
		begun <- struct{}{}
		<-r.Context().Done()
	})
	client := j.agent("h1", true, j.steer, false)
	ended := make(chan error, 1)
	resp, err := func() (*http.Response, error) {
		go func() { <-begun }()
		return client.Post(j.origin.url("https", "/mcp"), "application/json", strings.NewReader(toolCall("search")))
	}()
	must.OK(t, err)
	defer resp.Body.Close()
	go func() {
		_, err := io.Copy(io.Discard, resp.Body)
		ended <- err
	}()
	j.doc.Egress = append(j.doc.Egress, policy.EgressRule{Name: "more", Destination: "other.example.test"})
	j.load(t)
	select {
	case err := <-ended:
		t.Fatalf("a change that is about something else ended it: %v", err)
	case <-time.After(500 * time.Millisecond):
	}
	other := strings.Replace(searching, `== "search"`, `== "find"`, 1)
	must.OK(t, os.WriteFile(filepath.Join(j.doc.Policy.Dir, "calls.rego"), []byte(other), 0o600))
	began := time.Now()
	j.load(t)
	select {
	case <-ended:
		t.Logf("ended after %v", time.Since(began))
	case <-time.After(soon):
		t.Fatal("a call that is no longer allowed goes on")
	}
}

// A thousand clients that send slowly hold what one sandbox may, and no more; the
// others are told to come again.
func TestJudgedBodiesAreBounded(t *testing.T) {
	const clients, each = 1000, 60 << 10
	j := newBodyEnv(t, "h1", false, func(o *gateway.Options) { o.HandshakeTimeout = 5 * time.Minute })
	host := fmt.Sprintf("mcp.example.test:%d", j.origin.port)
	head := fmt.Sprintf("POST /mcp HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", host, each)
	body := toolCall("search") + strings.Repeat(" ", each-len(toolCall("search")))
	conns := make([]net.Conn, clients)
	grew := heap(func() {
		for i := range conns {
			c, err := j.steer(context.Background(), "tcp", host)
			must.OK(t, err)
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(3 * time.Minute))
			conns[i] = c
			if _, err := io.WriteString(c, head+body[:each-1]); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(200 * time.Millisecond)
		statuses := map[int]int{}
		for _, c := range conns {
			_, _ = io.WriteString(c, body[each-1:])
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			must.OK(t, err)
			if resp.StatusCode == 429 && resp.Header.Get("Retry-After") == "" {
				t.Error("a 429 does not say when to come again")
			}
			text(t, resp)
			statuses[resp.StatusCode]++
		}
		t.Log(statuses)
		if statuses[200] < 400 || statuses[429] < 300 || statuses[200]+statuses[429] != clients {
			t.Errorf("statuses %v", statuses)
		}
	})
	t.Logf("heap +%d MiB", grew>>20)
	if grew > 120<<20 {
		t.Errorf("the heap grew by %d MiB", grew>>20)
	}
	for _, e := range j.taken() {
		if e != body {
			t.Fatalf("the upstream got %.100q", e)
		}
	}
	// All memory that was held has been given back.
	client := j.agent("h1", false, j.steer, false)
	resp, err := client.Post(j.origin.url("http", "/mcp"), "application/json", strings.NewReader(body))
	if err != nil || resp.StatusCode != 200 {
		t.Errorf("afterwards: %v, %v", resp, err)
	}
	if err == nil {
		text(t, resp)
	}
}

// A decision is on record before a byte of the body leaves.
func TestJudgedBodyWaitsForTheRecord(t *testing.T) {
	t.Parallel()
	j := newBodyEnv(t, "h1", true)
	j.appendTo = io.ErrShortWrite
	client := j.agent("h1", true, j.steer, false)
	resp, err := client.Post(j.origin.url("https", "/mcp"), "application/json", strings.NewReader(toolCall("search")))
	must.OK(t, err)
	if said := text(t, resp); resp.StatusCode != 503 || j.all.Load() != 0 {
		t.Errorf("%d %s", resp.StatusCode, said)
	}
}
