package gateway_test

import (
	"io"
	"iter"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/http2"

	"sallyport/audit"
	"sallyport/gateway"
	"sallyport/internal/test/must"
)

// of are the events by now that have the rule.
func (l *env) of(rule string) iter.Seq[*audit.Event] {
	return func(yield func(*audit.Event) bool) {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, e := range l.events {
			if e.Rule != nil && e.Rule.Name == rule && !yield(e) {
				return
			}
		}
	}
}

// A sandbox that finishes TLS and then asks for nothing is recorded like one
// that does not get that far.
func TestSilenceInsideTLSIsRecorded(t *testing.T) {
	t.Parallel()
	settings := http2.ClientPreface + "\x00\x00\x00\x04\x00\x00\x00\x00\x00"
	for _, tt := range []struct {
		name, alpn, sent, rule string
		want                   int // the answer's status, 0 for none
	}{
		{"nothing", "http/1.1", "", "opening", 0},
		{"half a head", "http/1.1", "GET / HTTP/1.1\r\nHost: api.example.test\r\n", "request-form", 408},
		{"nothing of HTTP/2 but its beginning", "h2", settings, "opening", 0},
		{"half a head of HTTP/2", "h2", settings + "\x00\x00\x01\x01\x00\x00\x00\x00\x01\x82", "opening", 0},
		{"no HTTP/2", "h2", "GET / HTTP/1.1\r\nHost: api.example.test\r\n\r\n", "opening", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newEnv(t, func(o *gateway.Options) {
				o.HandshakeTimeout, o.IdleTimeout = time.Second, 1200*time.Millisecond
			})
			l.policy(allow)
			c, err := l.secure(l.name("api.example.test").String()+":443", "api.example.test", tt.alpn)
			must.OK(t, err)
			io.WriteString(c, tt.sent)
			if tt.want != 0 {
				resp, _ := send(t, c, "")
				if resp.StatusCode != tt.want {
					t.Errorf("got %d, want %d", resp.StatusCode, tt.want)
				}
			}
			io.Copy(io.Discard, c)
			e := l.await(1)[0]
			if e.Action != audit.ActionDenied || e.Rule.Name != tt.rule || e.Unmapped.Sallyport.Sandbox != "demo" || e.Destination.Hostname != "api.example.test" || e.TLS.SNI != "api.example.test" {
				t.Errorf("%+v", e)
			}
		})
	}
}

// One that goes away is not denied: there is a record of what it has sent, which is of no
// decision. One that has asked is recorded by that.
func TestSilenceOfItsOwnAccordIsNotDenied(t *testing.T) {
	t.Parallel()
	l := newEnv(t, func(o *gateway.Options) { o.IdleTimeout = time.Second })
	l.policy(allow)
	l.upstream("api.example.test", true, func(http.ResponseWriter, *http.Request) {})
	for _, alpn := range []string{"http/1.1", "h2"} {
		c, err := l.secure(l.name("api.example.test").String()+":443", "api.example.test", alpn)
		must.OK(t, err)
		c.Close()
	}
	c, err := l.secure(l.name("api.example.test").String()+":443", "api.example.test")
	must.OK(t, err)
	if resp, body := send(t, c, "GET / HTTP/1.1\r\nHost: api.example.test\r\n\r\n"); resp.StatusCode != 200 {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	io.Copy(io.Discard, c) // until it has idled too long
	time.Sleep(50 * time.Millisecond)
	got := map[string]int{}
	for _, e := range l.await(4) {
		got[string(e.Unmapped.Sallyport.Kind)+" "+e.Unmapped.Sallyport.Decision]++
	}
	if diff := cmp.Diff(got, map[string]int{"connection ": 2, "decision allow": 1, "completion allow": 1}); diff != "" {
		t.Error(diff)
	}
}

// A flood of silent connections is a few events: it has the budget of denials.
func TestFloodOfSilenceIsFolded(t *testing.T) {
	t.Parallel()
	const number = 200
	l := newEnv(t, func(o *gateway.Options) { o.HandshakeTimeout = 2 * time.Second })
	l.policy(allow)
	to := l.name("api.example.test").String() + ":443"
	began := time.Now()
	for range number {
		if _, err := l.secure(to, "api.example.test"); err != nil {
			t.Fatal(err)
		}
	}
	most := foldedOf(time.Since(began))
	var events, connections int
	for deadline := time.Now().Add(patience); connections < number && time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		events, connections = 0, 0
		for e := range l.of("opening") {
			events++
			connections += max(e.Count, 1)
		}
	}
	if connections != number || events > most {
		t.Errorf("%d events of %d connections, want at most %d of %d", events, connections, most, number)
	}
}

// A stranger to the explicit proxy is recorded by its address, and a client by
// its name.
func TestSilenceAtTheExplicitProxyIsRecorded(t *testing.T) {
	t.Parallel()
	l := newEnv(t, func(o *gateway.Options) { o.HandshakeTimeout = time.Second })
	l.policy(allow)
	for i, tt := range []struct{ name, sent, rule string }{
		{"nothing", "", "opening"},
		{"half a head", "CONNECT api.example.test:443 HTTP/1.1\r\n", "request-form"},
		{"no head", "CONNECT api.example.test:443 HTTP/1.2\r\n\r\n", "request-form"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := net.Dial("tcp", l.proxy.Addr().String())
			must.OK(t, err)
			defer c.Close()
			c.SetDeadline(time.Now().Add(patience))
			io.WriteString(c, tt.sent)
			io.Copy(io.Discard, c)
			if e := l.await(i + 1)[i]; e.Rule.Name != tt.rule || e.Source.IP != "127.0.0.1" || e.Unmapped.Sallyport.Sandbox != "" {
				t.Errorf("%+v", e)
			}
		})
	}
}
