package agent_test

import (
	"context"
	"net"
	"net/netip"
	"strconv"
	"sync/atomic"
	"testing"

	"sallyport/internal/test/must"
	"sallyport/sandbox/agent/channel"
	"sallyport/sandbox/agent/wire"
)

// Commands that come one after the other come by one connection, though whoever asks
// for one ends its context as soon as it has the command's end. To dial, and to prove
// who we are, takes milliseconds in gVisor.
func TestCommandsShareAConnection(t *testing.T) {
	at, key, _ := serve(t)
	var dials atomic.Int32
	c := channel.New(at.Addr(), channel.Options{Key: key, Dial: func(ctx context.Context, a netip.AddrPort) (net.Conn, error) {
		dials.Add(1)
		return to(at)(ctx, a)
	}})
	t.Cleanup(c.Close)
	const commands = 50
	for i := range commands {
		ctx, cancel := context.WithCancel(t.Context())
		_, err := c.Run(ctx, wire.Command{ID: "c" + strconv.Itoa(i), Args: []string{"true"}}, wire.Streams{})
		cancel()
		must.OK(t, err)
	}
	// One that is asked for before the last answer's end has come needs another.
	if n := dials.Load(); n > commands/5 {
		t.Errorf("%d connections for %d commands", n, commands)
	}
}
