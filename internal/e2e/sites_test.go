package e2e

import (
	"net/netip"
	"testing"

	"sallyport/internal/test/testnet"
)

// serveSites puts sites of a test's own on the upstream, and the API.
func (r *rig) serveSites(sites hostMux) {
	r.t.Helper()
	names := []string{"api.example.test"}
	zone := map[string][]netip.Addr{}
	for name := range sites {
		names = append(names, name)
	}
	for _, name := range names {
		zone[name] = []netip.Addr{netip.MustParseAddr(upstreamAddress)}
	}
	if _, err := r.host.DNS(zone); err != nil {
		r.t.Fatal(err)
	}
	if _, err := r.host.HTTPS(r.ca, 443, sites.orElse(testnet.API(testnet.KeyOf(r.key))), names...); err != nil {
		r.t.Fatal(err)
	}
}

// within lets a subtest fail by itself until the returned function is called.
func (r *rig) within(t testing.TB) (back func()) {
	outer := r.t
	r.t = t
	return func() { r.t = outer }
}
