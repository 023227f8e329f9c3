package scrub_test

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/andybalholm/brotli"
	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"

	"sallyport/gateway/credential/decode"
	"sallyport/gateway/credential/scrub"
	"sallyport/internal/test/must"
)

const token = "sk-live-0123456789abcdef"

type flusher interface {
	io.WriteCloser
	Flush() error
}

var coders = map[string]func(io.Writer) flusher{
	"gzip":    func(w io.Writer) flusher { return gzip.NewWriter(w) },
	"x-gzip":  func(w io.Writer) flusher { return gzip.NewWriter(w) },
	"deflate": func(w io.Writer) flusher { return zlib.NewWriter(w) },
	"br":      func(w io.Writer) flusher { return brotli.NewWriter(w) },
	"zstd":    func(w io.Writer) flusher { z, _ := zstd.NewWriter(w, zstd.WithEncoderConcurrency(1)); return z },
}

func coded(t testing.TB, name, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := coders[name](&b)
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	must.OK(t, w.Close())
	return b.Bytes()
}

// ask has a server answer, over HTTP/2 if secure, and scrubs what it says.
func ask(t *testing.T, secure bool, method string, serve http.HandlerFunc) (*http.Response, *int, error) {
	t.Helper()
	s := httptest.NewUnstartedServer(serve)
	s.EnableHTTP2 = secure
	if secure {
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	transport := s.Client().Transport.(*http.Transport)
	transport.DisableCompression = true
	t.Cleanup(transport.CloseIdleConnections)
	r, err := http.NewRequestWithContext(t.Context(), method, s.URL, nil)
	must.OK(t, err)
	resp, err := transport.RoundTrip(r)
	must.OK(t, err)
	t.Cleanup(func() { resp.Body.Close() })
	hits := new(int)
	return resp, hits, scrubber(token).Response(resp, func(scrub.Found) { *hits++ })
}

func TestResponse(t *testing.T) {
	const text = "you sent " + token + "."
	clean := "you sent " + stars(len(token)) + "."
	for _, secure := range []bool{false, true} {
		for _, name := range []string{"", "identity", "gzip", "x-gzip", "deflate", "br", "zstd", "gzip, br"} {
			t.Run(fmt.Sprintf("HTTP/2 %v %s", secure, name), func(t *testing.T) {
				body := []byte(text)
				names := decode.List([]string{name})
				for _, n := range names {
					body = coded(t, n, string(body))
				}
				resp, hits, err := ask(t, secure, "GET", func(w http.ResponseWriter, r *http.Request) {
					h := w.Header()
					if name != "" {
						h.Set("Content-Encoding", name)
					}
					h.Set("Content-Length", fmt.Sprint(len(body)))
					h.Set("Etag", `"5"`)
					h.Set("Content-Digest", "sha-256=:x:")
					h.Set("X-Echo", token)
					h.Set("Trailer", "X-Last, Repr-Digest")
					if !secure {
						h.Del("Content-Length") // or there are no trailers
					}
					w.Write(body)
					h.Set("X-Last", "a"+token)
					h.Set("Repr-Digest", "sha-256=:y:")
				})
				must.OK(t, err)
				got, err := io.ReadAll(resp.Body)
				if err != nil || string(got) != clean || *hits != 3 {
					t.Errorf("%q, %v, %d hits", got, err, *hits)
				}
				want := http.Header{"Etag": {`W/"5"`}, "X-Echo": {stars(len(token))}}
				trailer := http.Header{"X-Last": {"a" + stars(len(token))}}
				if len(names) == 0 {
					want.Set("Etag", `"5"`)
					want.Set("Content-Digest", "sha-256=:x:")
					trailer.Set("Repr-Digest", "sha-256=:y:")
					if name != "" {
						want.Set("Content-Encoding", name)
					}
					if secure {
						want.Set("Content-Length", fmt.Sprint(len(body)))
					}
				}
				resp.Header.Del("Date")
				resp.Header.Del("Content-Type")
				if diff := cmp.Diff(resp.Header, want); diff != "" {
					t.Error(diff)
				}
				if diff := cmp.Diff(resp.Trailer, trailer); diff != "" {
					t.Error(diff)
				}
				if len(names) > 0 && resp.ContentLength != -1 {
					t.Errorf("a length of %d", resp.ContentLength)
				}
			})
		}
	}
}

func TestResponseWithoutBody(t *testing.T) {
	tests := []struct {
		method string
		status int
		coding string
		want   string // Content-Encoding
		tag    string
	}{
		{"HEAD", 200, "gzip", "", `W/"5"`},
		{"HEAD", 200, "", "", `"5"`},
		{"HEAD", 200, "compress", "compress", `"5"`},
		{"HEAD", 206, "", "", `"5"`},
		{"GET", 304, "br", "", `W/"5"`},
		{"GET", 304, "", "", `"5"`},
		{"GET", 204, "", "", `"5"`},
	}
	for _, test := range tests {
		t.Run(fmt.Sprint(test.method, test.status, test.coding), func(t *testing.T) {
			resp, hits, err := ask(t, false, test.method, func(w http.ResponseWriter, r *http.Request) {
				if test.coding != "" {
					w.Header().Set("Content-Encoding", test.coding)
				}
				w.Header().Set("Etag", `"5"`)
				w.Header().Set("X-Echo", token)
				if test.method == "HEAD" {
					w.Header().Set("Content-Length", "1000")
				}
				w.WriteHeader(test.status)
			})
			body, readErr := io.ReadAll(resp.Body)
			if err != nil || readErr != nil || len(body) > 0 || *hits != 1 {
				t.Errorf("%v, %v, %q, %d hits", err, readErr, body, *hits)
			}
			if h := resp.Header; h.Get("Content-Encoding") != test.want || h.Get("Etag") != test.tag || h.Get("X-Echo") != stars(len(token)) ||
				test.want == "" && test.coding != "" && h.Get("Content-Length") != "" {
				t.Errorf("header %v", h)
			}
		})
	}
}

func TestResponseRefused(t *testing.T) {
	tests := []struct {
		name   string
		status int
		header http.Header
	}{
		{"compress", 200, http.Header{"Content-Encoding": {"compress"}}},
		{"aes128gcm", 200, http.Header{"Content-Encoding": {"aes128gcm"}}},
		{"unknown within known", 200, http.Header{"Content-Encoding": {"dcz", "gzip"}}},
		{"too many", 200, http.Header{"Content-Encoding": {"gzip, gzip", "gzip, gzip"}}},
		{"part", 206, http.Header{"Content-Range": {"bytes 0-3/100"}}},
		{"coded part", 206, http.Header{"Content-Range": {"bytes 0-3/100"}, "Content-Encoding": {"gzip"}}},
		{"encoding of messages", 200, http.Header{"Content-Type": {"application/grpc"}, "Grpc-Encoding": {"snappy"}}},
		{"encoding of messages in base64", 200, http.Header{"Content-Type": {"application/grpc-web-text"}, "Grpc-Encoding": {"gzip"}}},
		{"encoding of messages of Connect", 200, http.Header{"Content-Type": {"application/connect+json"}, "Connect-Content-Encoding": {"snappy"}}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, _, err := ask(t, false, "GET", func(w http.ResponseWriter, r *http.Request) {
				for name, values := range test.header {
					w.Header()[name] = values
				}
				w.WriteHeader(test.status)
				io.WriteString(w, token)
			})
			if !errors.Is(err, scrub.ErrHidden) {
				t.Errorf("not refused: %v", err)
			}
		})
	}
}

func TestResponseThatBreaksOff(t *testing.T) {
	for name := range coders {
		body := coded(t, name, strings.Repeat("you sent "+token, 100))
		for what, bad := range map[string][]byte{"cut": body[:len(body)-3], "damaged": append([]byte("x"), body...), "long": append(body[:len(body):len(body)], token...)} {
			resp, _, err := ask(t, false, "GET", func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Encoding", name)
				w.Write(bad)
			})
			must.OK(t, err)
			if got, err := io.ReadAll(resp.Body); err == nil || strings.Contains(string(got), token) {
				t.Errorf("%s, %s: %v, %q", name, what, err, got)
			}
		}
	}
}

// An event comes through each coding when it was sent, not when the next is.
func TestResponseStreams(t *testing.T) {
	for name, open := range coders {
		t.Run(name, func(t *testing.T) {
			next := make(chan string)
			resp, hits, err := ask(t, true, "GET", func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				w.Header().Set("Content-Encoding", name)
				w.(http.Flusher).Flush()
				coder := open(w)
				for event := range next {
					io.WriteString(coder, event)
					coder.Flush()
					w.(http.Flusher).Flush()
				}
				coder.Close()
			})
			must.OK(t, err)
			for i := range 10 {
				event := fmt.Sprintf("data: %d %s\n\n", i, token)
				next <- event
				got := make([]byte, len(event))
				if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != fmt.Sprintf("data: %d %s\n\n", i, stars(len(token))) {
					t.Fatalf("%q, %v", got, err)
				}
			}
			close(next)
			if rest, err := io.ReadAll(resp.Body); err != nil || len(rest) > 0 || *hits != 10 {
				t.Errorf("%q, %v, %d hits", rest, err, *hits)
			}
		})
	}
}

func TestResponseOfNoSecrets(t *testing.T) {
	body := io.NopCloser(strings.NewReader(token))
	r := &http.Response{StatusCode: 206, Header: http.Header{"Content-Encoding": {"compress"}}, Body: body}
	if err := scrub.New(nil).Response(r, nil); err != nil || r.Header.Get("Content-Encoding") == "" {
		t.Errorf("%v, %+v", err, r)
	}
	if got, err := io.ReadAll(r.Body); err != nil || string(got) != token {
		t.Errorf("%q, %v", got, err)
	}
}

// The names of a trailer's fields go out before the body.
func TestTrailerNames(t *testing.T) {
	r := &http.Response{StatusCode: 200, Trailer: http.Header{"X-" + strings.ToUpper(token): nil, "X-Last": nil}, Body: http.NoBody}
	hits := 0
	if err := scrubber(token).Response(r, func(scrub.Found) { hits++ }); err != nil || hits != 1 || len(r.Trailer) != 1 {
		t.Errorf("%v, %d hits, %v", err, hits, r.Trailer)
	}
}

func TestSwitchingProtocols(t *testing.T) {
	body := io.NopCloser(strings.NewReader(token))
	r := &http.Response{StatusCode: 101, Header: http.Header{"X-Echo": {token}}, Body: body}
	if err := scrubber(token).Response(r, nil); err != nil || r.Body != body || r.Header.Get("X-Echo") != stars(len(token)) {
		t.Errorf("%v, %+v", err, r)
	}
}
