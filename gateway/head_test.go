package gateway_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sallyport/policy"
)

func TestInformationalResponsesInEveryVersion(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, m *versionEnv) {
		m.credential("key", token)
		m.policy(func(in policy.Input) policy.Decision {
			d := m.allow(in)
			if in.Request != nil && in.Request.Path == "/echo" {
				d.Inject = inject("key")(in).Inject
			}
			return d
		})
		m.handle("/", func(w http.ResponseWriter, r *http.Request) {
			for i := range 3 {
				w.Header().Set("Link", fmt.Sprintf("</%d.css>; rel=preload%s", i, strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")))
				w.Header().Set("Sallyport-Decision", "forged")
				w.WriteHeader(103)
				time.Sleep(10 * time.Millisecond)
			}
			w.Header().Del("Link")
			w.WriteHeader(201)
			io.WriteString(w, "done")
		})
		for _, path := range []string{"/", "/echo"} {
			if path == "/echo" && m.scheme == "http" {
				continue // no credential goes in the clear
			}
			var got []string
			trace := &httptrace.ClientTrace{Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
				got = append(got, fmt.Sprint(code, " ", h.Get("Link"), h.Get("Sallyport-Decision")))
				return nil
			}}
			r := m.request(t, "GET", path, nil)
			resp := m.do(t, r.WithContext(httptrace.WithClientTrace(r.Context(), trace)))
			if body := text(t, resp); resp.StatusCode != 201 || body != "done" || resp.Header.Get("Link") != "" {
				t.Errorf("%d %s %v", resp.StatusCode, body, resp.Header)
			}
			mask := ""
			if path == "/echo" {
				mask = strings.Repeat("*", len(token))
			}
			var want []string
			for i := range 3 {
				want = append(want, fmt.Sprintf("103 </%d.css>; rel=preload%s", i, mask))
			}
			if diff := cmp.Diff(got, want); diff != "" {
				t.Error(diff)
			}
		}
	})
}

// asked is a body that notes when it is first read.
type asked struct {
	io.Reader
	at atomic.Int64 // Unix nanoseconds, 0 for never
}

func (a *asked) Read(p []byte) (int, error) {
	a.at.CompareAndSwap(0, time.Now().UnixNano())
	return a.Reader.Read(p)
}

func TestExpectedContinueIsTheUpstreams(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, m *versionEnv) {
		m.policy(func(in policy.Input) policy.Decision {
			if in.Request != nil && in.Request.Path == "/denied" {
				return policy.Decision{Reason: "not this path"}
			}
			return m.allow(in)
		})
		var ready atomic.Int64
		m.handle("/accept", func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(200 * time.Millisecond)
			ready.Store(time.Now().UnixNano())
			b, err := io.ReadAll(r.Body)
			fmt.Fprint(w, string(b), err)
		})
		m.handle("/refuse", func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(403)
			io.WriteString(w, "no body of yours")
		})
		for _, test := range []struct {
			path, want string
			status     int
			sent       bool
		}{
			{"/accept", "hello<nil>", 200, true},
			{"/refuse", "no body of yours", 403, false},
			{"/denied", "not this path", 403, false},
			{"/accept", "hello<nil>", 200, true},
		} {
			body := &asked{Reader: strings.NewReader("hello")}
			r := m.request(t, "POST", test.path, body)
			r.ContentLength, r.Close = 5, true // or net/http sends it to keep the connection
			r.Header.Set("Expect", "100-continue")
			resp := m.do(t, r)
			if got := strings.ReplaceAll(text(t, resp), " ", ""); resp.StatusCode != test.status || !strings.Contains(got, strings.ReplaceAll(test.want, " ", "")) {
				t.Errorf("%s: %d %s", test.path, resp.StatusCode, got)
			}
			switch at := body.at.Load(); {
			case at != 0 && !test.sent:
				t.Errorf("%s: the body was asked for", test.path)
			case test.sent && at < ready.Load():
				t.Errorf("%s: the body was asked for %v before the upstream wanted it", test.path, time.Duration(ready.Load()-at))
			}
		}
	})
}

// atEnd is an empty reader that does something when it is reached.
type atEnd func()

func (f atEnd) Read([]byte) (int, error) {
	f()
	return 0, io.EOF
}

func TestTrailersInEveryVersion(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, m *versionEnv) {
		m.handle("/", func(w http.ResponseWriter, r *http.Request) {
			n, _ := io.Copy(io.Discard, r.Body)
			q := r.URL.Query()
			if q.Has("announced") {
				w.Header().Set("Trailer", "X-Sum, X-Other")
			}
			if q.Has("body") {
				io.WriteString(w, "body")
				w.(http.Flusher).Flush()
			}
			got := fmt.Sprint(n, " ", r.Trailer.Get("X-Request-Sum"))
			if q.Has("announced") {
				w.Header().Set("X-Sum", "1")
				w.Header().Set("X-Other", got)
			}
			if q.Has("late") {
				w.Header().Set(http.TrailerPrefix+"X-Late", got)
				w.Header().Set(http.TrailerPrefix+"Sallyport-Decision", "forged")
			}
		})
		for _, query := range []string{"announced", "announced&body", "late&body", "announced&late&body"} {
			t.Run(query, func(t *testing.T) {
				r := m.request(t, "POST", "/?"+query, io.MultiReader(strings.NewReader("hello")))
				r.Trailer = http.Header{"X-Request-Sum": {"42"}}
				resp := m.do(t, r)
				body := text(t, resp)
				want := http.Header{}
				if strings.Contains(query, "announced") {
					want["X-Sum"], want["X-Other"] = []string{"1"}, []string{"5 42"}
				}
				if strings.Contains(query, "late") {
					want["X-Late"] = []string{"5 42"}
				}
				got := resp.Trailer.Clone()
				for name, v := range got {
					if v == nil {
						delete(got, name)
					}
				}
				if diff := cmp.Diff(got, want); diff != "" {
					t.Error(diff)
				}
				if (body == "body") != strings.Contains(query, "body") {
					t.Errorf("body %q", body)
				}
			})
		}
		decisions, _ := m.settled(t)
		if names := decisions[0].Unmapped.Sallyport.HeaderNames; !slices.Contains(names, "X-Request-Sum") {
			t.Errorf("the names that policy and audit see, %v, lack the trailer", names)
		}
	})
}

// A trailer can be read as a header by whoever merges them, and policy has
// decided when it comes.
func TestRequestTrailersAreNoWayAroundTheHeaders(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, m *versionEnv) {
		m.credential("key", token)
		m.policy(func(in policy.Input) policy.Decision {
			d := m.allow(in)
			if in.Request != nil && in.Request.Path == "/key" {
				d.Inject = inject("key")(in).Inject
				d.Inject[0].Inject.Header.Name = "X-Service"
			}
			return d
		})
		got := make(chan http.Header, 1)
		m.handle("/", func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			got <- r.Trailer
		})
		for _, test := range []struct {
			name, path string
			trailer    http.Header
			late       http.Header // not announced
			status     int
			want       http.Header
		}{
			{"override", "/", http.Header{"X-Http-Method-Override": {"DELETE"}}, nil, 403, nil},
			{"override with underscores", "/", http.Header{"X_original_url": {"/admin"}}, nil, 403, nil},
			{"another host", "/", http.Header{"Host": {"other.example.test"}}, nil, 400, nil},
			{"a connection's own", "/", http.Header{"Connection": {"close"}}, nil, 400, nil},
			{"a connection's own, by HTTP/2", "/", http.Header{"Te": {"trailers"}}, nil, 400, nil},
			{"a credential of its own", "/", http.Header{"Authorization": {"Bearer mine"}}, nil, 400, nil},
			{"a credential beside ours", "/key", http.Header{"X-Api-Key": {"mine"}}, nil, 200, nil},
			{"a credential beside ours, with underscores", "/key", http.Header{"X_api_key": {"mine"}}, nil, 200, nil},
			{"in the place of ours", "/key", http.Header{"X-Service": {"mine"}}, nil, 200, nil},
			{"a checksum beside ours", "/key", http.Header{"X-Amz-Checksum-Crc32": {"1"}, "X-Api-Key": {"mine"}}, nil, 200, http.Header{"X-Amz-Checksum-Crc32": {"1"}}},
			{"override beside ours", "/key", http.Header{"X-Http-Method-Override": {"DELETE"}}, nil, 403, nil},
			{"unannounced beside ours", "/key", http.Header{"X-Sum": {"1"}}, http.Header{"X-Late": {"x"}}, 200, http.Header{"X-Sum": {"1"}}},
			{"nothing of that", "/", http.Header{"X-Sum": {"1"}}, nil, 200, http.Header{"X-Sum": {"1"}}},
			{"unannounced", "/", http.Header{"X-Sum": {"1"}}, http.Header{"X-Http-Method-Override": {"DELETE"}, "X-Api-Key": {"x"}}, 200, http.Header{"X-Sum": {"1"}}},
		} {
			t.Run(test.name, func(t *testing.T) {
				if test.path == "/key" && m.scheme == "http" {
					t.Skip("no credential goes in the clear")
				}
				r := m.request(t, "POST", test.path, io.MultiReader(strings.NewReader("hello")))
				r.Trailer = test.trailer.Clone()
				if test.late != nil {
					body := strings.NewReader("hello")
					r.Body = io.NopCloser(io.MultiReader(body, atEnd(func() {
						for k, v := range test.late {
							r.Trailer[k] = v
						}
					})))
				}
				resp, err := m.client.Do(r)
				if err != nil {
					if test.status != 400 || m.version != "h2" {
						t.Fatal(err)
					}
					return // the library has reset the stream when the trailers came
				}
				resp.Body.Close()
				if resp.StatusCode != test.status {
					t.Fatalf("%d, want %d", resp.StatusCode, test.status)
				}
				if test.status != 200 {
					return
				}
				have := <-got
				if diff := cmp.Diff(have, test.want); diff != "" {
					t.Error(diff)
				}
			})
		}
	})
}
