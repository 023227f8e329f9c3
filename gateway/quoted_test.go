package gateway_test

import (
	"compress/gzip"
	"context"
	"crypto/sha1"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sallyport/audit"
	"sallyport/gateway"
	"sallyport/gateway/credential"
	"sallyport/gateway/credential/sent"
	"sallyport/internal/test/must"
	"sallyport/policy"
)

// keyed lets everything pass, and sends the credential along under /keyed.
func (w *netEnv) keyed(in policy.Input) policy.Decision {
	d := w.allow(in)
	if in.Request != nil && strings.HasPrefix(in.Request.Path, "/keyed") {
		d = inject("key")(in)
		d.Upstream = w.reach
	}
	return d
}

// quotes are ways in which an upstream can say what it was sent before.
var quotes = map[string]http.HandlerFunc{
	"header": func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X-Was", token) },
	"location": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "/?"+token)
		w.WriteHeader(302)
	},
	"trailer": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", "X-Was")
		_, _ = io.WriteString(w, "see below")
		w.Header().Set("X-Was", token)
	},
	"hint": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Was", token)
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Del("X-Was")
	},
	"body": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintf(w, "you sent %s.", token) },
	"base64": func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, base64.StdEncoding.EncodeToString([]byte("a"+token+"b")))
	},
	"gzip": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		_, _ = io.WriteString(z, token)
		_ = z.Close()
	},
	"events": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for _, piece := range []string{"data: " + token[:7], token[7:] + "\n\n"} {
			_, _ = io.WriteString(w, piece)
			_ = http.NewResponseController(w).Flush()
		}
	},
	"message": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/grpc")
		_, _ = w.Write(append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(token))), token...))
	},
	"socket": func(w http.ResponseWriter, r *http.Request) {
		serveSocket(w, r, func(c io.Writer) { writeText(c, token) })
	},
}

// writeText sends a message of a server.
func writeText(c io.Writer, text string) { _, _ = fmt.Fprintf(c, "\x81%c%s", len(text), text) }

func serveSocket(w http.ResponseWriter, r *http.Request, talk func(io.Writer)) {
	if len(r.Header["Sec-Websocket-Extensions"]) > 0 {
		w.WriteHeader(400)
		return
	}
	sum := sha1.Sum([]byte(r.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	w.Header().Set("Connection", "Upgrade")
	w.Header().Set("Upgrade", "websocket")
	w.Header().Set("Sec-WebSocket-Accept", base64.StdEncoding.EncodeToString(sum[:]))
	w.WriteHeader(101)
	c, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer c.Close()
	talk(struct { // a byte may have been read ahead by now
		io.Reader
		io.Writer
	}{rw, c})
	_, _ = io.WriteString(c, "\x88\x00")
}

// seen is all that a client sees of an answer.
func (m *versionEnv) seen(t *testing.T, o *origin, carrier string) string {
	t.Helper()
	if carrier == "socket" {
		at := *m
		at.origin = o
		s, _, err := at.upgrade(t, "/socket", field{"sec-websocket-extensions", "permessage-deflate"})
		must.OK(t, err)
		_, payload, err := s.receive()
		return fmt.Sprint(string(payload), err)
	}
	r, err := http.NewRequestWithContext(t.Context(), "GET", o.url(m.scheme, "/"+carrier), nil)
	must.OK(t, err)
	client := *m.client
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	resp, err := client.Do(r)
	must.OK(t, err)
	body := text(t, resp)
	return fmt.Sprint(resp.StatusCode, resp.Header, resp.Trailer, body)
}

// An upstream that keeps the secret of one request, and says it in the answer to
// another that had none, at its own place or elsewhere, does not give it to the
// sandbox.
func TestQuotedSecret(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"transparent", "explicit"} {
		for _, version := range []string{"h1", "h2"} {
			t.Run(way+"/"+version, func(t *testing.T) {
				m := newVersionEnv(t, way, version, "h1", "https", func(o *gateway.Options) { o.Found = 1000 })
				m.credential("key", token)
				m.policy(m.keyed)
				other := m.netEnv.origin("files.example.test", "h1", true)
				for name, quote := range quotes {
					m.handle("/"+name, quote)
					other.handle("/"+name, quote)
				}
				m.handle("/keyed", func(w http.ResponseWriter, r *http.Request) {
					fmt.Fprint(w, r.Header.Get("Authorization") == "Bearer "+token)
				})
				// The control: who had nothing injected is told.
				if got := m.seen(t, other, "body"); !strings.Contains(got, token) {
					t.Fatalf("before the injection the answer is %s", got)
				}
				if got := text(t, m.do(t, m.request(t, "GET", "/keyed", nil))); got != "true" {
					t.Fatalf("the upstream was not sent the credential: %s", got)
				}
				for carrier := range quotes {
					for _, o := range []*origin{m.origin, other} {
						got := m.seen(t, o, carrier)
						if strings.Contains(got, token) || strings.Contains(got, token[8:]) || strings.Contains(got, "c2stbGl2ZS") || strings.HasPrefix(got, "5") {
							t.Errorf("%s of %s: %s", carrier, o.name, got)
						}
					}
				}
				found := 0
				_, completions := m.settled(t)
				for _, c := range completions {
					if s := c.Unmapped.Sallyport; len(s.Found) > 0 {
						found++
						if diff := cmp.Diff(s.Found, []audit.CredentialUse{{Name: "key"}}); diff != "" || len(s.Credentials) > 0 || !strings.Contains(c.Message, "other requests: key") {
							t.Errorf("found %s in %+v", diff, c)
						}
					}
				}
				if want := 2 * len(quotes); found != want {
					t.Errorf("%d answers are recorded to have held it, want %d", found, want)
				}
				// The secrets of one sandbox's requests are not looked for in another's
				// answers.
				dial := m.connect
				if m.explicit {
					dial = m.steer
				}
				stranger := *m
				stranger.dial, stranger.client = dial, m.agent(version, true, dial, false)
				if got := stranger.seen(t, other, "body"); !strings.Contains(got, token) {
					t.Errorf("another sandbox sees %s", got)
				}
			})
		}
	}
}

// A connection that is open when a secret leaves for the first time is searched for it from
// then on.
func TestQuotedInWhatIsOpen(t *testing.T) {
	t.Parallel()
	packed := func(w io.Writer) (io.Writer, func()) {
		z := gzip.NewWriter(w)
		return z, func() { _ = z.Flush() }
	}
	for _, test := range []struct {
		name   string
		header http.Header
		pack   func(io.Writer) (io.Writer, func())
		frame  func(string) string
	}{
		{name: "body", header: http.Header{}},
		{name: "events", header: http.Header{"Content-Type": {"text/event-stream"}}},
		{name: "packed events", header: http.Header{"Content-Type": {"text/event-stream"}, "Content-Encoding": {"gzip"}}, pack: packed},
		{name: "messages", header: http.Header{"Content-Type": {"application/grpc+proto"}, "Grpc-Encoding": {"gzip"}}, frame: func(text string) string {
			var b strings.Builder
			z := gzip.NewWriter(&b)
			_, _ = io.WriteString(z, text)
			_ = z.Close()
			return string(binary.BigEndian.AppendUint32([]byte{1}, uint32(b.Len()))) + b.String()
		}},
		{name: "socket"},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := newVersionEnv(t, "transparent", "h1", "h1", "https")
			m.credential("key", token)
			m.policy(m.keyed)
			left := make(chan struct{})
			m.handle("/keyed", func(http.ResponseWriter, *http.Request) {})
			m.handle("/open", func(w http.ResponseWriter, r *http.Request) {
				if test.header == nil {
					serveSocket(w, r, func(c io.Writer) {
						writeText(c, "begun")
						<-left
						writeText(c, token)
					})
					return
				}
				for k, v := range test.header {
					w.Header()[k] = v
				}
				var to io.Writer = w
				flush := func() { _ = http.NewResponseController(w).Flush() }
				if test.pack != nil {
					packed, pack := test.pack(w)
					before := flush
					to, flush = packed, func() { pack(); before() }
				}
				say := func(text string) {
					if test.frame != nil {
						text = test.frame(text)
					}
					_, _ = io.WriteString(to, text)
					flush()
				}
				say("begun")
				<-left
				say(token + "\n")
			})
			var in io.Reader
			if test.header == nil {
				s, _, err := m.upgrade(t, "/open")
				must.OK(t, err)
				in = s.in
			} else {
				resp := m.do(t, m.request(t, "GET", "/open", nil))
				defer resp.Body.Close()
				in = resp.Body
			}
			first := make([]byte, 7)
			if _, err := io.ReadFull(in, first[:5]); err != nil {
				t.Fatal(err)
			}
			text(t, m.do(t, m.request(t, "GET", "/keyed", nil)))
			close(left)
			rest, _ := io.ReadAll(in)
			if got := string(first) + string(rest); strings.Contains(got, token) || !strings.Contains(got, strings.Repeat("*", len(token))) {
				t.Errorf("got %q", got)
			}
		})
	}
}

// series is a source whose secret is another one each time.
type series struct {
	mu sync.Mutex
	n  int
}

func (s *series) Read(context.Context) (credential.Material, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n++
	return credential.Material{Fields: map[string]credential.Secret{"token": credential.NewSecret(version(s.n))}, Version: fmt.Sprint(s.n)}, nil
}

func version(n int) string { return fmt.Sprintf("sk-live-%08d-abcdef", n) }

// A version that was rotated away is looked for, until there are too many: then
// the record says of what there are.
func TestQuotedVersions(t *testing.T) {
	t.Parallel()
	l := newEnv(t)
	l.policy(inject("openai"))
	l.secrets(map[string]credential.Source{"openai": new(series)})
	l.name("api.example.test")
	quoted := 1
	l.upstream("api.example.test", true, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, version(quoted)) })
	ask := func() string {
		_, body := get(t, l.client(), "https://api.example.test/")
		return body
	}
	client := l.client()
	const most = sent.Max / 2 // versions: each has the token and the header's value
	for n := range most {
		if _, body := get(t, client, "https://api.example.test/"); body != strings.Repeat("*", len(version(1))) {
			t.Fatalf("request %d: %s", n+1, body)
		}
	}
	if got := l.gauge("sallyport_gateway_forgotten_secrets_total"); got != 0 {
		t.Errorf("%v values forgotten", got)
	}
	if got := ask(); got != version(1) {
		t.Errorf("a version beyond the bound: %s", got)
	}
	quoted = 2
	if got := l.gauge("sallyport_gateway_forgotten_secrets_total"); got != 2 {
		t.Errorf("%v values forgotten, want those of one version", got)
	}
	if last := l.await(2 * (most + 1)); !strings.Contains(last[len(last)-1].Message, "no longer searched for old values of openai") {
		t.Errorf("the last completion says %q", last[len(last)-1].Message)
	}
	l.gateway.Forget("sb-1")
	quoted = most
	if got := ask(); got != version(most) {
		t.Errorf("after the sandbox left: %s", got)
	}
}

// An answer that cannot be searched is refused from a destination that ever got a credential
// of the sandbox's, and passed from any other.
func TestQuotedOutOfSight(t *testing.T) {
	t.Parallel()
	m := newVersionEnv(t, "transparent", "h1", "h1", "https")
	m.credential("key", token)
	m.policy(m.keyed)
	other := m.netEnv.origin("files.example.test", "h1", true)
	m.handle("/keyed", func(http.ResponseWriter, *http.Request) {})
	for _, o := range []*origin{m.origin, other} {
		o.handle("/unknown", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "rot13")
			fmt.Fprint(w, "as it is: ", token)
		})
		o.handle("/part", func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Range") != "" {
				w.WriteHeader(206)
			}
			fmt.Fprint(w, "slice: ", token, token[:8])
		})
	}
	text(t, m.do(t, m.request(t, "GET", "/keyed", nil)))
	for _, test := range []struct {
		o      *origin
		path   string
		status int
		want   string
	}{
		{m.origin, "/unknown", 502, "cannot be searched"},
		{other, "/unknown", 200, "as it is: " + strings.Repeat("*", len(token))},
		{m.origin, "/part", 200, "slice: " + strings.Repeat("*", len(token)) + token[:8]},
		{other, "/part", 206, "slice: " + strings.Repeat("*", len(token)) + token[:8]},
	} {
		r, _ := http.NewRequestWithContext(t.Context(), "GET", test.o.url("https", test.path), nil)
		r.Header.Set("Range", "bytes=3-")
		resp, err := m.client.Do(r)
		must.OK(t, err)
		if body := text(t, resp); resp.StatusCode != test.status || !strings.Contains(body, test.want) {
			t.Errorf("%s of %s: %d %s", test.path, test.o.name, resp.StatusCode, body)
		}
	}
}
