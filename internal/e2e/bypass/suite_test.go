package bypass

import (
	"sync"
	"testing"
)

func TestNoWayAround(t *testing.T) {
	r := newRig(t)

	// Attempts that wait go on beside the rest, from sandboxes of their own.
	var beside sync.WaitGroup
	var first string
	var late []string
	var slow []Result
	beside.Go(func() {
		// For the address that the first name has before the others come.
		first = r.full.do(t, ask(get(api, "/v1/x")).at("n0.many.example.test:443").bare().job("403")).Remote
		late = r.full.fill(t)
	})
	beside.Go(func() { slow = r.dawdle(t) })
	t.Cleanup(beside.Wait) // if it has not been waited for

	for _, g := range []struct {
		name string
		all  []attempt
	}{
		{"authority", authorities},
		{"address", addresses},
		{"framing", framings},
		{"http2", http2s},
		{"header", headers},
		{"path", paths},
		{"double reading", readings},
		{"hello", hellos},
		{"other", others},
	} {
		t.Run(g.name, func(t *testing.T) {
			for _, a := range g.all {
				t.Run(a.name, func(t *testing.T) { a.run(t, r.a) })
			}
		})
	}
	t.Run("quoted", func(t *testing.T) { testQuoted(t, r) })
	t.Run("elsewhere", func(t *testing.T) {
		for _, a := range elsewheres {
			a.sent, a.legal = r.keyed(a.sent), r.keyed(a.legal)
			t.Run(a.name, func(t *testing.T) { a.run(t, r.elsewhere) })
		}
		for _, a := range nobodies {
			a.sent = r.keyed(a.sent)
			t.Run(a.name, func(t *testing.T) {
				r.nobody.try(t, a)
				t.Run("legal", func(t *testing.T) {
					r.elsewhere.try(t, attempt{sent: r.keyed(through(toApi, legal)), want: "200", log: "allow api", saw: []string{legalSaw}})
				})
			})
		}
	})
	t.Run("host", func(t *testing.T) { testHost(t, r) })
	t.Run("QUIC", func(t *testing.T) { testQUIC(t, r) })
	t.Run("leads", func(t *testing.T) { testLeads(t, r) })
	t.Run("lookup", func(t *testing.T) { testLookups(t, r) })
	t.Run("sharing", func(t *testing.T) { testSharing(t, r) })
	t.Run("dripping upstream", func(t *testing.T) { testDrip(t, r) })
	t.Run("rapid reset", func(t *testing.T) { testReset(t, r) })
	beside.Wait()
	t.Run("slow", func(t *testing.T) { testSlow(t, r, slow) })
	t.Run("full table", func(t *testing.T) { testFull(t, r, first, late) })
}
