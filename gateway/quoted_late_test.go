package gateway_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// sliced answers a request for a range of text with that, and others with all.
func sliced(w http.ResponseWriter, r *http.Request, text string) {
	from, to := 0, len(text)-1
	if n, _ := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &from, &to); n == 2 {
		to = min(to, len(text)-1)
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to, len(text)))
		w.WriteHeader(http.StatusPartialContent)
	}
	_, _ = io.WriteString(w, text[from:to+1])
}

// A host that was sent a credential on one port may serve it on another.
func TestQuotedOnAnotherPort(t *testing.T) {
	m := meet(t, "transparent", "h1", "h1", "https")
	m.credential("key", token)
	m.policy(m.keyed)
	m.handle("/keyed", func(http.ResponseWriter, *http.Request) {})
	plain := m.wire.origin(m.origin.name, "h1", false)
	plain.handle("/log", func(w http.ResponseWriter, r *http.Request) { sliced(w, r, token) })
	client := m.agent("h1", false, m.steer, false)
	all := func() (got string) {
		for from := 0; from < len(token); from += 7 {
			r, _ := http.NewRequestWithContext(t.Context(), "GET", plain.url("http", "/log"), nil)
			r.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", from, from+6))
			resp, err := client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			got += text(t, resp)
		}
		return got
	}
	if got := all(); got != token {
		t.Fatalf("the control, before anything was sent: %s", got)
	}
	text(t, m.do(t, m.request(t, "GET", "/keyed", nil)))
	if got := all(); strings.Contains(got, token) || !strings.Contains(got, strings.Repeat("*", len(token))) {
		t.Errorf("the sandbox has put together %s", got)
	}
}
