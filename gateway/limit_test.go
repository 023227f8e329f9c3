package gateway_test

import (
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/websocket"

	"sallyport/audit"
	"sallyport/gateway"
	"sallyport/internal/test/must"
	"sallyport/policy"
	"sallyport/policy/engine"
	"sallyport/policy/limit"
)

// under puts a decision under limits of one subject.
func under(decide func(policy.Input) policy.Decision, limits ...policy.Limit) func(policy.Input) policy.Decision {
	return func(in policy.Input) policy.Decision {
		d := decide(in)
		if in.Phase == policy.PhaseRequest || d.Action == policy.Tunnel {
			for i := range limits {
				d.Limits = append(d.Limits, policy.Applied{Limit: &limits[i], Subject: "x", Credentials: int64(len(d.Inject))})
			}
		}
		return d
	}
}

// after is a clock that a test moves.
type after struct{ ns atomic.Int64 }

func (a *after) now() time.Time { return time.Unix(1_800_000_000, 0).Add(time.Duration(a.ns.Load())) }

func timed(a *after) option {
	return func(o *gateway.Options) { o.Budget = limit.NewBook(a.now) }
}

// year is a period that hardly ends while a test runs: periods begin at the same times for all.
const year = policy.Duration(365 * 24 * time.Hour)

// refused checks what a sandbox is told of a limit, and its event.
func refused(t *testing.T, resp *http.Response, body, limit string, status int) {
	t.Helper()
	if resp.StatusCode != status || !strings.Contains(body, "rule: "+limit+"\n") || resp.Header.Get("Sallyport-Decision") == "" {
		t.Fatalf("%d %v %s", resp.StatusCode, resp.Header, body)
	}
	if seconds, _ := strconv.Atoi(resp.Header.Get("Retry-After")); (status == 429) != (seconds > 0 && seconds <= int(time.Duration(year).Seconds())) {
		t.Errorf("Retry-After: %q", resp.Header.Get("Retry-After"))
	}
}

// For every way in and every version of HTTP: what is used up is refused before
// anything leaves, and what flows is broken off in the middle.
func TestLimitsOnEveryWay(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, m *versionEnv) {
		const piece = 32 << 10
		m.policy(under(m.allow,
			policy.Limit{Name: "requests", Every: year, Requests: 4}, policy.Limit{Name: "size", Size: 8 * piece},
			policy.Limit{Name: "bytes", Every: year, Bytes: 20 * piece}))
		var reached, got atomic.Int64
		m.handle("/", func(w http.ResponseWriter, r *http.Request) {
			reached.Add(1)
			n, _ := io.Copy(io.Discard, r.Body)
			got.Add(n)
			_, _ = io.WriteString(w, "ok")
		})
		m.handle("/endless", func(w http.ResponseWriter, r *http.Request) {
			reached.Add(1)
			for {
				if _, err := w.Write(make([]byte, piece)); err != nil {
					return
				}
				_ = http.NewResponseController(w).Flush()
			}
		})
		// Known to be too large: nothing of it leaves.
		r := m.request(t, "POST", "/", strings.NewReader(strings.Repeat("x", 8*piece+1)))
		resp := m.do(t, r)
		refused(t, resp, text(t, resp), "size", 413)
		if reached.Load() != 0 {
			t.Fatal("the upstream was reached")
		}
		m.client.CloseIdleConnections() // one that was answered early may be on its way to its end
		// Not known: it is broken off.
		r = m.request(t, "POST", "/", &endless{left: 1 << 30})
		if resp, err := m.client.Do(r); err == nil {
			refused(t, resp, text(t, resp), "size", 413)
		}
		if n := got.Load(); n > 8*piece {
			t.Errorf("%d bytes have left", n)
		}
		resp = m.do(t, m.request(t, "GET", "/", nil))
		if b := text(t, resp); b != "ok" {
			t.Fatalf("%d %s", resp.StatusCode, b)
		}
		// An answer that comes is broken off too.
		resp = m.do(t, m.request(t, "GET", "/endless", nil))
		n, err := io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if err == nil || resp.StatusCode != 200 || n > 20*piece {
			t.Errorf("%d, %d bytes and then %v", resp.StatusCode, n, err)
		}
		resp = m.do(t, m.request(t, "GET", "/", nil))
		refused(t, resp, text(t, resp), "bytes", 429)

		decisions, completions := m.settled(t)
		var told []string
		for _, d := range decisions {
			s := d.Unmapped.Sallyport
			if d.Action == audit.ActionDenied {
				told = append(told, "deny "+d.Rule.Type+" "+d.Rule.Name)
				continue
			}
			if len(s.Limits) != 3 || s.Limits[0] != (audit.LimitUse{Name: "requests", Subject: "x", Period: time.Duration(year).Milliseconds()}) || s.Limits[1].Period != 0 {
				t.Errorf("limits %+v", s.Limits)
			}
			if c := completions[d.ID()]; c.Action == audit.ActionDenied {
				told = append(told, "broken "+c.Rule.Type+" "+c.Rule.Name)
				if !strings.Contains(c.Detail, "limit "+c.Rule.Name) || c.Disposition != audit.DispositionBlocked || d.Rule.Name != "all" {
					t.Errorf("completion %+v of %+v", c, d.Rule)
				}
			} else {
				told = append(told, "done")
			}
		}
		if got, want := fmt.Sprint(told), "[deny limit size broken limit size done broken limit bytes deny limit bytes]"; got != want {
			t.Errorf("got %s\nwant %s", got, want)
		}
	})
}

func TestLimitOfRequests(t *testing.T) {
	t.Parallel()
	clock := &after{}
	w := newNetEnv(t, timed(clock))
	w.policy(under(w.allow, policy.Limit{Name: "few", Every: year, Requests: 2}))
	o := w.origin("api.example.test", "h1", true)
	o.handle("/", func(w http.ResponseWriter, r *http.Request) {})
	client := w.agent("h1", true, w.steer, false)
	for range 2 {
		if resp, body := get(t, client, o.url("https", "/")); resp.StatusCode != 200 {
			t.Fatalf("%d %s", resp.StatusCode, body)
		}
	}
	resp, body := get(t, client, o.url("https", "/"))
	refused(t, resp, body, "few", 429)
	if !strings.Contains(body, "limit few: 2 requests within 8760h are used up") {
		t.Error(body)
	}
	r, _ := http.NewRequest("GET", o.url("https", "/"), nil)
	r.Header.Set("Accept", "application/json")
	resp, err := client.Do(r)
	must.OK(t, err)
	var told struct {
		Status int
		Retry  int64 `json:"retry_after"`
	}
	if err := json.Unmarshal([]byte(text(t, resp)), &told); err != nil || told.Status != 429 || told.Retry < 1 || told.Retry > int64(time.Duration(year).Seconds()) {
		t.Errorf("%+v %v", told, err)
	}
	// A flood of them is folded like any other.
	began := time.Now()
	for range 60 {
		resp, body = get(t, client, o.url("https", "/"))
	}
	most := foldedOf(time.Since(began)) + 4
	refused(t, resp, body, "few", 429)
	clock.ns.Add(int64(year))
	if resp, body := get(t, client, o.url("https", "/")); resp.StatusCode != 200 {
		t.Errorf("in the next period: %d %s", resp.StatusCode, body)
	}
	time.Sleep(1200 * time.Millisecond) // of the flood's window
	decisions, _ := w.settled(t)
	if len(decisions) > most {
		t.Errorf("%d events of 65 requests, want at most %d", len(decisions), most)
	}
}

// foldedOf is how many events there may be of denials that are alike, and that have come for some
// time: ten and one that counts the others for each second that they fall into.
func foldedOf(d time.Duration) int { return 11 * (int(d/time.Second) + 2) }

func TestLimitOfGRPC(t *testing.T) {
	t.Parallel()
	for limit, want := range map[*policy.Limit]struct{ status, pushback string }{
		{Name: "day", Every: year, Requests: 1}:   {"8", "-1"},
		{Name: "once", Concurrent: 1}:             {"8", "1000"},
		{Name: "large", Size: 4, Concurrent: 100}: {"8", ""},
	} {
		t.Run(limit.Name, func(t *testing.T) {
			w := newNetEnv(t)
			w.policy(under(w.allow, *limit))
			o := w.origin("api.example.test", "h2", true)
			hold, held := make(chan struct{}), make(chan struct{}, 9)
			o.handle("/", func(w http.ResponseWriter, r *http.Request) {
				held <- struct{}{}
				<-hold
			})
			client := w.agent("h2", true, w.steer, false)
			if limit.Name != "large" {
				go func() {
					r, _ := http.NewRequest("POST", o.url("https", "/test.Service/First"), nil)
					if resp, err := client.Do(r); err == nil {
						resp.Body.Close()
					}
				}()
				<-held
			}
			resp, _ := call(t, client, o.url("https", "/test.Service/Call"), nil, "a message")
			close(hold)
			h := resp.Header
			if resp.StatusCode != 200 || h.Get("Grpc-Status") != want.status || h.Get("Grpc-Retry-Pushback-Ms") != want.pushback || !strings.Contains(h.Get("Grpc-Message"), "limit "+limit.Name) {
				t.Errorf("%d %v", resp.StatusCode, h)
			}
			w.settled(t)
		})
	}
}

// A request under way counts until it is over.
func TestLimitOfConcurrency(t *testing.T) {
	t.Parallel()
	w := newNetEnv(t)
	w.policy(under(w.allow, policy.Limit{Name: "two", Concurrent: 2}))
	o := w.origin("api.example.test", "h1", true)
	hold, held := make(chan struct{}), make(chan struct{}, 9)
	o.handle("/", func(w http.ResponseWriter, r *http.Request) { held <- struct{}{}; <-hold })
	client := w.agent("h1", true, w.steer, false)
	done := make(chan struct{}, 2)
	for range 2 {
		go func() {
			resp, err := client.Get(o.url("https", "/"))
			if err == nil {
				resp.Body.Close()
			}
			done <- struct{}{}
		}()
		<-held
	}
	resp, body := get(t, client, o.url("https", "/"))
	refused(t, resp, body, "two", 429)
	if resp.Header.Get("Retry-After") != "1" {
		t.Errorf("Retry-After: %s", resp.Header.Get("Retry-After"))
	}
	close(hold)
	<-done
	<-done
	w.settled(t)
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		if resp, _ := get(t, client, o.url("https", "/")); resp.StatusCode == 200 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("places are not given back")
		}
	}
}

// A WebSocket ends in the middle.
func TestLimitOfWebSockets(t *testing.T) {
	t.Parallel()
	eachWebSocket(t, func(t *testing.T, m *versionEnv) {
		m.policy(under(m.allow, policy.Limit{Name: "bytes", Every: year, Bytes: 64 << 10}))
		m.handle("/ws", websocket.Handler(func(ws *websocket.Conn) { echoing(ws) }).ServeHTTP)
		s, resp, err := m.upgrade(t, "/ws")
		if err != nil {
			t.Fatalf("%v %v", err, resp)
		}
		s.echoes(t, "hello")
		var last []byte
		carried := 0
		for range 100 {
			var kind byte
			var payload []byte
			if err = s.send(wsText, make([]byte, 4<<10)); err == nil {
				kind, payload, err = s.receive()
			}
			if err != nil || kind == wsClose {
				last = payload
				break
			}
			carried += 8 << 10
		}
		if err != nil || carried > 64<<10 || len(last) < 2 || binary.BigEndian.Uint16(last) != 1008 || string(last[2:]) != "limit bytes: 64KiB within 8760h are used up" {
			t.Fatalf("%d bytes were carried, the last frame is %q, %v", carried, last, err)
		}
		if _, err := io.Copy(io.Discard, s.in); err != nil {
			t.Errorf("the end: %v", err)
		}
		_ = s.Close()
		decisions, completions := m.settled(t)
		if c := completions[decisions[0].ID()]; c.Rule.Type != "limit" || c.Rule.Name != "bytes" || !strings.Contains(c.Detail, "64KiB within 8760h") {
			t.Errorf("%+v %+v", c, c.Rule)
		}
		if _, resp, err := m.upgrade(t, "/ws"); err == nil || resp.StatusCode != 429 {
			t.Errorf("another one: %v %v", resp, err)
		}
	})
}

func TestLimitOfTunnels(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"transparent", "explicit"} {
		t.Run(way, func(t *testing.T) {
			w := newNetEnv(t)
			w.policy(under(w.tunnel, policy.Limit{Name: "bytes", Every: year, Bytes: 64 << 10}, policy.Limit{Name: "one", Concurrent: 1}))
			dial := dialler(w.steer)
			if way == "explicit" {
				dial = w.connect
			}
			o := w.bytes("raw.example.test", "")
			c, err := dial(t.Context(), "tcp", o.address())
			must.OK(t, err)
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(patience))
			if _, err := io.WriteString(c, "\x00hello"); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(c, make([]byte, 6)); err != nil {
				t.Fatal(err)
			}
			// One more at the same time: told where there is TLS, else closed.
			second, err := dial(t.Context(), "tcp", o.address())
			must.OK(t, err)
			defer second.Close()
			_ = second.SetDeadline(time.Now().Add(patience))
			secure := tls.Client(second, &tls.Config{RootCAs: w.ca.pool, ServerName: o.name})
			resp, body := send(t, secure, "GET / HTTP/1.1\r\nHost: "+o.address()+"\r\n\r\n")
			refused(t, resp, body, "one", 429)
			third, err := dial(t.Context(), "tcp", o.address())
			must.OK(t, err)
			defer third.Close()
			_ = third.SetDeadline(time.Now().Add(patience))
			_, _ = io.WriteString(third, "\x00hello")
			if n, err := third.Read(make([]byte, 1)); err == nil {
				t.Errorf("%d bytes came of a refused tunnel", n)
			}
			// And the first until its bytes are used up.
			carried := 0
			for range 100 {
				if _, err = c.Write(make([]byte, 4<<10)); err == nil {
					_, err = io.ReadFull(c, make([]byte, 4<<10))
				}
				if err != nil {
					break
				}
				carried += 8 << 10
			}
			if err == nil || carried > 64<<10 {
				t.Errorf("%d bytes were carried, %v", carried, err)
			}
			decisions, completions := w.settled(t)
			if c := completions[decisions[0].ID()]; c == nil || c.Rule.Name != "bytes" || c.Action != audit.ActionDenied || len(decisions) != 3 {
				t.Errorf("%d decisions, %+v", len(decisions), c)
			}
		})
	}
}

// Whom nobody needs to be asked about, since it could not go anyhow.
func TestLimitBeforeApproval(t *testing.T) {
	t.Parallel()
	w := newNetEnv(t)
	limit := policy.Limit{Name: "few", Every: year, Requests: 1}
	approve := false
	w.policy(func(in policy.Input) policy.Decision {
		d := under(w.allow, limit)(in)
		if approve && in.Phase == policy.PhaseRequest {
			d.Action, d.Rule = policy.Approve, "ask"
		}
		return d
	})
	o := w.origin("api.example.test", "h1", true)
	o.handle("/", func(w http.ResponseWriter, r *http.Request) {})
	client := w.agent("h1", true, w.steer, false)
	w.mu.Lock()
	approve = true
	w.mu.Unlock()
	for range 3 { // takes nothing
		if resp, body := get(t, client, o.url("https", "/")); resp.StatusCode != 403 || !strings.Contains(body, "approval") {
			t.Fatalf("%d %s", resp.StatusCode, body)
		}
	}
	w.mu.Lock()
	approve = false
	w.mu.Unlock()
	if resp, body := get(t, client, o.url("https", "/")); resp.StatusCode != 200 {
		t.Fatalf("%d %s", resp.StatusCode, body)
	}
	w.mu.Lock()
	approve = true
	w.mu.Unlock()
	resp, body := get(t, client, o.url("https", "/"))
	refused(t, resp, body, "few", 429)
}

func TestLimitOfHours(t *testing.T) {
	t.Parallel()
	clock := &after{} // 2027-01-15, a Friday, 08:00 UTC
	w := newNetEnv(t, timed(clock))
	p, err := engine.Compile(t.Context(), policy.Document{
		Egress: []policy.EgressRule{{Destination: "*.example.test", Ports: []uint16{443}}},
		Limits: []policy.Limit{{Name: "operatorStore", Hours: &policy.Hours{Days: []string{"fri"}, From: "08:30", To: "12:00"}}},
	}, engine.Options{Timeout: patience})
	must.OK(t, err)
	w.policy(func(in policy.Input) policy.Decision {
		in.Destination.Port = 443
		d := p.Decide(t.Context(), in)
		d.Upstream = w.reach
		return d
	})
	o := w.origin("api.example.test", "h1", true)
	o.handle("/", func(w http.ResponseWriter, r *http.Request) {})
	client := w.agent("h1", true, w.steer, false)
	resp, body := get(t, client, o.url("https", "/"))
	refused(t, resp, body, "operatorStore", 429)
	if resp.Header.Get("Retry-After") != "1800" {
		t.Errorf("Retry-After: %s", resp.Header.Get("Retry-After"))
	}
	clock.ns.Add(int64(30 * time.Minute))
	if resp, body := get(t, client, o.url("https", "/")); resp.StatusCode != 200 {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
}

// In observe mode limits count, and deny and break off nothing.
func TestLimitInObserveMode(t *testing.T) {
	t.Parallel()
	w := newNetEnv(t)
	w.policy(func(in policy.Input) policy.Decision {
		d := under(w.allow, policy.Limit{Name: "few", Every: year, Requests: 1, Bytes: 1000}, policy.Limit{Name: "size", Size: 10})(in)
		d.Lenient = true
		return d
	})
	o := w.origin("api.example.test", "h1", true)
	o.handle("/", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, strings.Repeat("x", 2000))
	})
	client := w.agent("h1", true, w.steer, false)
	for range 2 {
		r, _ := http.NewRequest("POST", o.url("https", "/"), &endless{left: 100})
		resp, err := client.Do(r)
		must.OK(t, err)
		if body := text(t, resp); resp.StatusCode != 200 || len(body) != 2000 {
			t.Fatalf("%d, %d bytes", resp.StatusCode, len(body))
		}
	}
	decisions, completions := w.settled(t)
	first, second := decisions[0], decisions[1]
	if first.Unmapped.Sallyport.Observed != nil || completions[first.ID()].Action == audit.ActionDenied {
		t.Errorf("%+v", first.Unmapped.Sallyport)
	}
	if b := second.Unmapped.Sallyport.Observed; second.Action != audit.ActionAllowed || b == nil || b.Decision != "deny" || b.Rule != "few" || b.RuleType != "limit" {
		t.Errorf("%+v", b)
	}
}
