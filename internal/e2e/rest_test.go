package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"sallyport/internal/test/env"
)

// restBound is what the daemon and the gateway's process may take together while
// nothing happens, in bytes.
const restBound = 60_000_000

// A thousand rules and a sandbox are there, and nothing happens. The engine is
// not counted: it is Docker's.
func TestMemoryAtRest(t *testing.T) {
	r := newRig(t, "")
	var rules strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&rules, "- {destination: host-%d.example.test, paths: [\"/v1/**\"], action: allow}\n", i)
	}
	r.configure(baseConfig, strings.Replace(ruleConfig, "egress:\n", "egress:\n"+rules.String(), 1))
	r.serve()
	r.up()
	r.setKey()
	if res := r.inside("agent", "curl -sS https://api.example.test/"); res.code != 0 || !strings.Contains(res.stdout, "saw_key") {
		t.Fatalf("got %s", res)
	}
	var m env.Memory
	var err error
	for range 60 { // they come to rest within seconds
		time.Sleep(time.Second)
		if m, err = env.MemoryOf(r.daemon.PID(), r.gatewayPID()); err != nil {
			t.Fatal(err)
		}
		if m.Proportional <= restBound {
			break
		}
	}
	t.Logf("%.1f MB, and %.1f MB where shared pages are counted in each process", float64(m.Proportional)/1e6, float64(m.Resident)/1e6)
	if m.Proportional > restBound {
		t.Errorf("at rest the daemon takes %d bytes, want %d at most", m.Proportional, restBound)
	}
}
