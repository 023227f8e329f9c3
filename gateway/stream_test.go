package gateway_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"sallyport/audit"
	"sallyport/internal/test/must"
)

func TestStreamArrivesAsItComes(t *testing.T) {
	t.Parallel()
	l := newEnv(t)
	l.policy(allow)
	l.name("api.example.test")
	next := make(chan struct{})
	l.upstream("api.example.test", true, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/x-ndjson")
		for i := range 3 {
			fmt.Fprintf(w, "%d\n", i)
			w.(http.Flusher).Flush()
			<-next
		}
	})
	resp, err := l.client().Get("https://api.example.test/")
	must.OK(t, err)
	defer resp.Body.Close()
	for i := range 3 {
		var line [2]byte
		if _, err := io.ReadFull(resp.Body, line[:]); err != nil || string(line[:]) != fmt.Sprintf("%d\n", i) {
			t.Fatalf("%q %v", line, err)
		}
		next <- struct{}{}
	}
}

func TestWebSocketIsCarriedAndCounted(t *testing.T) {
	t.Parallel()
	l := newEnv(t)
	l.policy(allow)
	l.upstream("api.example.test", true, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "websocket" || r.Header.Get("Connection") != "Upgrade" {
			w.WriteHeader(400)
			return
		}
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", "websocket")
		w.Header().Set("Sec-WebSocket-Accept", acceptOf(r))
		w.WriteHeader(101)
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		for got := make([]byte, 11); ; {
			if _, err := io.ReadFull(rw, got); err != nil {
				return
			}
			_, _ = c.Write(append([]byte{got[0], got[1] &^ 0x80}, got[6:]...)) // a server masks nothing
		}
	})
	c, err := l.secure(l.name("api.example.test").String()+":443", "api.example.test")
	must.OK(t, err)
	io.WriteString(c, "GET /ws HTTP/1.1\r\nHost: api.example.test\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n")
	r := bufio.NewReader(c)
	resp, err := http.ReadResponse(r, nil)
	if err != nil || resp.StatusCode != 101 {
		t.Fatal(resp, err)
	}
	const frame = "\x81\x05frame"
	io.WriteString(c, "\x81\x85\x00\x00\x00\x00frame") // masked, by a mask that changes nothing
	b := make([]byte, len(frame))
	if _, err := io.ReadFull(r, b); err != nil || string(b) != frame {
		t.Fatalf("%q %v", b, err)
	}
	c.Close()
	done := l.await(2)[1]
	if done.HTTPResponse.Code != 101 || done.Traffic.BytesOut != 11 || done.Traffic.BytesIn != 7 || done.StatusID != audit.StatusSuccess {
		t.Errorf("completion %+v %+v %+v", done, done.HTTPResponse, done.Traffic)
	}
}

func TestUpgradeUnaskedIsRefused(t *testing.T) {
	t.Parallel()
	l := newEnv(t)
	l.policy(allow)
	l.name("api.example.test")
	l.upstream("api.example.test", true, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", "websocket")
		w.WriteHeader(101)
		c, _, _ := http.NewResponseController(w).Hijack()
		c.Close()
	})
	resp, body := get(t, l.client(), "https://api.example.test/")
	if resp.StatusCode != 502 || !strings.Contains(body, "switched protocols unasked") {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	l.await(2)
}
