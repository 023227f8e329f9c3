package gateway_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/gateway"
	"sallyport/gateway/credential"
	"sallyport/gateway/upstream"
	"sallyport/internal/recorded"
	"sallyport/internal/test/must"
	"sallyport/policy"
	"sallyport/policy/engine"
)

// watched has the sandbox of the env in observe mode until a time, by the clock
// that it returns a function to set. Another looks out for the end.
func (l *env) watched(t *testing.T, doc policy.Document) (set func(time.Time), until time.Time, watch func()) {
	t.Helper()
	until = time.Now().Add(time.Hour)
	doc.Observe = []policy.Observation{{Sandboxes: policy.Selector{Names: []string{"demo"}}, Until: until}}
	var mu sync.Mutex
	now := time.Now()
	p, err := engine.Compile(t.Context(), doc, engine.Options{Timeout: patience, Clock: func() time.Time {
		mu.Lock()
		defer mu.Unlock()
		return now
	}})
	must.OK(t, err)
	engine := engine.NewEngine(p)
	engine.OnSwap(l.gateway.Redecide)
	l.policy(func(in policy.Input) policy.Decision { return engine.Decide(context.Background(), in) })
	set = func(at time.Time) {
		mu.Lock()
		defer mu.Unlock()
		now = at
	}
	return set, until, func() {
		ctx, cancel := context.WithCancel(t.Context())
		var watching sync.WaitGroup
		watching.Go(func() { engine.WatchExpiry(ctx) })
		t.Cleanup(func() { cancel(); watching.Wait() })
	}
}

// A sandbox in observe mode is carried where it would be denied; the log has both.
// When it is over, which may be between two requests of one connection, the next
// is denied.
func TestObserveModeCarriesAndEnds(t *testing.T) {
	t.Parallel()
	l := newEnv(t)
	set, until, _ := l.watched(t, policy.Document{Egress: []policy.EgressRule{
		{Name: "no-writes", Destination: "api.example.test", Methods: []string{"POST"}, Action: policy.Deny},
	}})
	l.name("api.example.test")
	l.upstream("api.example.test", true, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Method) })
	conn, err := l.secure(l.name("api.example.test").String()+":443", "api.example.test")
	must.OK(t, err)
	r := bufio.NewReader(conn)
	ask := func(method string) (int, string) {
		t.Helper()
		fmt.Fprintf(conn, "%s /x HTTP/1.1\r\nHost: api.example.test\r\nContent-Length: 0\r\n\r\n", method)
		resp, err := http.ReadResponse(r, nil)
		must.OK(t, err)
		return resp.StatusCode, text(t, resp)
	}
	if status, body := ask("POST"); status != 200 || body != "POST" {
		t.Errorf("denied by a rule: got %d %s", status, body)
	}
	if status, body := ask("GET"); status != 200 || body != "GET" {
		t.Errorf("allowed by none: got %d %s", status, body)
	}
	set(until)
	if status, body := ask("POST"); status != 403 || !strings.Contains(body, "no-writes") {
		t.Errorf("afterwards: got %d %s", status, body)
	}
	if _, body := ask("GET"); !strings.Contains(body, "no rule allows") {
		t.Errorf("afterwards: got %s", body)
	}
	events := l.await(6) // two pairs, two denials
	d := events[0]
	o := d.Unmapped.Sallyport.Observed
	if d.Action != audit.ActionAllowed || d.Unmapped.Sallyport.Decision != "allow" || d.SeverityID != audit.SeverityLow || d.Rule.Type != "observe" ||
		o == nil || o.Decision != "deny" || o.Rule != "no-writes" || o.RuleType != "egress" || !strings.Contains(o.Reason, "denied by rule no-writes") {
		t.Errorf("got %+v, %+v", d, o)
	}
	for _, e := range events {
		if x := e.Unmapped.Sallyport; x.Decision == "deny" && x.Observed != nil {
			t.Errorf("a denial that says it was lifted: %+v", x)
		}
	}
	if rec := recorded.Of(d); !rec.Observed || rec.Action != policy.Allow || rec.Unfit != "" {
		t.Errorf("as it is replayed: %+v", rec)
	}
}

// Bytes of no protocol that is read pass too, and only meanwhile.
func TestObserveModeTunnels(t *testing.T) {
	t.Parallel()
	l := newEnv(t)
	set, until, _ := l.watched(t, policy.Document{})
	l.hosts["db.example.test"] = echo(t, "")
	to := l.name("db.example.test").String() + ":5432"
	say := func() string {
		c := l.raw(to)
		defer c.Close()
		_, _ = c.Write([]byte("\x00\x01\x02hello"))
		answer := make([]byte, 8)
		n, _ := io.ReadFull(c, answer)
		return string(answer[:n])
	}
	if got := say(); got != "\x00\x01\x02hello" {
		t.Errorf("got %q", got)
	}
	l.await(2)
	set(until)
	if got := say(); got != "" {
		t.Errorf("afterwards: got %q", got)
	}
	e := l.await(3)
	if x := e[0].Unmapped.Sallyport; x.Decision != "tunnel" || x.Observed == nil || x.Protocol != "other" {
		t.Errorf("got %+v", x)
	}
	if x := e[2].Unmapped.Sallyport; x.Decision != "deny" {
		t.Errorf("afterwards: got %+v", x)
	}
}

// Where egressAuth rules govern, what none of them matches goes without a
// credential: neither ours nor the sandbox's own.
func TestObserveModeInjectsNothing(t *testing.T) {
	t.Parallel()
	l := newEnv(t)
	l.watched(t, policy.Document{
		Credentials: []policy.Credential{{Name: "openai"}},
		EgressAuth:  []policy.EgressAuthRule{{Name: "api", Destination: "api.example.test", AuthRef: "openai", Paths: []string{"/v1/**"}}},
	})
	l.secrets(map[string]credential.Source{"openai": secret(token)})
	for _, name := range []string{"api.example.test", "other.example.test"} {
		l.name(name)
		l.upstream(name, true, func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(w, "%q %q %s", r.Header.Values("Authorization"), r.Header.Values("Cookie"), r.URL.RawQuery)
		})
	}
	c := l.client()
	ask := func(url string) string {
		t.Helper()
		r, _ := http.NewRequest("GET", url, nil)
		r.Header.Set("Authorization", "Bearer mine")
		r.Header.Set("Cookie", "session=mine")
		resp, err := c.Do(r)
		must.OK(t, err)
		return text(t, resp)
	}
	// The upstream's echo of the secret is overwritten on its way back.
	if got := ask("https://api.example.test/v1/x?q=1"); !strings.Contains(got, "Bearer ") || strings.Contains(got, "mine") {
		t.Errorf("where a rule binds it: got %s", got)
	}
	if got := ask("https://api.example.test/v2/x?q=1&api_key=mine"); got != `[] [] q=1` {
		t.Errorf("where none matches: got %s", got)
	}
	if got := ask("https://other.example.test/?q=1"); got != `["Bearer mine"] ["session=mine"] q=1` {
		t.Errorf("where nothing is governed: got %s", got)
	}
	if leases := strings.Count(strings.Join(l.steps(), "\n"), "lease "); leases != 1 {
		t.Errorf("%d leases: %v", leases, l.steps())
	}
}

// The floor holds: a metadata service and this host are not reached, nor is a
// request carried that can be read in two ways.
func TestObserveModeKeepsTheFloor(t *testing.T) {
	t.Parallel()
	pool := upstream.New(upstream.Options{})
	defer pool.Close()
	l := newEnv(t, func(o *gateway.Options) { o.Upstreams = pool })
	l.watched(t, policy.Document{})
	c := l.client()
	for _, url := range []string{"http://169.254.169.254/latest/meta-data/", "https://169.254.169.254/", "http://127.0.0.1:9/", "http://10.0.0.1/"} {
		resp, body := get(t, c, url)
		if resp.StatusCode != 403 || !strings.Contains(body, "address") {
			t.Errorf("%s: got %d %s", url, resp.StatusCode, body)
		}
	}
	for _, e := range l.await(8) { // an answer may be there before its completion
		x := e.Unmapped.Sallyport
		if x.Kind == audit.KindDecision && x.Observed == nil || x.Kind == audit.KindCompletion && (e.Action != audit.ActionDenied || e.Disposition != audit.DispositionBlocked) {
			t.Errorf("got %+v, %+v", e, x)
		}
	}
	if n := len(l.completions()); n != 4 {
		t.Errorf("%d completions", n)
	}
	l.name("api.example.test")
	conn := l.raw(l.name("api.example.test").String() + ":80")
	if resp, body := send(t, conn, "GET /a/../b HTTP/1.1\r\nHost: api.example.test\r\n\r\n"); resp.StatusCode != 400 {
		t.Errorf("got %d %s", resp.StatusCode, body)
	}
}

// A tunnel that observe mode let through ends when it does.
func TestObserveModeEndsWhatGoesOn(t *testing.T) {
	t.Parallel()
	l := newEnv(t)
	set, until, watch := l.watched(t, policy.Document{})
	watch()
	l.hosts["db.example.test"] = echo(t, "")
	c := l.raw(l.name("db.example.test").String() + ":5432")
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	answer := make([]byte, 8)
	_, _ = c.Write([]byte("\x00\x01\x02hello"))
	if _, err := io.ReadFull(c, answer); err != nil {
		t.Fatal(err)
	}
	set(until)
	began := time.Now()
	n, err := c.Read(answer)
	if took := time.Since(began); n != 0 || err == nil || took > soon {
		t.Errorf("it ended after %v with %d bytes, %v", took, n, err)
	}
	e := l.await(2)[1]
	if e.Unmapped.Sallyport.Kind != audit.KindCompletion || e.Action != audit.ActionDenied {
		t.Errorf("got %+v", e)
	}
}
