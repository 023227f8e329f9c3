package agent_test

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"testing"

	"sallyport/internal/test/must"
	"sallyport/sandbox/agent"
	"sallyport/sandbox/agent/channel"
	"sallyport/sandbox/agent/wire"
)

// somebody serves in an agent's place until the test ends.
func somebody(t *testing.T, serve func(net.Listener) error) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	must.OK(t, err)
	done := make(chan struct{})
	go func() { defer close(done); _ = serve(l) }()
	t.Cleanup(func() { _ = l.Close(); <-done })
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// believer takes every connection for the host's, and serves HTTP.
type believer struct{ net.Listener }

func (b believer) Accept() (net.Conn, error) {
	c, err := b.Listener.Accept()
	if err == nil {
		_, _ = c.Write(make([]byte, wire.ChallengeSize))
		_, _ = io.ReadFull(c, make([]byte, ed25519.SignatureSize))
	}
	return c, err
}

// Once an agent has been met nobody else is asked for anything in its place: neither
// another agent nor what says that it is an earlier one.
func TestAgentIsKnownByItsKey(t *testing.T) {
	pub, key, err := ed25519.GenerateKey(nil)
	must.OK(t, err)
	first, second := agent.NewServer(agent.Options{Key: pub}), agent.NewServer(agent.Options{Key: pub})
	at := map[string]netip.AddrPort{
		"the agent":        somebody(t, first.Serve),
		"another agent":    somebody(t, second.Serve),
		"an earlier one":   {},
		"one that repeats": {},
	}
	asked := 0
	var heard []byte // what the agent said of itself
	for name, handle := range map[string]http.HandlerFunc{
		"an earlier one": http.NotFound,
		"one that repeats": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write(heard)
		},
	} {
		s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/identity" {
				asked++
				return
			}
			handle(w, r)
		})}
		at[name] = somebody(t, func(l net.Listener) error { return s.Serve(believer{l}) })
	}
	var now netip.AddrPort
	dial := func(ctx context.Context, a netip.AddrPort) (net.Conn, error) { return to(now)(ctx, a) }
	open := func(known ed25519.PublicKey) *channel.Channel {
		c := channel.New(now.Addr(), channel.Options{Key: key, Agent: known, Dial: dial})
		t.Cleanup(c.Close)
		return c
	}
	now = at["the agent"]
	c := open(nil)
	met, err := c.Meet(t.Context())
	if err != nil || len(met) != ed25519.PublicKeySize {
		t.Fatalf("got %x, %v", met, err)
	}
	var said wire.Identity
	must.OK(t, c.JSON(t.Context(), "POST", "/identity", wire.Identity{Nonce: make([]byte, wire.NonceSize)}, &said))
	if heard, err = json.Marshal(said); err != nil || !met.Equal(ed25519.PublicKey(said.Key)) {
		t.Fatalf("%s, %v", heard, err)
	}
	if err := c.JSON(t.Context(), "GET", "/activity", nil, nil); err != nil {
		t.Error(err)
	}
	c.Close()
	for name, a := range at {
		now = a
		err := open(met).JSON(t.Context(), "GET", "/activity", nil, nil)
		if is := errors.Is(err, channel.ErrImpostor); is != (name != "the agent") || name == "the agent" && err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if asked != 0 {
		t.Errorf("impostors were asked for %d things", asked)
	}
	// The session of an earlier version's agent goes on.
	now = at["an earlier one"]
	c = open(nil)
	if met, err := c.Meet(t.Context()); met != nil || err != nil {
		t.Errorf("an earlier one is %x, %v", met, err)
	}
	if _ = c.JSON(t.Context(), "GET", "/activity", nil, nil); asked != 1 {
		t.Errorf("it was asked for %d things", asked)
	}
}
