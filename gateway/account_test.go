package gateway_test

import (
	"fmt"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/gateway"
)

const halfHead = "GET / HTTP/1.1\r\n"

// undecided returns the events once there are n, all of which are of connections about which
// nothing is decided.
func (l *env) undecided(n int) []*audit.Event {
	l.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		l.mu.Lock()
		events := slices.Clone(l.events)
		l.mu.Unlock()
		if len(events) < n && time.Now().Before(deadline) {
			continue
		}
		if len(events) < n {
			l.t.Fatalf("%d events, want %d", len(events), n)
		}
		for _, e := range events {
			if x := &e.Unmapped.Sallyport; x.Kind != audit.KindConnection || x.Decision != "" || x.Sandbox != "demo" || e.Action != audit.ActionUnknown || e.Destination.Hostname != "api.example.test" {
				l.t.Fatalf("%+v", e)
			}
		}
		return events
	}
}

// Each connection that has sent a byte has a record with its source: while nothing is
// decided about it, and if it ends before.
func TestEachConnectionIsRecorded(t *testing.T) {
	for _, tt := range []struct {
		name, sent, reason string
		ends               bool
	}{
		{"half a head, and waits", halfHead, "nothing is decided yet about what the connection has sent", false},
		{"half a TLS handshake, and waits", "\x16\x03\x01\x02\x00", "nothing is decided yet about what the connection has sent", false},
		{"half a head, and leaves", halfHead, "the connection ended before anything was decided about what it had sent", true},
		{"half a TLS handshake, and leaves", "\x16\x03\x01\x02\x00", "the connection ended before anything was decided about what it had sent", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			l := newEnv(t, func(o *gateway.Options) {})
			l.policy(allow)
			c := l.raw(l.name("api.example.test").String() + ":443")
			io.WriteString(c, tt.sent)
			if tt.ends {
				reset(c) // a regular end can be all that a protocol needs
			}
			e := l.undecided(1)[0]
			if e.Unmapped.Sallyport.Reason != tt.reason || e.Source.Port != c.LocalAddr().(*net.TCPAddr).Port || e.Source.IP == "" {
				t.Errorf("%+v from %v", e, c.LocalAddr())
			}
		})
	}
}

// A connection without a byte is no more than a number in the metrics.
func TestConnectionWithoutAByteIsNotRecorded(t *testing.T) {
	l := newEnv(t, func(o *gateway.Options) {})
	l.policy(allow)
	to := l.name("api.example.test").String() + ":443"
	l.raw(to).Close()
	c := l.raw(to)
	io.WriteString(c, halfHead)
	c.Close()
	if e := l.undecided(1)[0]; e.Source.Port != c.LocalAddr().(*net.TCPAddr).Port {
		t.Errorf("%+v", e)
	}
}

// Many of them are few events, which name the connections that they stand for.
func TestManyConnectionsAreFewEvents(t *testing.T) {
	const number = 40
	l := newEnv(t, func(o *gateway.Options) {})
	l.policy(allow)
	to := l.name("api.example.test").String() + ":443"
	want := map[int]bool{}
	for range number {
		c := l.raw(to)
		io.WriteString(c, halfHead)
		want[c.LocalAddr().(*net.TCPAddr).Port] = true
		c.Close()
	}
	got := map[int]bool{}
	var events int
	for n := 1; len(got) < number; n++ {
		events = 0
		for _, e := range l.undecided(n) {
			events++
			if got[e.Source.Port] = true; e.Count > 1 {
				for _, port := range e.Unmapped.Sallyport.SourcePorts {
					got[port] = true
				}
			}
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) || events == number {
		t.Errorf("%d events: %v, want %v", events, got, want)
	}
}
