package daemon

import (
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sallyport/audit"
	"sallyport/sandbox/datapath"
)

// Drops of one kind are one record that counts them all.
func TestDropsAreFolded(t *testing.T) {
	dir := t.TempDir()
	log, err := audit.Open(dir, audit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	l := newDropLog(log, slog.New(slog.DiscardHandler))
	dns := netip.MustParseAddrPort("192.0.2.1:53")
	for range 3 {
		l.add(datapath.Drop{Generation: 1, Sandbox: "a", Destination: dns, Count: 2})
	}
	l.add(datapath.Drop{Generation: 2, Sandbox: "b", Destination: dns, Count: 1})
	l.flush(time.Time{})
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for r, err := range audit.Pair(t.Context(), dir, audit.Query{Kind: audit.KindDrop}, 0) {
		if err != nil {
			t.Fatal(err)
		}
		if e := r.Decision; e != nil {
			got[e.Unmapped.Sallyport.Sandbox] += 100 + e.Count // a record is a hundred
		}
	}
	if diff := cmp.Diff(got, map[string]int{"a": 106, "b": 101}); diff != "" {
		t.Errorf("records and packets by sandbox: %s", diff)
	}
}
