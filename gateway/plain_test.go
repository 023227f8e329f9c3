package gateway_test

import (
	"bufio"
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

// A client that offers to go on in HTTP/2 is answered in HTTP/1.1, as RFC 9110,
// section 7.8, allows, and its upstream does not hear of the offer: whoever took
// it up would speak past every decision from there on.
func TestOfferOfHTTP2IsNotTakenUp(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"transparent", "explicit"} {
		for _, named := range []string{"Upgrade, HTTP2-Settings", "Upgrade", "keep-alive"} {
			t.Run(way+" "+named, func(t *testing.T) {
				m := newVersionEnv(t, way, "h1", "h1", "http")
				m.handle("/", func(w http.ResponseWriter, r *http.Request) {
					for _, name := range []string{"Upgrade", "Http2-Settings", "Connection"} {
						if v := r.Header.Get(name); v != "" {
							t.Errorf("%s: %s went out", name, v)
						}
					}
					w.Header().Set("Upgrade", "h2c") // servers advertise it too
					io.WriteString(w, "plain")
				})
				host := fmt.Sprintf("%s:%d", m.origin.name, m.port)
				c, err := m.dial(t.Context(), "tcp", host)
				must.OK(t, err)
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(patience))
				offer := "Connection: " + named + "\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
				fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: %s\r\n%s\r\n", host, offer)
				in := bufio.NewReader(c)
				resp, err := http.ReadResponse(in, nil)
				must.OK(t, err)
				if body := text(t, resp); resp.StatusCode != 200 || resp.Proto != "HTTP/1.1" || body != "plain" || resp.Header.Get("Upgrade") != "" {
					t.Errorf("%s %d %v %s", resp.Proto, resp.StatusCode, resp.Header, body)
				}
				// A client that goes on as if it had been taken up is refused.
				io.WriteString(c, http2.ClientPreface)
				resp, err = http.ReadResponse(in, nil)
				must.OK(t, err)
				if body := text(t, resp); resp.StatusCode != 505 || !strings.Contains(body, "HTTP/2") {
					t.Errorf("%d %s", resp.StatusCode, body)
				}
				if decisions, _ := m.settled(t); len(decisions) != 2 {
					t.Errorf("%d decisions", len(decisions))
				}
			})
		}
	}
}

func TestPlainHTTP2(t *testing.T) {
	t.Parallel()
	w := newNetEnv(t)
	o := w.origin("api.example.test", "h2", false)
	o.handle("/", func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "carried") })
	old := w.origin("old.example.test", "h1", false)
	old.handle("/", func(http.ResponseWriter, *http.Request) {})
	w.policy(func(in policy.Input) policy.Decision {
		if in.Protocol != policy.ProtocolHTTP {
			t.Errorf("policy saw the protocol %s", in.Protocol)
		}
		if in.Request != nil && (in.Request.Path == "/denied" || in.Request.Scheme != "http") {
			return policy.Decision{Reason: "not this path"}
		}
		return w.allow(in)
	})
	for _, dial := range []dialler{w.steer, w.connect} {
		client := w.agent("h2", false, dial, false)
		for path, want := range map[string]int{"/": 200, "/denied": 403} {
			if resp, body := get(t, client, o.url("http", path)); resp.StatusCode != want || resp.ProtoMajor != 2 {
				t.Errorf("%s: %s %d %s", path, resp.Proto, resp.StatusCode, body)
			}
		}
		if resp, body := get(t, client, old.url("http", "/")); resp.StatusCode != 502 || resp.Header.Get("Sallyport-Decision") == "" {
			t.Errorf("an upstream that does not speak it: %d %s", resp.StatusCode, body)
		}
	}
	t.Run("preface in pieces", func(t *testing.T) {
		raw, err := w.steer(t.Context(), "tcp", fmt.Sprintf("%s:%d", o.name, o.port))
		must.OK(t, err)
		defer raw.Close()
		c, err := newFrames(dripping{raw, 1})
		must.OK(t, err)
		a := c.ask(t, field{":method", "GET"}, field{":scheme", "http"}, field{":path", "/"}, field{":authority", fmt.Sprintf("%s:%d", o.name, o.port)})
		if a.status != "200" || a.body != "carried" {
			t.Errorf("%+v", a)
		}
	})
	t.Run("what is nearly the preface", func(t *testing.T) {
		raw, err := w.steer(t.Context(), "tcp", fmt.Sprintf("%s:%d", o.name, o.port))
		must.OK(t, err)
		defer raw.Close()
		_ = raw.SetDeadline(time.Now().Add(patience))
		io.WriteString(raw, "PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n")
		resp, err := http.ReadResponse(bufio.NewReader(raw), nil)
		if err != nil || resp.StatusCode != 505 {
			t.Errorf("%v %v", resp, err)
		}
	})
	t.Run("to the refusal address", func(t *testing.T) {
		resp, body := get(t, w.agent("h2", false, w.steer, false), "http://nowhere.example.test/")
		if resp.StatusCode != 403 || resp.ProtoMajor != 2 || !strings.Contains(body, "look it up again") {
			t.Errorf("%s %d %s", resp.Proto, resp.StatusCode, body)
		}
	})
	w.settled(t)
}
