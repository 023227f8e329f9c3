package gateway_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sallyport/audit"
	"sallyport/internal/test/must"
	"sallyport/policy"
)

func TestAllowedRequestIsDecidedThenCarriedThenCompleted(t *testing.T) {
	t.Parallel()
	l := newEnv(t)
	l.policy(allow)
	l.name("api.example.test")
	l.upstream("api.example.test", true, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s %s %s auth=%q", r.Method, r.Host, r.URL, body, r.Header.Get("Authorization"))
	})
	r, _ := http.NewRequest("POST", "https://api.example.test/v1/items?b=2&a=secret-value", strings.NewReader("hello"))
	r.Header.Set("Authorization", "Bearer own")
	resp, err := l.client().Do(r)
	must.OK(t, err)
	if got, want := text(t, resp), `POST api.example.test /v1/items?b=2&a=secret-value hello auth="Bearer own"`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	events := l.await(2)
	if diff := cmp.Diff(l.steps(), []string{"append allow", "dial api.example.test:443", "enqueue completion allow"}); diff != "" {
		t.Error(diff)
	}
	d, c := events[0], events[1]
	if d.ClassUID != audit.ClassHTTP || d.Action != audit.ActionAllowed || d.Unmapped.Sallyport.Phase != "request" ||
		d.Unmapped.Sallyport.Sandbox != "demo" || d.Rule.Name != "all" || d.Policy.Version != "r1" || d.Source.IP != sandboxAddr.String() {
		t.Errorf("decision %+v", d)
	}
	if got, want := *d.HTTPRequest.URL, (audit.URL{Scheme: "https", Hostname: "api.example.test", Port: 443, Path: "/v1/items"}); !cmp.Equal(got, want) {
		t.Error(cmp.Diff(got, want))
	}
	if diff := cmp.Diff(d.Unmapped.Sallyport.QueryKeys, []string{"a", "b"}); diff != "" {
		t.Error(diff)
	}
	if !slices.Contains(d.Unmapped.Sallyport.HeaderNames, "Authorization") {
		t.Errorf("header names %v", d.Unmapped.Sallyport.HeaderNames)
	}
	if c.Metadata.CorrelationUID != d.ID() || c.HTTPResponse.Code != 200 || c.Traffic.BytesOut != 5 ||
		c.Traffic.BytesIn != resp.ContentLength || c.StatusID != audit.StatusSuccess {
		t.Errorf("completion %+v %+v", c, c.Traffic)
	}
	for _, e := range events {
		if s := fmt.Sprintf("%+v %+v %+v", e, e.HTTPRequest, e.HTTPRequest.URL); strings.Contains(s, "secret-value") || strings.Contains(s, "Bearer") {
			t.Errorf("a value is in an event: %s", s)
		}
	}
}

func TestNothingLeavesWhenTheDecisionCannotBeWritten(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"https://api.example.test/x", "http://api.example.test/x"} {
		t.Run(url, func(t *testing.T) {
			l := newEnv(t)
			l.policy(allow)
			l.name("api.example.test")
			l.upstream("api.example.test", url[4] == 's', func(http.ResponseWriter, *http.Request) { t.Error("reached") })
			l.appendTo = errors.New("disk full")
			resp, body := get(t, l.client(), url)
			if resp.StatusCode != 503 || !strings.Contains(body, "could not be written down") || resp.Header.Get("Sallyport-Decision") == "" {
				t.Errorf("%d %s", resp.StatusCode, body)
			}
			if strings.Contains(body, "disk full") {
				t.Errorf("the cause is the operator's: %s", body)
			}
			if n := l.dials(); n != 0 {
				t.Errorf("%d dials", n)
			}
			l.appendTo = nil
		})
	}
}

func TestDeniedRequestIsLegible(t *testing.T) {
	t.Parallel()
	deny := func(in policy.Input) policy.Decision {
		if in.Phase == policy.PhaseConnect {
			return allow(in)
		}
		return policy.Decision{Rule: "no-writes", RuleType: "egress", Reason: "POST is not allowed here", Revision: "r2"}
	}
	tests := []struct {
		name, accept, kind, want string
		decide                   func(policy.Input) policy.Decision
	}{
		{"text", "", "text/plain; charset=utf-8", "reason: POST is not allowed here\nrule: no-writes\ndecision: ID\nwhat to do:", deny},
		{"json", "application/json", "application/json", `"reason":"POST is not allowed here","rule":"no-writes","decision":"ID"`, deny},
		{"zero decision", "", "text/plain; charset=utf-8", "reason: no rule allows this", func(in policy.Input) policy.Decision {
			if in.Phase == policy.PhaseConnect {
				return allow(in)
			}
			return policy.Decision{}
		}},
		{"approval", "", "text/plain; charset=utf-8", "needs the approval of an operator", func(in policy.Input) policy.Decision {
			if in.Phase == policy.PhaseConnect {
				return allow(in)
			}
			return policy.Decision{Action: policy.Approve, Reason: "ask"}
		}},
		{"evaluation error", "", "text/plain; charset=utf-8", "could not be evaluated", func(in policy.Input) policy.Decision {
			if in.Phase == policy.PhaseConnect {
				return allow(in)
			}
			return policy.Decision{Action: policy.Allow, Err: errors.New("boom")}
		}},
		{"tunnel at request", "", "text/plain; charset=utf-8", "unread", func(in policy.Input) policy.Decision {
			if in.Phase == policy.PhaseConnect {
				return allow(in)
			}
			return tunnel(in)
		}},
		{"unknown action", "", "text/plain; charset=utf-8", "no rule allows this", func(in policy.Input) policy.Decision {
			if in.Phase == policy.PhaseConnect {
				return allow(in)
			}
			return policy.Decision{Action: "yes"}
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			l := newEnv(t)
			l.policy(test.decide)
			l.name("api.example.test")
			l.upstream("api.example.test", true, func(http.ResponseWriter, *http.Request) { t.Error("reached") })
			r, _ := http.NewRequest("POST", "https://api.example.test/x", strings.NewReader("body"))
			r.Header.Set("Accept", test.accept)
			resp, err := l.client().Do(r)
			must.OK(t, err)
			body := text(t, resp)
			e := l.await(1)[0]
			if resp.StatusCode != 403 || resp.Header.Get("Sallyport-Decision") != e.ID() || resp.Header.Get("Content-Type") != test.kind {
				t.Errorf("%d %v", resp.StatusCode, resp.Header)
			}
			if want := strings.ReplaceAll(test.want, "ID", e.ID()); !strings.Contains(body, want) {
				t.Errorf("body %s, want %s", body, want)
			}
			if e.Action != audit.ActionDenied || e.Disposition != audit.DispositionBlocked || e.HTTPRequest.Method != "POST" {
				t.Errorf("event %+v", e)
			}
			if l.dials() != 0 {
				t.Error("dialled")
			}
		})
	}
}

func TestMisuseIsRefusedBeforePolicy(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, request string
		status        int
	}{
		{"other Host", "GET / HTTP/1.1\r\nHost: other.example.test\r\n\r\n", 421},
		{"other port", "GET / HTTP/1.1\r\nHost: api.example.test:8443\r\n\r\n", 421},
		{"absolute-form to another host", "GET https://other.example.test/ HTTP/1.1\r\nHost: api.example.test\r\n\r\n", 421},
		{"absolute-form with another scheme", "GET http://api.example.test/ HTTP/1.1\r\nHost: api.example.test\r\n\r\n", 421},
		{"userinfo in the target", "GET https://u:p@api.example.test/ HTTP/1.1\r\nHost: api.example.test\r\n\r\n", 400},
		{"numeric Host", "GET / HTTP/1.1\r\nHost: 127.1\r\n\r\n", 400},
		{"no Host", "GET / HTTP/1.0\r\n\r\n", 400},
		{"CONNECT inside", "CONNECT other.example.test:443 HTTP/1.1\r\nHost: other.example.test:443\r\n\r\n", 405},
		{"TRACE", "TRACE / HTTP/1.1\r\nHost: api.example.test\r\n\r\n", 405},
		{"asterisk", "OPTIONS * HTTP/1.1\r\nHost: api.example.test\r\n\r\n", 400},
		{"override", "POST / HTTP/1.1\r\nHost: api.example.test\r\nX-HTTP-Method-Override: DELETE\r\nContent-Length: 0\r\n\r\n", 403},
		{"override with underscores", "POST / HTTP/1.1\r\nHost: api.example.test\r\nx_original_url: /admin\r\nContent-Length: 0\r\n\r\n", 403},
		{"override of a proxy", "GET / HTTP/1.1\r\nHost: api.example.test\r\nX-Forwarded-Uri: /admin\r\n\r\n", 403},
		{"another host by RFC 7239", "GET / HTTP/1.1\r\nHost: api.example.test\r\nForwarded: host=other.example.test\r\n\r\n", 403},
		{"rewrite", "GET / HTTP/1.1\r\nHost: api.example.test\r\nX-Rewrite-URL: /admin\r\n\r\n", 403},
		{"dot segments", "GET /a/../b HTTP/1.1\r\nHost: api.example.test\r\n\r\n", 400},
		{"dot segments behind an encoded slash", "GET /a%2f..%2fb HTTP/1.1\r\nHost: api.example.test\r\n\r\n", 400},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			l := newEnv(t)
			l.policy(func(in policy.Input) policy.Decision {
				if in.Phase == policy.PhaseRequest {
					t.Error("policy was asked")
				}
				return allow(in)
			})
			c, err := l.secure(l.name("api.example.test").String()+":443", "api.example.test")
			must.OK(t, err)
			resp, body := send(t, c, test.request)
			if resp.StatusCode != test.status {
				t.Errorf("%d %s, want %d", resp.StatusCode, body, test.status)
			}
			if e := l.await(1)[0]; e.Action != audit.ActionDenied || e.Rule.Type != "floor" {
				t.Errorf("event %+v", e)
			}
			if l.dials() != 0 {
				t.Error("dialled")
			}
		})
	}
}

func TestSmuggledFramingIsRefused(t *testing.T) {
	t.Parallel()
	for name, request := range map[string]string{
		"both lengths":        "POST / HTTP/1.1\r\nHost: api.example.test\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"two lengths":         "POST / HTTP/1.1\r\nHost: api.example.test\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcd",
		"two hosts":           "GET / HTTP/1.1\r\nHost: api.example.test\r\nHost: other.example.test\r\n\r\n",
		"space before colon":  "GET / HTTP/1.1\r\nHost : api.example.test\r\n\r\n",
		"unknown coding":      "POST / HTTP/1.1\r\nHost: api.example.test\r\nTransfer-Encoding: xchunked\r\n\r\n",
		"userinfo in Host":    "GET / HTTP/1.1\r\nHost: u@api.example.test\r\n\r\n",
		"continued header":    "GET / HTTP/1.1\r\n Host: api.example.test\r\n\r\n",
		"HTTP/2 without ALPN": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			l := newEnv(t)
			l.policy(allow)
			var smuggled atomic.Bool
			l.upstream("api.example.test", true, func(_ http.ResponseWriter, r *http.Request) {
				if r.ContentLength >= 0 && len(r.TransferEncoding) > 0 || name != "both lengths" {
					smuggled.Store(true)
				}
			})
			c, err := l.secure(l.name("api.example.test").String()+":443", "api.example.test")
			must.OK(t, err)
			resp, _ := send(t, c, request)
			if name != "both lengths" && resp.StatusCode < 400 || smuggled.Load() {
				t.Errorf("%d, reached the upstream: %v", resp.StatusCode, smuggled.Load())
			}
		})
	}
}

func TestKeepAliveReusesBothConnections(t *testing.T) {
	t.Parallel()
	l := newEnv(t)
	l.policy(allow)
	l.name("api.example.test")
	l.upstream("api.example.test", true, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok") })
	client := l.client()
	for range 20 {
		if resp, body := get(t, client, "https://api.example.test/"); resp.StatusCode != 200 || body != "ok" {
			t.Fatalf("%d %s", resp.StatusCode, body)
		}
	}
	l.await(40)
	if n, m := l.dials(), len(l.ca.asked); n != 1 || m != 1 {
		t.Errorf("%d dials, %d handshakes, want 1 and 1", n, m)
	}
}

func TestEachRequestOnAConnectionIsDecided(t *testing.T) {
	t.Parallel()
	l := newEnv(t)
	l.name("api.example.test")
	l.policy(func(in policy.Input) policy.Decision {
		if in.Phase == policy.PhaseRequest && in.Request.Path == "/secret" {
			return policy.Decision{Reason: "not this path"}
		}
		return allow(in)
	})
	l.upstream("api.example.test", true, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.URL.Path) })
	client := l.client()
	for path, status := range map[string]int{"/a": 200, "/secret": 403, "/%73ecret": 403, "/b": 200} {
		if resp, body := get(t, client, "https://api.example.test"+path); resp.StatusCode != status {
			t.Errorf("%s: %d %s, want %d", path, resp.StatusCode, body, status)
		}
	}
}

func TestCompletionIsWrittenOnceHoweverItEnds(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, method string
		serve        http.HandlerFunc
		client       func(t *testing.T, resp *http.Response, err error)
		status       int
		failed       bool
	}{
		{name: "HEAD", method: "HEAD", status: 200, serve: func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "1000") },
			client: func(t *testing.T, resp *http.Response, err error) {
				if err != nil || resp.ContentLength != 1000 {
					t.Errorf("%+v %v", resp, err)
				}
			}},
		{name: "204", method: "GET", status: 204, serve: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) }},
		{name: "304", method: "GET", status: 304, serve: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(304) }},
		{name: "302 is the sandbox's to follow", method: "GET", status: 302, serve: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "https://other.example.test/")
			w.WriteHeader(302)
		}},
		{name: "upstream breaks off before the head", method: "GET", status: 502, failed: true,
			serve: func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }},
		{name: "upstream breaks off in a body of known length", method: "GET", status: 200, failed: true,
			serve: func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Length", "100")
				io.WriteString(w, "part")
				w.(http.Flusher).Flush()
				panic(http.ErrAbortHandler)
			}, client: broken},
		{name: "upstream breaks off in a chunked body", method: "GET", status: 200, failed: true,
			serve: func(w http.ResponseWriter, _ *http.Request) {
				io.WriteString(w, "part")
				w.(http.Flusher).Flush()
				panic(http.ErrAbortHandler)
			}, client: broken},
		{name: "event stream breaks off", method: "GET", status: 200, failed: true,
			serve: func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				io.WriteString(w, "data: x\n\n")
				w.(http.Flusher).Flush()
				panic(http.ErrAbortHandler)
			}, client: broken},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			l := newEnv(t)
			l.policy(allow)
			l.name("api.example.test")
			l.upstream("api.example.test", true, test.serve)
			r, _ := http.NewRequest(test.method, "https://api.example.test/", nil)
			resp, err := l.client().Do(r)
			switch {
			case test.client != nil:
				test.client(t, resp, err)
			case err != nil:
				t.Fatal(err)
			}
			if resp != nil {
				resp.Body.Close()
			}
			c := l.await(2)[1]
			if c.HTTPResponse.Code != test.status || (c.StatusID == audit.StatusFailure) != test.failed {
				t.Errorf("completion %+v %+v", c, c.HTTPResponse)
			}
		})
	}
}

// broken wants a response that cannot be taken for a whole one.
func broken(t *testing.T, resp *http.Response, err error) {
	if err != nil {
		return
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err == nil {
		t.Errorf("read %q as if it were whole", body)
	}
}

func TestClientThatGoesAwayCompletes(t *testing.T) {
	t.Parallel()
	l := newEnv(t)
	l.policy(allow)
	l.name("api.example.test")
	gone := make(chan struct{})
	l.upstream("api.example.test", true, func(w http.ResponseWriter, r *http.Request) {
		for {
			if _, err := io.WriteString(w, strings.Repeat("x", 1<<16)); err != nil {
				close(gone)
				return
			}
			w.(http.Flusher).Flush()
		}
	})
	resp, err := l.client().Get("https://api.example.test/")
	must.OK(t, err)
	io.CopyN(io.Discard, resp.Body, 1<<18)
	resp.Body.Close()
	c := l.await(2)[1]
	if c.StatusID != audit.StatusFailure || c.Detail != "the sandbox went away" || c.Traffic.BytesIn < 1<<18 {
		t.Errorf("completion %+v %+v", c, c.Traffic)
	}
	select {
	case <-gone:
	case <-time.After(patience):
		t.Error("the upstream request goes on")
	}
}

func TestHopByHopHeadersStayOnTheirHop(t *testing.T) {
	t.Parallel()
	l := newEnv(t)
	l.policy(allow)
	var got http.Header
	l.upstream("api.example.test", true, func(w http.ResponseWriter, r *http.Request) {
		got = r.Header
		w.Header().Set("Connection", "X-Private")
		w.Header().Set("X-Private", "1")
		w.Header().Set("Alt-Svc", `h3=":443"`)
		w.Header().Set("Sallyport-Decision", "forged")
	})
	c, err := l.secure(l.name("api.example.test").String()+":443", "api.example.test")
	must.OK(t, err)
	resp, _ := send(t, c, "GET / HTTP/1.1\r\nHost: api.example.test\r\nConnection: keep-alive, X-Mine\r\nTE: trailers\r\nKeep-Alive: 5\r\nProxy-Authorization: Basic eDp5\r\nX-Kept: 1\r\n\r\n")
	if diff := cmp.Diff(got, http.Header{"X-Kept": {"1"}}); diff != "" {
		t.Errorf("to the upstream: %s", diff)
	}
	for _, name := range []string{"Connection", "X-Private", "Alt-Svc", "Sallyport-Decision"} {
		if v := resp.Header.Get(name); v != "" {
			t.Errorf("to the sandbox: %s: %s", name, v)
		}
	}
}

func TestPanicDenies(t *testing.T) {
	t.Parallel()
	for _, phase := range []policy.Phase{policy.PhaseConnect, policy.PhaseRequest} {
		t.Run(string(phase), func(t *testing.T) {
			l := newEnv(t)
			l.name("api.example.test")
			l.upstream("api.example.test", true, func(http.ResponseWriter, *http.Request) { t.Error("reached") })
			l.policy(func(in policy.Input) policy.Decision {
				if in.Phase == phase {
					panic("boom")
				}
				return allow(in)
			})
			resp, err := l.client().Get("https://api.example.test/")
			switch {
			case phase == policy.PhaseConnect && err == nil:
				t.Errorf("got %d", resp.StatusCode)
			case phase == policy.PhaseRequest && (err != nil || resp.StatusCode != 500):
				t.Errorf("got %v %v", resp, err)
			}
			if err == nil {
				if body := text(t, resp); strings.Contains(body, "boom") {
					t.Errorf("the cause is the operator's: %s", body)
				}
			}
			if l.dials() != 0 {
				t.Error("dialled")
			}
			l.policy(allow) // and the gateway lives
			l.name("other.example.test")
			l.upstream("other.example.test", true, func(http.ResponseWriter, *http.Request) {})
			if resp, _ := get(t, l.client(), "https://other.example.test/"); resp.StatusCode != 200 {
				t.Errorf("afterwards %d", resp.StatusCode)
			}
		})
	}
}
