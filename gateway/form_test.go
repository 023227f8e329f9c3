package gateway_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"sallyport/internal/test/must"
	"sallyport/policy"
)

// TestFormOfHTTP2 sends what HTTP/2 can say and HTTP/1.1 cannot, or what the two
// could say differently, to upstreams of either version.
func TestFormOfHTTP2(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		fields []field // beside :method GET, :scheme https, :path / and :authority, unless they are among them
		body   string
		status string // "reset" for a stream or connection that the library ends
		want   string // what the upstream gets
	}{
		{name: "plain", status: "200", want: "GET / [] "},
		{name: "Host that agrees", fields: []field{{"host", "HOST"}}, status: "200", want: "GET / [] "},
		{name: "Host that does not", fields: []field{{"host", "other.example.test"}}, status: "reset"},
		{name: "Host alone", fields: []field{{":authority", ""}, {"host", "HOST"}}, status: "200", want: "GET / [] "},
		{name: "two Hosts", fields: []field{{"host", "HOST"}, {"host", "HOST"}}, status: "reset"},
		{name: "userinfo in :authority", fields: []field{{":authority", "u:p@HOST"}}, status: "reset"},
		{name: "path in :authority", fields: []field{{":authority", "HOST/x"}}, status: "reset"},
		{name: "space in :authority", fields: []field{{":authority", "HOST x"}}, status: "reset"},
		{name: ":authority percent-encoded", fields: []field{{":authority", "api%2eexample.test"}}, status: "400"},
		{name: ":authority with final dot", fields: []field{{":authority", "api.example.test.:PORT"}}, status: "200", want: "GET / [] "},
		{name: "absolute-form in :path", fields: []field{{":path", "https://HOST/"}}, status: "reset"},
		{name: "two slashes in :path", fields: []field{{":path", "//other.example.test/"}}, status: "400"},
		{name: "no slash in :path", fields: []field{{":path", "x"}}, status: "reset"},
		{name: "empty :path", fields: []field{{":path", ""}}, status: "reset"},
		{name: "asterisk in :path", fields: []field{{":method", "OPTIONS"}, {":path", "*"}}, status: "400"},
		{name: "fragment in :path", fields: []field{{":path", "/a#b"}}, status: "400"},
		{name: "fragment in the query", fields: []field{{":path", "/a?b#c"}}, status: "400"},
		{name: "space in the query", fields: []field{{":path", "/a?b HTTP/1.1 c"}}, status: "400"},
		{name: "space in :path", fields: []field{{":path", "/a b"}}, status: "400"},
		{name: "another request in :path", fields: []field{{":path", "/ HTTP/1.1\r\nX: y"}}, status: "reset"},
		{name: "dot segments in :path", fields: []field{{":path", "/a/../b"}}, status: "400"},
		{name: ":scheme http", fields: []field{{":scheme", "http"}}, status: "421"},
		{name: ":scheme ftp", fields: []field{{":scheme", "ftp"}}, status: "reset"},
		{name: "no :scheme", fields: []field{{":scheme", ""}}, status: "reset"},
		{name: "CONNECT", fields: []field{{":method", "CONNECT"}, {":scheme", ""}, {":path", ""}}, status: "405"},
		{name: "CONNECT with :path", fields: []field{{":method", "CONNECT"}}, status: "reset"},
		{name: "CONNECT for UDP", fields: []field{{":method", "CONNECT"}, {":protocol", "connect-udp"}}, status: "405"},
		{name: "GET for a WebSocket", fields: []field{{":protocol", "websocket"}}, status: "400"},
		{name: "TRACE", fields: []field{{":method", "TRACE"}}, status: "405"},
		{name: "space in :method", fields: []field{{":method", "GET /x"}}, status: "400"},
		{name: "line in :method", fields: []field{{":method", "GET / HTTP/1.1\r\nX: y\r\n\r\nGET"}}, status: "reset"},
		{name: "lower-case method", fields: []field{{":method", "get"}}, status: "200", want: "get / [] "},
		{name: "unknown pseudo-header", fields: []field{{":x", "y"}}, status: "reset"},
		{name: "pseudo-header after a header", fields: []field{{"x-a", "y"}, {":path", "/b"}}, status: "reset"},
		{name: "pseudo-header of a response", fields: []field{{":status", "200"}}, status: "reset"},
		{name: "upper case in a name", fields: []field{{"X-A", "y"}}, status: "reset"},
		{name: "empty name", fields: []field{{"", "y"}}, status: "reset"},
		{name: "space in a name", fields: []field{{"x a", "y"}}, status: "reset"},
		{name: "colon in a name", fields: []field{{"x:a", "y"}}, status: "reset"},
		{name: "line in a name", fields: []field{{"x-a: y\r\nx-b", "y"}}, status: "reset"},
		{name: "line in a value", fields: []field{{"x-a", "y\r\nx-b: y"}}, status: "reset"},
		{name: "bare LF in a value", fields: []field{{"x-a", "y\nx-b: y"}}, status: "reset"},
		{name: "bare CR in a value", fields: []field{{"x-a", "y\rx-b: y"}}, status: "reset"},
		{name: "NUL in a value", fields: []field{{"x-a", "y\x00"}}, status: "reset"},
		{name: "space around a value", fields: []field{{"x-a", " y"}}, status: "400"},
		{name: "tab after a value", fields: []field{{"x-a", "y\t"}}, status: "400"},
		{name: "bytes above ASCII in a value", fields: []field{{"x-a", "\xe9"}}, status: "200", want: "GET / [\xe9] "},
		{name: "empty value", fields: []field{{"x-a", ""}}, status: "200", want: "GET / [] "},
		{name: "Connection", fields: []field{{"connection", "x-a"}}, status: "400"},
		{name: "Transfer-Encoding", fields: []field{{"transfer-encoding", "chunked"}}, status: "400"},
		{name: "Upgrade", fields: []field{{"upgrade", "h2c"}}, status: "400"},
		{name: "TE", fields: []field{{"te", "gzip"}}, status: "400"},
		{name: "HTTP2-Settings", fields: []field{{"http2-settings", "AAMAAABkAAQAAP__"}}, status: "200", want: "GET / [] "},
		{name: "override", fields: []field{{"x-original-url", "/admin"}}, status: "403"},

		{name: "body of its length", fields: []field{{"content-length", "5"}}, body: "hello", status: "200", want: "GET / [] hello"},
		{name: "body without length", body: "hello", status: "200", want: "GET / [] hello"},
		{name: "longer body", fields: []field{{"content-length", "4"}}, body: "hello", status: "502 or reset"},
		{name: "shorter body", fields: []field{{"content-length", "6"}}, body: "hello", status: "502 or reset"},
		{name: "length that is none", fields: []field{{"content-length", "5, 5"}}, body: "hello", status: "reset"},
		{name: "length with a sign", fields: []field{{"content-length", "+5"}}, body: "hello", status: "reset"},
		{name: "length with a zero", fields: []field{{"content-length", "05"}}, body: "hello", status: "reset"},
		{name: "two lengths", fields: []field{{"content-length", "5"}, {"content-length", "6"}}, body: "hello", status: "reset"},
		{name: "two lengths without a body", fields: []field{{"content-length", "0"}, {"content-length", "0"}}, status: "400"},
		{name: "length that is none, without a body", fields: []field{{"content-length", "5, 5"}}, status: "400"},
		{name: "length without a body", fields: []field{{"content-length", "5"}}, status: "400"},
		{name: "another request in the body", body: "0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: HOST\r\n\r\n", status: "200",
			want: "GET / [] 0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: HOST\r\n\r\n"},
	}
	for _, version := range []string{"h1", "h2"} {
		t.Run("to "+version, func(t *testing.T) {
			w := newNetEnv(t)
			var reached []string
			o := w.origin("api.example.test", version, true)
			o.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
				body, err := io.ReadAll(r.Body)
				got := fmt.Sprintf("%s %s %v %s", r.Method, r.URL, r.Header["X-A"], body)
				if r.Header["X-A"] == nil || r.Header.Get("X-A") == "" {
					got = fmt.Sprintf("%s %s [] %s", r.Method, r.URL, body)
				}
				if err == nil {
					reached = append(reached, got)
				}
				for _, name := range []string{"Upgrade", "Http2-Settings", "Connection", "Te"} {
					if v := r.Header.Get(name); v != "" {
						t.Errorf("%s: %s went out", name, v)
					}
				}
				fmt.Fprintf(w, "%s", got)
			})
			host := fmt.Sprintf("api.example.test:%d", o.port)
			replace := strings.NewReplacer("HOST", host, "PORT", fmt.Sprint(o.port))
			for _, test := range tests {
				t.Run(test.name, func(t *testing.T) {
					reached = nil
					c := w.frames(w.steer, o)
					pseudo := []field{{":method", "GET"}, {":scheme", "https"}, {":path", "/"}, {":authority", host}}
					var regular []field
					seen := map[string]bool{}
				next:
					for _, f := range test.fields {
						f.value = replace.Replace(f.value)
						for i := range pseudo {
							if pseudo[i].name == f.name && len(regular) == 0 {
								pseudo[i].value = f.value
								continue next
							}
						}
						if strings.HasPrefix(f.name, ":") && len(regular) == 0 && !seen[f.name] {
							pseudo = append(pseudo, f)
							seen[f.name] = true
							continue
						}
						regular = append(regular, f)
					}
					var fields []field
					for _, f := range pseudo {
						if f.value != "" || f.name == ":path" && f.value == "" && test.name == "empty :path" {
							fields = append(fields, f)
						}
					}
					id, err := c.open(test.body == "", append(fields, regular...)...)
					must.OK(t, err)
					if test.body != "" {
						_ = c.WriteData(id, true, []byte(replace.Replace(test.body)))
					}
					a := c.wait(id)
					got := a.status
					if a.status == "" && (a.broken || a.gone) {
						got = "reset"
					}
					if got == "" || !strings.Contains(" "+test.status+" ", " "+got+" ") {
						t.Errorf("%s %s, want %s", got, a.body, test.status)
					}
					if want := replace.Replace(test.want); a.status == "200" && a.body != want {
						t.Errorf("the upstream got %q, want %q", a.body, want)
					}
					if test.want == "" && len(reached) > 0 {
						t.Errorf("the upstream got %q", reached)
					}
					if test.status >= "4" && test.status < "5" && a.status != "" && a.header["sallyport-decision"] == "" && !strings.Contains("Connection Transfer-Encoding Upgrade TE", test.name) {
						t.Errorf("%s is not of ours: %s", a.status, a.body)
					}
				})
			}
			for _, name := range w.zone.names() {
				if name != "api.example.test" {
					t.Errorf("%s was looked up", name)
				}
			}
		})
	}
}

// TestSchemeOfPlainHTTP2 has a client that says https where nothing is encrypted.
func TestSchemeOfPlainHTTP2(t *testing.T) {
	t.Parallel()
	w := newNetEnv(t)
	w.policy(func(in policy.Input) policy.Decision {
		if in.Request != nil && in.Request.Scheme != "http" {
			t.Errorf("policy saw %s", in.Request.Scheme)
		}
		return w.allow(in)
	})
	o := w.origin("api.example.test", "h2", false)
	o.handle("/", func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "plain") })
	raw, err := w.steer(t.Context(), "tcp", fmt.Sprintf("%s:%d", o.name, o.port))
	must.OK(t, err)
	defer raw.Close()
	c, err := newFrames(raw)
	must.OK(t, err)
	a := c.ask(t, field{":method", "GET"}, field{":scheme", "https"}, field{":path", "/"}, field{":authority", fmt.Sprintf("%s:%d", o.name, o.port)})
	if a.status != "200" || a.body != "plain" {
		t.Errorf("%+v", a)
	}
}

// An answer that HTTP/2 allows and HTTP/1.1 does not is refused.
func TestFormOfHTTP2Responses(t *testing.T) {
	t.Parallel()
	w := newNetEnv(t)
	for _, test := range []struct {
		name   string
		fields []field
		after  []field // trailers
		status int
	}{
		{"plain", []field{{":status", "200"}}, nil, 200},
		{"no status", []field{{"x-a", "b"}}, nil, 502},
		{"status of two digits", []field{{":status", "20"}}, nil, 502},
		{"status of four digits", []field{{":status", "2000"}}, nil, 502},
		{"status that is no number", []field{{":status", "ok"}}, nil, 502},
		{"status of zero", []field{{":status", "0"}}, nil, 502},
		{"101", []field{{":status", "101"}, {"upgrade", "websocket"}, {"connection", "upgrade"}}, nil, 502},
		{"upper case in a name", []field{{":status", "200"}, {"X-A", "b"}}, nil, 502},
		{"line in a value", []field{{":status", "200"}, {"x-a", "b\r\nSet-Cookie: c"}}, nil, 502},
		{"our header", []field{{":status", "200"}, {"sallyport-decision", "forged"}}, nil, 200},
		{"another way to it", []field{{":status", "200"}, {"alt-svc", `h3=":443"`}}, nil, 200},
		{"a hop's own", []field{{":status", "200"}, {"connection", "close"}, {"keep-alive", "timeout=5"}, {"transfer-encoding", "chunked"}}, nil, 200},
		{"pseudo-header in the trailers", []field{{":status", "200"}}, []field{{":status", "500"}}, 0},
		{"our header in the trailers", []field{{":status", "200"}}, []field{{"sallyport-decision", "forged"}, {"x-sum", "1"}}, 200},
	} {
		for _, version := range []string{"h1", "h2"} {
			t.Run(test.name+" for "+version, func(t *testing.T) {
				o := w.scripted("api.example.test", func(c *frames, id uint32) {
					_ = c.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: c.headers(test.fields...), EndHeaders: true})
					_ = c.WriteData(id, test.after == nil, []byte("body"))
					if test.after != nil {
						_ = c.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: c.headers(test.after...), EndHeaders: true, EndStream: true})
					}
				})
				start := time.Now()
				resp, err := w.agent(version, true, w.steer, false).Get(o.url("https", "/"))
				if took := time.Since(start); took > soon {
					t.Errorf("took %v", took)
				}
				if err != nil {
					if test.status != 0 {
						t.Fatal(err)
					}
					return
				}
				defer resp.Body.Close()
				body, err := io.ReadAll(resp.Body)
				if test.status == 0 {
					if err == nil && resp.StatusCode == 200 {
						t.Errorf("%d %s, whole", resp.StatusCode, body)
					}
					return
				}
				if err != nil || resp.StatusCode != test.status {
					t.Errorf("%d %s %v, want %d", resp.StatusCode, body, err, test.status)
				}
				for _, h := range []http.Header{resp.Header, resp.Trailer} {
					if h.Get("Sallyport-Decision") == "forged" || h.Get("Alt-Svc") != "" || h.Get("Keep-Alive") != "" || h.Get("Set-Cookie") != "" {
						t.Errorf("header %v", h)
					}
				}
				if test.after != nil && resp.Trailer.Get("X-Sum") != "1" {
					t.Errorf("trailer %v", resp.Trailer)
				}
			})
		}
	}
}
