package upstream

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"sallyport/internal/test/must"
)

// TestHoursOfSilence has a stream on which nothing is said for a day. Servers of
// gRPC end a connection that pings more often than every five minutes while they
// say nothing; a peer that does not answer is gone.
func TestHoursOfSilence(t *testing.T) {
	t.Parallel()
	for name, answers := range map[string]bool{"peer that is there": true, "peer that is gone": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				near, far := net.Pipe()
				m := newMultiplexer(&Options{IdleTimeout: 90 * time.Second}, true, streamWindow)
				over := make(chan struct{})
				go func() {
					defer close(over)
					quietServer(t, far, answers)
				}()
				kept, err := m.add(near, netip.Addr{})
				must.OK(t, err)
				begun := time.Now()
				r, _ := http.NewRequestWithContext(t.Context(), "GET", "http://api.example.test/", nil)
				resp, err := m.RoundTrip(r, kept, nil)
				must.OK(t, err)
				body, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if answers && (err != nil || string(body) != "at last") {
					t.Errorf("%q %v", body, err)
				}
				if took := time.Since(begun); !answers && (err == nil || took > pingAfter+time.Minute) {
					t.Errorf("%q %v after %v", body, err, took)
				}
				m.close(true)
				far.Close()
				<-over
			})
		})
	}
}

// quietServer answers one request after a day.
func quietServer(t *testing.T, c net.Conn, answers bool) {
	in := bufio.NewReader(c) // a pipe has no room: what comes at once is taken at once
	f := http2.NewFramer(c, in)
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	if _, err := io.ReadFull(in, make([]byte, len(http2.ClientPreface))); err != nil {
		t.Error(err)
	}
	say := make(chan func() error, 10)
	defer close(say)
	go func() {
		for f := range say {
			_ = f()
		}
	}()
	say <- func() error { return f.WriteSettings() }
	var pinged time.Time
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return
		}
		switch frame := frame.(type) {
		case *http2.SettingsFrame:
			if !frame.IsAck() {
				say <- f.WriteSettingsAck
			}
		case *http2.PingFrame:
			if since := time.Since(pinged); since < 5*time.Minute {
				t.Errorf("a ping %v after the last", since)
			}
			if pinged = time.Now(); answers {
				data := frame.Data
				say <- func() error { return f.WritePing(true, data) }
			}
		case *http2.MetaHeadersFrame:
			say <- func() error {
				return f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0x88}, EndHeaders: true})
			}
			if answers {
				late := time.AfterFunc(24*time.Hour, func() { say <- func() error { return f.WriteData(1, true, []byte("at last")) } })
				defer late.Stop()
			}
		}
	}
}

// TestSweepOfTheDead has a connection found dead between its timer's ring and
// what that calls.
func TestSweepOfTheDead(t *testing.T) {
	t.Parallel()
	m := newMultiplexer(&Options{IdleTimeout: time.Hour}, true, streamWindow)
	c := &shared{trips: 1}
	m.conns = append(m.conns, c)
	m.mu.Lock()
	m.leave(&h2Request{conn: c})
	m.mu.Unlock()
	m.MarkDead(c.ClientConn)
	m.sweep(c)
	if len(m.conns) != 0 {
		t.Errorf("%d connections are kept", len(m.conns))
	}
}
