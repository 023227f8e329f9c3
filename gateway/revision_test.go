package gateway_test

import (
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/gateway"
	"sallyport/internal/test/must"
	"sallyport/policy"
)

// Each record of a decision says by which policy it was made, also of what is
// denied before any policy is asked.
func TestRevisionOfEveryDecision(t *testing.T) {
	t.Parallel()
	w := newNetEnv(t, func(o *gateway.Options) {
		o.Revision = func() string { return "r1" }
		o.HandshakeTimeout = 3 * time.Second
	})
	w.policy(func(in policy.Input) policy.Decision {
		d := w.allow(in)
		switch {
		case in.Destination.Host == "raw.example.test":
			d = w.tunnel(in)
			d.Revision = "r1"
		case in.Destination.Host == "closed.example.test", in.Request != nil && in.Request.Path == "/closed":
			d = policy.Decision{Action: policy.Deny, Rule: "closed", RuleType: "egress", Reason: "closed", Revision: "r1"}
		}
		return d
	})
	o := w.origin("api.example.test", "h1", true)
	o.handle("/", func(http.ResponseWriter, *http.Request) {})
	raw := w.bytes("raw.example.test", "hello")
	client := w.agent("h1", true, w.steer, false)
	ask := func(method, url string, header ...string) {
		r, _ := http.NewRequestWithContext(t.Context(), method, url, nil)
		for i := 0; i+1 < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		if resp, err := client.Do(r); err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
	}
	w.name("closed.example.test")
	ask("GET", o.url("https", "/"))
	ask("GET", o.url("https", "/closed"))                  // request
	ask("GET", o.url("https", "/"), "X-Original-Url", "/") // its form
	ask("GET", "https://closed.example.test/")             // connect
	ask("GET", "https://unlisted.example.test/")           // the refusal address
	say := func(to, what string) {
		c := w.raw(to)
		_, _ = io.WriteString(c, what)
		_, _ = io.Copy(io.Discard, c)
		c.Close()
	}
	say(w.name("api.example.test").String()+":80", "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n") // a head that is none
	say(w.name("api.example.test").String()+":80", "\x16\x03\x01\x00\x05hello")                    // TLS that is none
	say("203.0.113.7:25", "EHLO x\r\n")                                                            // neither
	c, err := w.steer(t.Context(), "tcp", raw.address())
	must.OK(t, err)
	pong(t, c, "hello", "ping")
	c.Close()
	elsewhere := &http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(&url.URL{Scheme: "http", User: url.UserPassword("ci", "wrong"), Host: w.proxy.Addr().String()})}}
	if resp, err := elsewhere.Get("http://api.example.test/"); err == nil {
		resp.Body.Close()
	}
	elsewhere.CloseIdleConnections()
	client.CloseIdleConnections()
	var decisions []*audit.Event
	for deadline := time.Now().Add(patience); len(decisions) < 10 && time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		decisions, _ = w.settled(t)
	}
	rules := map[string]bool{}
	for _, d := range decisions {
		name := ""
		if d.Rule != nil {
			name = d.Rule.Name
		}
		rules[name] = true
		if d.Policy == nil || d.Policy.Version != "r1" {
			t.Errorf("a decision by %q without its policy: %+v", name, d)
		}
	}
	for _, want := range []string{"all", "closed", "override-header", "stale-name", "request-form", "tls", "raw", "proxy-authentication"} {
		if !rules[want] {
			t.Errorf("no decision by %q among %v", want, strings.Join(keys(rules), " "))
		}
	}
}

func keys(m map[string]bool) (list []string) {
	for k := range m {
		list = append(list, k)
	}
	return list
}
