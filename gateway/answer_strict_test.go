package gateway_test

import (
	"bufio"
	"crypto/sha1"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"sallyport/internal/test/must"
	"sallyport/policy"
)

// granting are the headers by which an answer could give what is as good as the credential.
var granting = []string{"Set-Cookie", "Set-Cookie2", "Authentication-Info", "Proxy-Authentication-Info", "X-Auth-Token", "X-Subject-Token"}

// An answer to a request with an injected credential gives the sandbox no session of its own: not
// in its head, nor in an early one, nor after its body; unless the rule lets cookies pass.
func TestAnswersGrantNothing(t *testing.T) {
	t.Parallel()
	for _, pair := range [][2]string{{"h1", "h1"}, {"h1", "h2"}, {"h2", "h1"}, {"h2", "h2"}} {
		t.Run(pair[0]+" to "+pair[1], func(t *testing.T) {
			m := newVersionEnv(t, "transparent", pair[0], pair[1], "https")
			m.credential("key", token)
			m.policy(func(in policy.Input) policy.Decision {
				d := m.allow(in)
				if in.Request != nil && in.Request.Path != "/plain" {
					d.Inject = inject("key")(in).Inject
					d.Cookies = in.Request.Path == "/pass"
				}
				return d
			})
			m.handle("/", func(w http.ResponseWriter, r *http.Request) {
				h := w.Header()
				grant := func(prefix string) {
					for _, name := range granting {
						h.Set(prefix+name, "session=1")
					}
					h.Set(prefix+"X-Kept", "1")
				}
				grant("")
				w.WriteHeader(103)
				h.Set("X-Cookies", r.Header.Get("Cookie"))
				h.Set("Trailer", "X-Sum")
				io.WriteString(w, "body")
				w.(http.Flusher).Flush()
				grant(http.TrailerPrefix)
			})
			for path, passes := range map[string]bool{"/key": false, "/pass": true, "/plain": true} {
				early := http.Header{}
				r := m.request(t, "GET", path, nil)
				r.Header.Set("Cookie", "mine=1")
				trace := &httptrace.ClientTrace{Got1xxResponse: func(_ int, h textproto.MIMEHeader) error {
					early = http.Header(h)
					return nil
				}}
				resp := m.do(t, r.WithContext(httptrace.WithClientTrace(r.Context(), trace)))
				if text(t, resp) != "body" {
					t.Error("the body is gone")
				}
				for part, h := range map[string]http.Header{"103": early, "head": resp.Header, "trailer": resp.Trailer} {
					if h.Get("X-Kept") == "" {
						t.Errorf("%s: %s: a header of no concern is gone: %v", path, part, h)
					}
					for _, name := range granting {
						if _, there := h[name]; there != passes && (part != "trailer" || !passes) && !strings.HasPrefix(name, "Proxy-") {
							t.Errorf("%s: %s: %s is there: %v", path, part, name, there)
						}
					}
				}
				if got, want := resp.Header.Get("X-Cookies") != "", passes; got != want {
					t.Errorf("%s: the sandbox's own cookies arrive: %v", path, got)
				}
			}
		})
	}
}

// RFC 9110 has answers without a body by status and by method, whatever length their head
// names, in both versions on both sides, and for what comes in.
func TestBodilessAnswers(t *testing.T) {
	t.Parallel()
	list := []struct {
		name, method, status string
		length               string
	}{
		{"HEAD", "HEAD", "200", "12345"},
		{"HEAD of what is not there", "HEAD", "404", "12345"},
		{"HEAD of 304", "HEAD", "304", "12345"},
		{"204", "GET", "204", ""},
		{"204 with a length", "DELETE", "204", "0"},
		{"205", "POST", "205", "0"},
		{"304", "GET", "304", ""},
		{"304 with a length", "GET", "304", "12345"},
		{"304 with a length of none", "GET", "304", "0"},
	}
	for _, tt := range list {
		t.Run(tt.name, func(t *testing.T) {
			w := newNetEnv(t)
			head := func(status string) string {
				s := fmt.Sprintf("HTTP/1.1 %s x\r\nEtag: \"x\"\r\n", status)
				if tt.length != "" {
					s += "Content-Length: " + tt.length + "\r\n"
				}
				return s + "\r\n"
			}
			one := w.says("one.example.test", true, func(r *http.Request) string {
				early := ""
				if r.URL.Path == "/early" {
					early = "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
				}
				return early + head(tt.status)
			})
			two := w.scripted("two.example.test", func(c *frames, id uint32) {
				fields := []field{{":status", tt.status}, {"etag", `"x"`}}
				if tt.length != "" {
					fields = append(fields, field{"content-length", tt.length})
				}
				end := id%4 == 1 // else an empty frame ends it
				_ = c.WriteHeaders(httpHeaders(id, c.headers(fields...), end))
				if !end {
					_ = c.WriteData(id, true, nil)
				}
			})
			for _, o := range []*origin{one, two} {
				for _, version := range []string{"h1", "h2"} {
					client := w.agent(version, true, w.steer, false)
					for _, path := range []string{"/", "/again", "/early"} {
						r, err := http.NewRequest(tt.method, o.url("https", path), nil)
						must.OK(t, err)
						resp, err := client.Do(r)
						if err != nil {
							t.Errorf("%s to %s: %v", version, o.name, err)
							continue
						}
						body, err := io.ReadAll(resp.Body)
						resp.Body.Close()
						if fmt.Sprint(resp.StatusCode) != tt.status || len(body) > 0 || err != nil || resp.Header.Get("Etag") == "" {
							t.Errorf("%s to %s: %d %q %v %v", version, o.name, resp.StatusCode, body, err, resp.Header)
						}
						if got := resp.Header.Get("Content-Length"); tt.method == "HEAD" && tt.status != "304" && got != tt.length {
							t.Errorf("%s to %s: a length of %q, want %q", version, o.name, got, tt.length)
						}
					}
				}
				if n := o.conns.Load(); n != 1 {
					t.Errorf("%s: %d connections: what has no body breaks them", o.name, n)
				}
			}
			_, completions := w.settled(t)
			for _, c := range completions {
				if c.StatusID != 1 {
					t.Errorf("completed as %d: %s", c.StatusID, c.Detail)
				}
			}
			n, token := newInbound(t)
			n.speaks(t, head(tt.status))
			r, body := n.ask(t, tt.method+" / HTTP/1.1\r\nHost: "+n.host("demo")+"\r\nAuthorization: Bearer "+token+"\r\nContent-Length: 0\r\n\r\n")
			if fmt.Sprint(r.StatusCode) != tt.status || tt.method != "HEAD" && body != "" {
				t.Errorf("inbound: %d %q", r.StatusCode, body)
			}
		})
	}
}

// A WebSocket is one of RFC 6455 on both sides.
func TestWebSocketsAreStrict(t *testing.T) {
	t.Parallel()
	const shake = "GET /ws HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nOrigin: http://x\r\n"
	const key = "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n"
	t.Run("handshakes", func(t *testing.T) {
		m := newVersionEnv(t, "transparent", "h1", "h1", "http")
		m.mux.Handle("/ws", echoing)
		for request, want := range map[string]int{
			shake + key + "\r\n":                           101,
			shake + "\r\n":                                 400,
			shake + key + key + "\r\n":                     400,
			shake + "Sec-WebSocket-Key: c2hvcnQ=\r\n\r\n":  400,
			shake + key + "Content-Length: 5\r\n\r\nhello": 400,
			shake + key + "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n": 400,
			strings.Replace(shake, "GET", "POST", 1) + key + "\r\n":                   400,
		} {
			c, err := m.steer(t.Context(), "tcp", m.address())
			must.OK(t, err)
			fmt.Fprintf(c, request, m.address())
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil || resp.StatusCode != want {
				t.Errorf("%q: %v %v, want %d", request, resp, err, want)
			}
			c.Close()
		}
	})
	frame := func(first byte, mask bool, text string) []byte {
		b := []byte{first, byte(len(text))}
		if mask {
			b[1] |= 0x80
			b = append(b, 0, 0, 0, 0) // of which the payload is as it was
		}
		return append(b, text...)
	}
	bad := map[string][]byte{
		"unmasked":          frame(0x81, false, "hello"),
		"a reserved bit":    frame(0xc1, true, "hello"),
		"a reserved opcode": frame(0x83, true, "hello"),
		"out of order":      frame(0x80, true, "hello"),
		"half of a ping":    frame(0x09, true, "hello"),
		"no frames at all":  []byte("GET /admin HTTP/1.1\r\nHost: x\r\n\r\n"),
	}
	got := make(chan string, 1)
	upstream := func(w http.ResponseWriter, r *http.Request) {
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		fmt.Fprint(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: "+acceptOf(r)+"\r\n\r\n")
		all, _ := io.ReadAll(rw)
		got <- string(all)
	}
	eachWebSocket(t, func(t *testing.T, m *versionEnv) {
		m.handle("/ws", upstream)
		for name, raw := range bad {
			s, _, err := m.upgrade(t, "/ws")
			must.OK(t, err)
			good := frame(0x81, true, "good")
			if _, err := s.Write(slices.Concat(good, raw, good)); err != nil {
				t.Fatal(err)
			}
			over := time.AfterFunc(patience, func() { s.Close() })
			_, _ = io.Copy(io.Discard, s.in)
			arrived := <-got
			if !over.Stop() {
				t.Fatalf("%s: the WebSocket goes on, arrived %q", name, arrived)
			}
			if strings.Contains(arrived, "hello") || strings.Contains(arrived, "admin") {
				t.Errorf("%s: arrived %q", name, arrived)
			}
		}
		_, completions := m.settled(t)
		for _, c := range completions {
			if !strings.Contains(c.Detail, "frames") {
				t.Errorf("completed with %q", c.Detail)
			}
		}
	})
	t.Run("inbound", func(t *testing.T) {
		for name, raw := range bad {
			n, token := newInbound(t)
			s, status := n.socketTo(t, "Authorization: Bearer "+token+"\r\nOrigin: http://"+n.host("demo")+"\r\n")
			if status != 101 {
				t.Fatal(status)
			}
			if _, err := s.Write(raw); err != nil {
				t.Fatal(err)
			}
			if b, _ := io.ReadAll(s.in); strings.Contains(string(b), "hello") {
				t.Errorf("%s: came back: %q", name, b)
			}
			if e := n.await(2)[1]; !strings.Contains(e.Detail, "frames") {
				t.Errorf("%s: completed with %q", name, e.Detail)
			}
		}
		n, token := newInbound(t)
		n.speaks(t, "HTTP/1.1 101 x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: wrong\r\n\r\n")
		if _, status := n.socketTo(t, "Authorization: Bearer "+token+"\r\nOrigin: http://"+n.host("demo")+"\r\n"); status != 502 {
			t.Errorf("a wrong answer to the handshake: %d", status)
		}
	})
}

func acceptOf(r *http.Request) string {
	sum := sha1.Sum([]byte(r.Header.Get("Sec-Websocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	return base64.StdEncoding.EncodeToString(sum[:])
}

func httpHeaders(id uint32, block []byte, end bool) http2.HeadersFrameParam {
	return http2.HeadersFrameParam{StreamID: id, BlockFragment: block, EndHeaders: true, EndStream: end}
}
