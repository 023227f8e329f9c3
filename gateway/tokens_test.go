package gateway_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/websocket"

	"sallyport/audit"
	"sallyport/internal/test/must"
	"sallyport/policy"
	"sallyport/policy/limit"
)

const chatUsage = `data: {"id":"c","object":"chat.completion.chunk","model":"gpt-5-mini","choices":[{"delta":{"content":"Hello, \"usage\": {\"prompt_tokens\": 1}"}}],"usage":null}

data: {"id":"c","object":"chat.completion.chunk","model":"gpt-5-mini","choices":[],"usage":{"prompt_tokens":1000,"completion_tokens":500,"total_tokens":1500,"prompt_tokens_details":{"cached_tokens":400}}}

data: [DONE]

`

// prices are 1.00 and 10.00 a million for gpt-5-mini, and more for others.
func prices() policy.Prices {
	of := func(n limit.Money) *limit.Money { return &n }
	return policy.Prices{
		{Model: "gpt-5-mini*", Input: of(1e9), Output: of(10e9), CachedInput: of(1e8)},
		{Model: "gemini-*", Input: of(2e9), Output: of(4e9)},
		{Model: "dear", Input: of(100e9), Output: of(100e9)},
	}
}

// spending is under for limits of cost.
func spending(decide func(policy.Input) policy.Decision, limits ...policy.Limit) func(policy.Input) policy.Decision {
	decide = under(decide, limits...)
	return func(in policy.Input) policy.Decision {
		d := decide(in)
		for i := range d.Limits {
			d.Limits[i].Prices = prices()
		}
		return d
	}
}

// tokensOf returns what the completions say, in the order of their decisions.
func tokensOf(t *testing.T, w *netEnv) (list []audit.Tokens) {
	t.Helper()
	decisions, completions := w.settled(t)
	for _, d := range decisions {
		if c := completions[d.ID()]; c != nil && c.Unmapped.Sallyport.Tokens != nil {
			list = append(list, *c.Unmapped.Sallyport.Tokens)
		}
	}
	return list
}

// For every way in and every version of HTTP: what a stream reports in its last
// event, which comes byte by byte, is counted, and what is used up is refused.
func TestTokensOnEveryWay(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, m *versionEnv) {
		m.policy(spending(m.allow, policy.Limit{Name: "tokens", Every: year, Tokens: 3000}, policy.Limit{Name: "cost", Every: year, Cost: 1e9}))
		m.handle("/v1/chat/completions", func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			w.Header().Set("Content-Type", "text/event-stream")
			for i := range len(chatUsage) {
				_, _ = io.WriteString(w, chatUsage[i:i+1])
				_ = http.NewResponseController(w).Flush()
			}
		})
		ask := func() (*http.Response, string) {
			resp := m.do(t, m.request(t, "POST", "/v1/chat/completions", strings.NewReader(`{"model":"gpt-5-mini","stream":true}`)))
			return resp, text(t, resp)
		}
		for range 2 {
			if resp, body := ask(); resp.StatusCode != 200 || body != chatUsage {
				t.Fatalf("%d %s", resp.StatusCode, body)
			}
		}
		resp, body := ask()
		refused(t, resp, body, "tokens", 429)
		// 600 at 1.00, 400 at 0.10 and 500 at 10.00 a million.
		want := audit.Tokens{Model: "gpt-5-mini", In: 1000, Out: 500, Cached: 400, Cost: "0.00564"}
		if got := tokensOf(t, m.netEnv); fmt.Sprint(got) != fmt.Sprint([]audit.Tokens{want, want}) {
			t.Errorf("got %+v", got)
		}
	})
}

func TestTokensOfCodedAnswers(t *testing.T) {
	t.Parallel()
	var gzipped bytes.Buffer
	z := gzip.NewWriter(&gzipped)
	_, _ = io.WriteString(z, `{"model":"m","usage":{"prompt_tokens":7,"completion_tokens":5}}`)
	_ = z.Close()
	plain := []byte(`{"model":"m","usage":{"prompt_tokens":7,"completion_tokens":5}}`)
	for coding, body := range map[string][]byte{"gzip": gzipped.Bytes(), "zstd": zstded(plain), "br": brotlied(plain), "compress": plain} {
		t.Run(coding, func(t *testing.T) {
			m := newVersionEnv(t, "transparent", "h2", "h1", "https")
			m.policy(under(m.allow, policy.Limit{Name: "tokens", Every: year, Tokens: 3000}))
			var accepted atomic.Value
			m.handle("/", func(w http.ResponseWriter, r *http.Request) {
				accepted.Store(r.Header.Get("Accept-Encoding"))
				w.Header().Set("Content-Encoding", coding)
				w.Header().Set("Content-Type", "application/json")
				if coding == "zstd" || coding == "br" { // which have not been ended
					w.Header().Set("Content-Type", "text/event-stream")
					body = append([]byte(nil), body...)
				}
				_, _ = w.Write(body)
			})
			r := m.request(t, "POST", "/", strings.NewReader("{}"))
			r.Header.Set("Accept-Encoding", "gzip, br, zstd, compress")
			resp := m.do(t, r)
			got, _ := io.ReadAll(resp.Body)
			switch {
			case accepted.Load() != "identity":
				t.Errorf("the upstream may code: %q", accepted.Load())
			case coding == "compress" && (resp.StatusCode != 502 || !strings.Contains(string(got), "cannot be read")):
				t.Errorf("%d %s", resp.StatusCode, got)
			case coding != "compress" && (!bytes.Equal(got, plain) || resp.Header.Get("Content-Encoding") != ""):
				t.Errorf("%v %q", resp.Header, got)
			}
			tokens := tokensOf(t, m.netEnv)
			if len(tokens) != 1 || coding == "gzip" && tokens[0] != (audit.Tokens{Model: "m", In: 7, Out: 5}) || coding != "gzip" && !tokens[0].Estimated {
				t.Errorf("got %+v", tokens)
			}
		})
	}
}

// An answer without a report, whatever the reason, is charged by its bytes.
func TestTokensUnreported(t *testing.T) {
	t.Parallel()
	m := newVersionEnv(t, "transparent", "h1", "h1", "https")
	m.policy(under(m.allow, policy.Limit{Name: "tokens", Every: year, Tokens: 1 << 40}))
	answer := func(path, kind, body string, status int) {
		m.handle(path, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			w.Header().Set("Content-Type", kind)
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		})
	}
	chunk := `data: {"model":"gpt-5","choices":[{"delta":{"content":"twelve bytes"}}]}` + "\n\n"
	answer("/silent", "text/event-stream", chunk+chunk+"data: [DONE]\n\n", 200)
	answer("/none", "application/json", `{"x":1}`, 200)
	answer("/negative", "application/json", `{"usage":{"prompt_tokens":-9000,"completion_tokens":-9000}}`, 200)
	answer("/bad", "application/json", `{"error":"filtered"}`, 400)
	answer("/busy", "application/json", `{"error":"later"}`, 429)
	gone := make(chan struct{})
	m.handle("/cut", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: {\"type\":\"message_start\",\"message\":{\"model\":\"claude\",\"usage\":{\"input_tokens\":77,\"output_tokens\":1}}}\n\n"+chunk)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		close(gone)
	})
	const sent = "a prompt of 25 bytes long"
	for _, path := range []string{"/silent", "/none", "/negative", "/bad", "/busy"} {
		text(t, m.do(t, m.request(t, "POST", path, strings.NewReader(sent))))
	}
	text(t, m.do(t, m.request(t, "GET", "/none", nil)))
	resp := m.do(t, m.request(t, "POST", "/cut", strings.NewReader(sent)))
	_, _ = io.ReadFull(resp.Body, make([]byte, 150))
	resp.Body.Close()
	<-gone

	got := tokensOf(t, m.netEnv)
	if len(got) != 7 {
		t.Fatalf("got %+v", got)
	}
	for i, want := range []audit.Tokens{
		{Model: "gpt-5", In: 25, Out: 24, Estimated: true},
		{In: 25, Out: 7, Estimated: true},
		{In: 25, Out: 59, Estimated: true},
		{},
		{},
		{},
		{Model: "gpt-5", In: 77, Out: 12, Estimated: true},
	} {
		if got[i] != want {
			t.Errorf("%d: got %+v, want %+v", i, got[i], want)
		}
	}
}

// Under a limit of cost, no server has the whole of a request of which it is not
// known what its model costs.
func TestCostNeedsAPrice(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"h1", "h2"} {
		t.Run(version, func(t *testing.T) {
			m := newVersionEnv(t, "transparent", version, version, "https")
			m.policy(spending(m.allow, policy.Limit{Name: "cost", Every: year, Cost: 1e9}))
			var whole atomic.Int64
			m.handle("/", func(w http.ResponseWriter, r *http.Request) {
				if _, err := io.Copy(io.Discard, r.Body); err != nil {
					return
				}
				whole.Add(1)
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, `{"model":"gpt-5-mini-2025","usage":{"prompt_tokens":1000000,"completion_tokens":1}}`)
			})
			try := func(path, body string, sized bool, want int) {
				t.Helper()
				whole.Store(0)
				var from io.Reader = strings.NewReader(body)
				if !sized {
					from = io.MultiReader(from)
				}
				resp, err := m.client.Do(m.request(t, "POST", path, from))
				if err != nil {
					t.Errorf("%s %s: %v", path, body, err)
					return
				}
				if b := text(t, resp); resp.StatusCode != want || (whole.Load() == 1) != (want == 200) || want == 403 && !strings.Contains(b, "limit cost: ") {
					t.Errorf("%s %.80s: %d %s, %d reached the upstream", path, body, resp.StatusCode, b, whole.Load())
				}
				m.client.CloseIdleConnections()
			}
			for _, sized := range []bool{true, false} {
				try("/v1/chat/completions", `{"model":"gpt-4"}`, sized, 403)
				try("/v1/chat/completions", `{"model":"gpt-5-mini","mod\u0065l":"gpt-4"}`, sized, 403)
				try("/v1/chat/completions", `{"messages":[{"model":"gpt-5-mini"}]}`, sized, 403)
				try("/v1/chat/completions", `model=gpt-5-mini`, sized, 403)
				try("/v1/chat/completions", `{"input":"`+strings.Repeat("x", 300<<10)+`","model":"gpt-4"}`, sized, 403)
			}
			try("/v1beta/models/llama:generateContent", `{}`, true, 403)
			for _, d := range m.await(21)[:20] {
				if d.Unmapped.Sallyport.Tokens != nil && d.Unmapped.Sallyport.Tokens.In > 0 {
					t.Errorf("%+v was charged", d.Unmapped.Sallyport.Tokens)
				}
			}
			try("/v1beta/models/gemini-2.5-pro:generateContent", `{}`, true, 200)                   // 2.00: more than the answer's model
			resp := m.do(t, m.request(t, "POST", "/", strings.NewReader(`{"model":"gpt-5-mini"}`))) // used up
			refused(t, resp, text(t, resp), "cost", 429)
			got := tokensOf(t, m.netEnv)
			if last := got[len(got)-1]; last.Cost != "2.00001" {
				t.Errorf("got %+v", last)
			}
		})
	}
}

// A WebSocket and a tunnel cannot be read: their bytes are taken for tokens, and
// they end where these are used up.
func TestTokensUnread(t *testing.T) {
	t.Parallel()
	eachWebSocket(t, func(t *testing.T, m *versionEnv) {
		m.policy(under(m.allow, policy.Limit{Name: "tokens", Every: year, Tokens: 64 << 10}))
		m.handle("/ws", websocket.Handler(func(ws *websocket.Conn) { echoing(ws) }).ServeHTTP)
		s, resp, err := m.upgrade(t, "/ws")
		if err != nil {
			t.Fatalf("%v %v", err, resp)
		}
		s.echoes(t, "hello")
		carried := 0
		for range 100 {
			if err = s.send(wsText, make([]byte, 4<<10)); err == nil {
				_, _, err = s.receive()
			}
			if err != nil {
				break
			}
			carried += 8 << 10
		}
		if err == nil || carried > 64<<10 {
			t.Fatalf("%d bytes were carried, %v", carried, err)
		}
		_ = s.Close()
		if got := tokensOf(t, m.netEnv); len(got) != 1 || !got[0].Estimated || got[0].In+got[0].Out < 56<<10 {
			t.Errorf("got %+v", got)
		}
		if _, resp, err := m.upgrade(t, "/ws"); err == nil || resp.StatusCode != 429 {
			t.Errorf("another one: %v %v", resp, err)
		}
		m.policy(spending(m.allow, policy.Limit{Name: "cost", Every: year, Cost: 1e9}))
		if _, resp, err := m.upgrade(t, "/ws"); err == nil || resp.StatusCode != 403 {
			t.Errorf("of unknown cost: %v %v", resp, err)
		}
	})
}

func TestTokensOfTunnels(t *testing.T) {
	t.Parallel()
	w := newNetEnv(t)
	w.policy(under(w.tunnel, policy.Limit{Name: "tokens", Every: year, Tokens: 64 << 10}))
	o := w.bytes("raw.example.test", "")
	c, err := w.steer(t.Context(), "tcp", o.address())
	must.OK(t, err)
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	_, _ = c.Write([]byte("\x01"))
	go func() { _, _ = c.Write(make([]byte, 1<<20)) }()
	if n, err := io.Copy(io.Discard, c); n > 64<<10 || err != nil && strings.Contains(err.Error(), "timeout") {
		t.Errorf("%d bytes came back, and then %v", n, err)
	}
	if got := tokensOf(t, w); len(got) != 1 || !got[0].Estimated || got[0].In+got[0].Out < 32<<10 {
		t.Errorf("got %+v", got)
	}
	w.policy(spending(w.tunnel, policy.Limit{Name: "cost", Every: year, Cost: 1e9}))
	c, err = w.steer(t.Context(), "tcp", o.address())
	must.OK(t, err)
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	_, _ = c.Write([]byte("\x01"))
	if n, _ := io.Copy(io.Discard, c); n > 0 {
		t.Errorf("%d bytes of a tunnel of unknown cost", n)
	}
}

// In observe mode all of it is counted, and nothing refused.
func TestTokensObserved(t *testing.T) {
	t.Parallel()
	m := newVersionEnv(t, "transparent", "h1", "h1", "https")
	lenient := spending(m.allow, policy.Limit{Name: "cost", Every: year, Cost: 1}, policy.Limit{Name: "tokens", Every: year, Tokens: 1})
	m.policy(func(in policy.Input) policy.Decision {
		d := lenient(in)
		d.Lenient = true
		return d
	})
	m.handle("/", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"usage":{"prompt_tokens":1000,"completion_tokens":0}}`)
	})
	for range 2 {
		resp := m.do(t, m.request(t, "POST", "/", strings.NewReader(`{"model":"unheard of"}`)))
		if body := text(t, resp); resp.StatusCode != 200 {
			t.Fatalf("%d %s", resp.StatusCode, body)
		}
	}
	want := audit.Tokens{In: 1000, Cost: "0.10"} // as the dearest
	if got := tokensOf(t, m.netEnv); fmt.Sprint(got) != fmt.Sprint([]audit.Tokens{want, want}) {
		t.Errorf("got %+v", got)
	}
}
