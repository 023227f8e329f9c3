package config

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sallyport/policy"
)

func TestNeedsRestart(t *testing.T) {
	started := Config{DataDir: "/a", Network: Network{Subnet: netip.MustParsePrefix("198.51.100.0/24")}}
	c := started
	c.Egress = []policy.EgressRule{{Destination: "api.example.com"}}
	c.Vault.Address = "https://vault.example.com"
	c.Audit.Sinks = []Sink{{Name: "siem"}}
	c.Memory.Trusted = []string{"api.example.com"}
	if keys := c.NeedsRestart(&started); keys != nil {
		t.Errorf("what is reloaded: %q", keys)
	}
	c.Network.Subnet = netip.MustParsePrefix("203.0.113.0/24")
	c.Metrics.Listen = "off"
	c.DataDir = "/b"
	c.Memory.Client = "memory"
	if diff := cmp.Diff(c.NeedsRestart(&started), []string{"dataDir", "network", "metrics", "memory"}); diff != "" {
		t.Error(diff)
	}
}
