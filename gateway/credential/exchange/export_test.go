package exchange

import (
	"context"
	"net"
	"testing"
)

// DialTo leads all endpoints to an address while the test runs.
func DialTo(t *testing.T, address string) {
	before := dialer
	dialer = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}
	t.Cleanup(func() { dialer = before })
}
