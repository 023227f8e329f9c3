package gateway_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"sallyport/internal/test/must"
	"sallyport/policy"
)

// versionEnv is a client and an upstream that each speak a version of HTTP, with
// the gateway between them.
type versionEnv struct {
	*netEnv
	*origin
	client   *http.Client
	dial     dialler
	version  string // of the client
	upstream string // of the upstream
	scheme   string
	explicit bool
}

// proto is how a version of HTTP calls itself.
var proto = map[string]string{"h1": "HTTP/1.1", "h2": "HTTP/2.0"}

// eachVersion runs a test side by side for every way in, version in and version out. Plain
// HTTP is of one version on both sides.
func eachVersion(t *testing.T, test func(t *testing.T, m *versionEnv)) {
	eachVersionAlone(t, func(t *testing.T, m func() *versionEnv) {
		t.Parallel()
		test(t, m())
	})
}

// eachVersionInTurn runs a test that minds the time for one of them after the other.
func eachVersionInTurn(t *testing.T, test func(t *testing.T, m *versionEnv)) {
	eachVersionAlone(t, func(t *testing.T, open func() *versionEnv) { test(t, open()) })
}

func eachVersionAlone(t *testing.T, test func(t *testing.T, m func() *versionEnv)) {
	for _, way := range []string{"transparent", "explicit"} {
		for _, pair := range []struct{ version, upstream, scheme string }{
			{"h1", "h1", "https"}, {"h1", "h2", "https"}, {"h2", "h1", "https"}, {"h2", "h2", "https"},
			{"h1", "h1", "http"}, {"h2", "h2", "http"},
		} {
			t.Run(fmt.Sprintf("%s/%s/%s to %s", way, pair.scheme, pair.version, pair.upstream), func(t *testing.T) {
				test(t, func() *versionEnv { return newVersionEnv(t, way, pair.version, pair.upstream, pair.scheme) })
			})
		}
	}
}

func newVersionEnv(t *testing.T, way, version, upstream, scheme string, options ...option) *versionEnv {
	w := newNetEnv(t, options...)
	secure := scheme == "https"
	m := &versionEnv{netEnv: w, version: version, upstream: upstream, scheme: scheme, origin: w.origin("api.example.test", upstream, secure)}
	m.dial = w.steer
	if m.explicit = way == "explicit"; m.explicit {
		m.dial = w.connect
	}
	m.client = w.agent(version, secure, m.dial, m.explicit && version == "h1")
	return m
}

func (m *versionEnv) url(path string) string { return m.origin.url(m.scheme, path) }

func (m *versionEnv) request(t *testing.T, method, path string, body io.Reader) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, m.url(path), body)
	must.OK(t, err)
	return r
}

func (m *versionEnv) do(t *testing.T, r *http.Request) *http.Response {
	t.Helper()
	resp, err := m.client.Do(r)
	must.OK(t, err)
	t.Cleanup(func() { resp.Body.Close() })
	if resp.Proto != proto[m.version] {
		t.Fatalf("the client was answered in %s, want %s", resp.Proto, proto[m.version])
	}
	return resp
}

func TestRequestsInEveryVersion(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, m *versionEnv) {
		m.handle("/", func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			w.Header().Set("X-Answer", "yes")
			fmt.Fprintf(w, "%s %s %s %d %s", r.Proto, r.Method, r.URL, r.ContentLength, body)
		})
		for _, test := range []struct {
			method, path, body, want string
			unknown                  bool // length of the body
		}{
			{method: "GET", path: "/a?b=c", want: "GET /a?b=c 0 "},
			{method: "DELETE", path: "/a", want: "DELETE /a 0 "},
			{method: "POST", path: "/a", want: "POST /a 0 "},
			{method: "POST", path: "/a", body: "hello", want: "POST /a 5 hello"},
			{method: "PUT", path: "/a", body: "hello", unknown: true, want: "PUT /a -1 hello"},
			{method: "PATCH", path: "/a%20b", body: strings.Repeat("x", 1<<16), want: "PATCH /a%20b 65536 " + strings.Repeat("x", 1<<16)},
		} {
			t.Run(test.method+" "+test.path, func(t *testing.T) {
				var body io.Reader
				if test.body != "" {
					body = strings.NewReader(test.body)
				}
				if test.unknown {
					body = io.MultiReader(body) // of no known length
				}
				resp := m.do(t, m.request(t, test.method, test.path, body))
				if got, want := text(t, resp), proto[m.upstream]+" "+test.want; got != want || resp.StatusCode != 200 || resp.Header.Get("X-Answer") != "yes" {
					t.Errorf("%d %v %.200s, want %.200s", resp.StatusCode, resp.Header, got, want)
				}
			})
		}
		decisions, completions := m.settled(t)
		if len(decisions) != 6 || len(completions) != 6 {
			t.Fatalf("%d decisions and %d completions of 6 requests", len(decisions), len(completions))
		}
		last := completions[decisions[5].ID()]
		if last.Traffic.BytesOut != 1<<16 || last.HTTPResponse.Code != 200 || last.Traffic.BytesIn != last.HTTPResponse.Length || last.Traffic.BytesIn < 1<<16 {
			t.Errorf("completion %+v %+v", last.Traffic, last.HTTPResponse)
		}
		if n := m.conns.Load(); n != 1 {
			t.Errorf("%d connections to the upstream for requests one after the other", n)
		}
		for _, name := range m.zone.names() {
			if name != "api.example.test" {
				t.Errorf("%s was looked up", name)
			}
		}
	})
}

func TestBodilessInEveryVersion(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, m *versionEnv) {
		m.handle("/head", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "12345")
			w.Header().Set("Content-Type", "text/x-test")
		})
		m.handle("/head-unknown", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(200); w.(http.Flusher).Flush() })
		m.handle("/204", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(204) })
		m.handle("/304", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Etag", `"x"`)
			w.WriteHeader(304)
		})
		m.handle("/empty", func(w http.ResponseWriter, r *http.Request) {})
		for _, test := range []struct {
			method, path string
			status       int
			length       int64
			header       string
		}{
			{"HEAD", "/head", 200, 12345, "Content-Type"},
			{"HEAD", "/head-unknown", 200, -1, "Date"},
			{"GET", "/204", 204, 0, "Date"},
			{"DELETE", "/204", 204, 0, "Date"},
			{"GET", "/304", 304, 0, "Etag"},
			{"GET", "/empty", 200, 0, "Date"},
		} {
			t.Run(test.method+test.path, func(t *testing.T) {
				resp := m.do(t, m.request(t, test.method, test.path, nil))
				if body := text(t, resp); resp.StatusCode != test.status || body != "" || resp.Header.Get(test.header) == "" ||
					resp.ContentLength != test.length && !(test.status != 200 && resp.ContentLength <= 0) {
					t.Errorf("%d, length %d, %q, %v", resp.StatusCode, resp.ContentLength, body, resp.Header)
				}
			})
		}
		if decisions, _ := m.settled(t); len(decisions) != 6 {
			t.Errorf("%d decisions", len(decisions))
		}
		if n := m.conns.Load(); n != 1 {
			t.Errorf("%d connections to the upstream: what has no body breaks them", n)
		}
	})
}

func TestDenialInEveryVersion(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, m *versionEnv) {
		m.policy(func(in policy.Input) policy.Decision {
			if in.Request != nil && in.Request.Path == "/denied" {
				return policy.Decision{Reason: "not this path"}
			}
			return m.allow(in)
		})
		next := make(chan struct{})
		m.handle("/slow", func(w http.ResponseWriter, r *http.Request) {
			io.WriteString(w, "begun ")
			w.(http.Flusher).Flush()
			<-next
			io.WriteString(w, "ended")
		})
		m.handle("/", func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.URL.Path) })
		slow := m.do(t, m.request(t, "GET", "/slow", nil))
		for range 3 {
			denied := m.do(t, m.request(t, "POST", "/denied", strings.NewReader("body")))
			if body := text(t, denied); denied.StatusCode != 403 || !strings.Contains(body, "not this path") || denied.Header.Get("Sallyport-Decision") == "" {
				t.Errorf("%d %s", denied.StatusCode, body)
			}
			misused := m.request(t, "GET", "/x", nil)
			misused.Header.Set("X-Original-Url", "/denied")
			if resp := m.do(t, misused); resp.StatusCode != 403 {
				t.Errorf("%d %s", resp.StatusCode, text(t, resp))
			}
			if resp := m.do(t, m.request(t, "GET", "/fine", nil)); resp.StatusCode != 200 {
				t.Errorf("%d after a denial", resp.StatusCode)
			}
		}
		close(next)
		if got := text(t, slow); got != "begun ended" {
			t.Errorf("the stream beside the denials: %q", got)
		}
		decisions, completions := m.settled(t)
		if len(completions) != 4 || len(decisions) < 6 {
			t.Errorf("%d decisions, %d completions", len(decisions), len(completions))
		}
		if m.version == "h2" && m.entered() != 1 {
			t.Errorf("the client needed %d connections: a denial ended one", m.entered())
		}
	})
}

// entered is how many connections were made to the gateway.
func (m *versionEnv) entered() int {
	m.listener.mu.Lock()
	defer m.listener.mu.Unlock()
	return m.listener.count + int(m.proxied.Load())
}
