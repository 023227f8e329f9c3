package gateway_test

import (
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"sallyport/internal/test/must"
	"sallyport/policy"
)

// streaming sends a gRPC message every few milliseconds, or the half of one for
// good.
func streaming(path string) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Trailer", "Grpc-Status")
		message := append([]byte{0, 0, 0, 0, 100}, make([]byte, 100)...)
		for {
			if path == "/half" {
				message = message[:50]
			}
			if _, err := w.Write(message); err != nil {
				return
			}
			_ = http.NewResponseController(w).Flush()
			if path == "/half" {
				<-r.Context().Done()
				return
			}
			select {
			case <-r.Context().Done():
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	}
}

// A call of gRPC that a change of the policy or a limit ends in the middle of its
// answer has a status, where a message has ended; else it is reset.
func TestCallsThatAreEnded(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, path, status, says string
		limit                    bool
	}{
		{name: "by the policy", path: "/whole", status: "7", says: "the policy no longer allows it: not any more"},
		{name: "by a limit", path: "/whole", limit: true, status: "8", says: "limit bytes: 1KiB within 8760h are used up"},
		{name: "within a message", path: "/half"},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := newVersionEnv(t, "transparent", "h2", "h2", "https")
			m.handle(test.path, streaming(test.path))
			if test.limit {
				m.policy(under(m.allow, policy.Limit{Name: "bytes", Every: year, Bytes: 1 << 10}))
			}
			r := m.request(t, "POST", test.path, http.NoBody)
			r.Header.Set("Content-Type", "application/grpc")
			r.Header.Set("Te", "trailers")
			resp := m.do(t, r)
			first := make([]byte, 50)
			if _, err := io.ReadFull(resp.Body, first); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			if !test.limit {
				began = m.withdraw(test.path, m.allow)
			}
			rest, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if took := time.Since(began); took > soon {
				t.Errorf("it took %v", took)
			}
			if test.status == "" {
				if err == nil || len(resp.Trailer["Grpc-Status"]) > 0 {
					t.Errorf("half a message ended with %v, %v", err, resp.Trailer)
				}
				return
			}
			all := append(first, rest...)
			for len(all) >= 5 && len(all) >= 5+int(binary.BigEndian.Uint32(all[1:])) {
				all = all[5+binary.BigEndian.Uint32(all[1:]):]
			}
			if err != nil || len(all) != 0 {
				t.Errorf("%d bytes of a message, %v", len(all), err)
			}
			if got := resp.Trailer; got.Get("Grpc-Status") != test.status || !strings.Contains(got.Get("Grpc-Message"), test.says) || got.Get("Sallyport-Decision") == "" {
				t.Errorf("%v", got)
			}
			m.settled(t)
		})
	}
}

// A client of HTTP/2 whose connection is no longer allowed is told to begin
// nothing more on it, before it ends; one of another host is not.
func TestGoodbyeOnHTTP2(t *testing.T) {
	t.Parallel()
	w := newNetEnv(t)
	gone, kept := w.origin("gone.example.test", "h1", true), w.origin("kept.example.test", "h1", true)
	w.policy(w.allow)
	for _, o := range []*origin{gone, kept} {
		o.handle("/", func(http.ResponseWriter, *http.Request) {})
	}
	one, other := w.frames(w.steer, gone), w.frames(w.steer, kept)
	for f, o := range map[*frames]*origin{one: gone, other: kept} {
		id, err := f.open(true, field{":method", "GET"}, field{":scheme", "https"}, field{":authority", o.address()}, field{":path", "/"})
		must.OK(t, err)
		if a := f.wait(id); a.status != "200" {
			t.Fatalf("%+v", a)
		}
	}
	w.policy(func(in policy.Input) policy.Decision {
		if in.Destination.Host == gone.name {
			return policy.Decision{Action: policy.Deny, Reason: "closed"}
		}
		return w.allow(in)
	})
	began := time.Now()
	w.gateway.Redecide()
	a := one.waitFor(99, soon)
	if !a.gone || one.goodbye == nil || one.goodbye.ErrCode != 0 || one.goodbye.LastStreamID != 1 || time.Since(began) > soon {
		t.Errorf("after %v: %+v, GOAWAY %v", time.Since(began), a, one.goodbye)
	}
	if _, err := one.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the end: %v", err)
	}
	if other.waitFor(99, time.Second/2); other.goodbye != nil {
		t.Error("another host's connection was told to go")
	}
}
