package bypass

import (
	"bytes"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/http2"

	"sallyport/audit"
	"sallyport/internal/test/must"
)

// patience is how long half a message is waited for at most, with room for a
// busy machine.
const patience = 40 * time.Second

// slows begin something and take their time. The connection is ended for them.
var slows = []struct {
	name string
	sent visit
	want string // what they are told
	log  string
}{
	{"nothing at all", visit{plain: true}, "", "deny opening"},
	{"nothing inside of TLS", visit{speak: HTTP1}, "", "deny opening"},
	{"nothing inside of HTTP/2", visit{speak: HTTP2}, "", "deny opening"},
	{"half a ClientHello", visit{plain: true, steps: sends(0, hello(api)[:100])}, "", "deny opening"},
	{"a ClientHello, and no more of the handshake", visit{plain: true, steps: sends(0, hello(api))}, "", "deny tls"},
	{"a ClientHello, a byte a second", visit{plain: true, steps: drops(hello(api)[:40])}, "", "deny opening"},
	{"half a head", visit{speak: HTTP1, steps: sends(0, []byte("GET /v1/x HTTP/1.1\r\nHost: api.example.test\r\n"))}, "408", "deny request-form"},
	{"a head, a byte a second", visit{speak: HTTP1, steps: drops([]byte("GET /v1/x HTTP/1.1\r\nHost: api.example.test\r\n"))}, "408", "deny request-form"},
	{"half a method without TLS", visit{plain: true, steps: sends(0, []byte("GE"))}, "", "deny opening"},
	{"half a head without TLS", visit{to: other + ":80", plain: true, speak: HTTP1, steps: sends(0, []byte("GET /v1/x HTTP/1.1\r\n"))}, "408", "deny request-form"},
	{"half the preface of HTTP/2", visit{speak: HTTP2, steps: sends(0, []byte(http2.ClientPreface[:10]))}, "", "deny opening"},
}

func sends(pause time.Duration, all ...[]byte) []Step { return []Step{{Send: all, Pause: pause}} }

func drops(b []byte) []Step { return sends(time.Second, bytes.SplitAfter(b, nil)...) }

// dawdle has them all at once.
func (r *rig) dawdle(t *testing.T) []Result {
	var all sync.WaitGroup
	results := make([]Result, len(slows))
	for i, s := range slows {
		j := s.sent.job("closed")
		j.Limit = 2 * patience
		all.Go(func() { results[i] = r.slow.do(t, j) })
	}
	all.Wait()
	return results
}

// testSlow looks at what has become of them, while all other cases had their
// answers.
func testSlow(t *testing.T, r *rig, results []Result) {
	for i, s := range slows {
		t.Run(s.name, func(t *testing.T) {
			res := results[i]
			if !res.Closed && res.Stage != "write" || res.Took > patience {
				t.Errorf("after %v: stage %q, error %q, closed %t", res.Took, res.Stage, res.Error, res.Closed)
			}
			if s.want == "" {
				return
			}
			if got, text := outcome(HTTP1, res, false); got != s.want {
				t.Errorf("got %q, want %q\n%s", got, s.want, text)
			}
		})
	}
	t.Run("log", func(t *testing.T) {
		var want []string
		for _, s := range slows {
			if s.log != "" {
				want = append(want, s.log)
			}
		}
		var events []*audit.Event
		must.Soon(t, "an event of each", func() bool {
			events = append(events, r.slow.events(t)...)
			return len(events) >= len(want)
		})
		got := strings.Split(said(events), ", ")
		slices.Sort(want)
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
	t.Run("legal", func(t *testing.T) {
		r.slow.try(t, attempt{sent: legal, want: "200", log: "allow api", saw: []string{legalSaw}})
	})
}

// testDrip has an upstream that never finishes its head. It costs those who
// wait for it, and nobody else; when they go away, it is left.
func testDrip(t *testing.T, r *rig) {
	const number = 20
	now := func(n *int) int {
		r.upstream.mu.Lock()
		defer r.upstream.mu.Unlock()
		return *n
	}
	begun, ended := &r.upstream.begun, &r.upstream.ended
	var all sync.WaitGroup
	for range number {
		j := ask(get(api, "/v1/drip")).job("200")
		j.Limit = 10 * time.Second
		all.Go(func() {
			if res := r.b.do(t, j); len(res.Data) > 0 {
				t.Errorf("there was an answer: %q", res.Data)
			}
		})
	}
	must.Soon(t, "all of them at the upstream", func() bool { return now(begun) == number })
	for name, s := range map[string]*sandbox{"the same": r.b, "another": r.a} {
		if got, text := outcome(HTTP1, s.do(t, legal.job("200")), false); got != "200" || now(ended) > 0 {
			t.Errorf("%s sandbox got %q when %d of them had gone\n%s", name, got, now(ended), text)
		}
	}
	all.Wait()
	must.Soon(t, "all of them to leave the upstream", func() bool { return now(ended) == number })
}

// testReset opens streams and resets them at once, as many as it can.
func testReset(t *testing.T, r *rig) {
	const number = 2000
	c := newClient()
	for range number {
		id := c.open(true, fill(nil))
		_ = c.WriteRSTStream(id, http2.ErrCodeCancel)
	}
	j := c.visit().job("goaway")
	j.Limit = 2 * time.Second
	r.upstream.take()
	r.b.do(t, j)
	seen := len(r.upstream.take())
	if seen > number/4 {
		t.Errorf("%d of %d requests reached the upstream", seen, number)
	}
	t.Logf("%d of %d requests reached the upstream", seen, number)
	r.b.do(t, legal.job("200"))
	if got, text := outcome(HTTP1, r.b.do(t, legal.job("200")), false); got != "200" {
		t.Errorf("after it a legal request got %q\n%s", got, text)
	}
}
