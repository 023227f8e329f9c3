package gateway_test

import (
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"sallyport/internal/test/must"
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
	t.Parallel()
	m := newVersionEnv(t, "transparent", "h1", "h1", "https")
	m.credential("key", token)
	m.policy(m.keyed)
	m.handle("/keyed", func(http.ResponseWriter, *http.Request) {})
	plain := m.netEnv.origin(m.origin.name, "h1", false)
	plain.handle("/log", func(w http.ResponseWriter, r *http.Request) { sliced(w, r, token) })
	client := m.agent("h1", false, m.steer, false)
	all := func() (got string) {
		for from := 0; from < len(token); from += 7 {
			r, _ := http.NewRequestWithContext(t.Context(), "GET", plain.url("http", "/log"), nil)
			r.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", from, from+6))
			resp, err := client.Do(r)
			must.OK(t, err)
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

// A request from before anything was injected is answered by the rules of now, and an answer
// that was passed unsearched does not go on.
func TestQuotedInWhatWasAskedBefore(t *testing.T) {
	t.Parallel()
	turned := func(text string) string { // a coding that nobody knows
		b := []byte(text)
		for i := range b {
			b[i] ^= 1
		}
		return string(b)
	}
	packed := func(text string) string {
		var b strings.Builder
		z := gzip.NewWriter(&b)
		_, _ = io.WriteString(z, text)
		_ = z.Close()
		return b.String()
	}
	unpacked := func(t *testing.T, text string) string {
		z, err := gzip.NewReader(strings.NewReader(text))
		if err != nil {
			return text
		}
		b, _ := io.ReadAll(z)
		return string(b)
	}
	const ahead = "begun, "
	for _, test := range []struct {
		name   string
		header http.Header // of the answer
		early  bool        // its head goes out before the secret leaves
		serve  func(w http.ResponseWriter, r *http.Request, before func(), text string)
		read   func(t *testing.T, text string) string
		breaks bool
	}{
		{name: "parts", serve: func(w http.ResponseWriter, r *http.Request, before func(), text string) {
			before()
			sliced(w, r, text)
		}},
		{name: "unknown coding", header: http.Header{"Content-Encoding": {"turned"}}, serve: func(w http.ResponseWriter, _ *http.Request, before func(), text string) {
			before()
			_, _ = io.WriteString(w, turned(text))
		}, read: func(_ *testing.T, text string) string { return turned(text) }},
		{name: "part that has begun", early: true, breaks: true, serve: func(w http.ResponseWriter, _ *http.Request, before func(), text string) {
			w.WriteHeader(http.StatusPartialContent)
			_, _ = io.WriteString(w, ahead+turned(text[:4]))
			before()
			_, _ = io.WriteString(w, text[4:])
		}},
		{name: "unknown coding that has begun", early: true, breaks: true, header: http.Header{"Content-Encoding": {"turned"}}, serve: func(w http.ResponseWriter, _ *http.Request, before func(), text string) {
			_, _ = io.WriteString(w, ahead)
			before()
			_, _ = io.WriteString(w, turned(text))
		}, read: func(_ *testing.T, text string) string { return turned(text) }},
		{name: "gzip that has begun", early: true, breaks: true, header: http.Header{"Content-Encoding": {"gzip"}, "Content-Type": {"application/json"}},
			serve: func(w http.ResponseWriter, _ *http.Request, before func(), text string) {
				z := gzip.NewWriter(w)
				_, _ = io.WriteString(z, ahead)
				_ = z.Flush()
				before()
				_, _ = io.WriteString(z, text)
				_ = z.Close()
			}, read: unpacked},
		{name: "message that has begun", early: true, breaks: true, header: http.Header{"Content-Type": {"application/grpc"}, "Grpc-Encoding": {"gzip"}},
			serve: func(w http.ResponseWriter, _ *http.Request, before func(), text string) {
				body := packed(text)
				_, _ = w.Write(append([]byte{1}, binary.BigEndian.AppendUint32(nil, uint32(len(body)))...))
				_, _ = io.WriteString(w, body[:5])
				before()
				_, _ = io.WriteString(w, body[5:])
			}, read: func(t *testing.T, text string) string { return unpacked(t, text[min(5, len(text)):]) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := newVersionEnv(t, "transparent", "h1", "h1", "https")
			m.credential("key", token)
			m.policy(m.keyed)
			const pieces = (len(token) + 6) / 7
			var waiting sync.WaitGroup // answers that wait for the secret
			n := pieces
			if test.name != "parts" {
				n = 1
			}
			waiting.Add(n)
			left := make(chan struct{})
			m.handle("/keyed", func(http.ResponseWriter, *http.Request) {})
			m.handle("/log", func(w http.ResponseWriter, r *http.Request) {
				for name, v := range test.header {
					w.Header()[name] = v
				}
				test.serve(w, r, func() {
					if test.early {
						_ = http.NewResponseController(w).Flush()
					}
					waiting.Done()
					<-left
				}, token)
			})
			got, broken := make([]string, n), make([]bool, n)
			var asked, begun sync.WaitGroup
			if test.early {
				begun.Add(n)
			}
			for i := range n {
				asked.Go(func() {
					r := m.request(t, "GET", "/log", nil)
					r.Header.Set("Accept-Encoding", "gzip, turned")
					if test.name == "parts" {
						r.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", 7*i, 7*i+6))
					}
					resp, err := m.client.Do(r)
					if err != nil {
						t.Error(err)
						return
					}
					defer resp.Body.Close()
					if test.early {
						var first [1]byte
						_, _ = io.ReadFull(resp.Body, first[:])
						got[i] = string(first[:])
						begun.Done()
					}
					rest, err := io.ReadAll(resp.Body)
					got[i], broken[i] = got[i]+string(rest), err != nil
					if read := test.read; read != nil && resp.StatusCode == 200 {
						got[i] = read(t, got[i])
					}
				})
			}
			waiting.Wait()
			begun.Wait()
			text(t, m.do(t, m.request(t, "GET", "/keyed", nil)))
			close(left)
			asked.Wait()
			if all := strings.Join(got, ""); strings.Contains(all, token) || strings.Contains(all, token[4:]) {
				t.Errorf("the sandbox has %q", all)
			}
			if broken[0] != test.breaks {
				t.Errorf("broken off: %v, want %v; got %q", broken[0], test.breaks, got)
			}
			_, completions := m.settled(t)
			told := 0
			for _, c := range completions {
				if strings.Contains(c.Detail, "cannot be searched") {
					told++
				}
			}
			if told != n {
				t.Errorf("%d completions say why, want %d", told, n)
			}
		})
	}
}
