package drops

import (
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/internal/test/must"
	"sallyport/internal/test/ocsf"
	"sallyport/sandbox"
	"sallyport/sandbox/datapath"
)

// Drops of one kind are one record that counts them all.
func TestDropsAreFolded(t *testing.T) {
	dir := t.TempDir()
	log, err := auditlog.Open(dir, auditlog.Options{})
	must.OK(t, err)
	l := New(log, nobody, slog.New(slog.DiscardHandler))
	dns := netip.MustParseAddrPort("192.0.2.1:53")
	for range 3 {
		l.Add(datapath.Drop{Generation: 1, Sandbox: "a", Destination: dns, Count: 2})
	}
	l.Add(datapath.Drop{Generation: 2, Sandbox: "b", Destination: dns, Count: 1})
	l.Flush()
	must.OK(t, log.Close())
	got := map[string]int{}
	for r, err := range auditlog.Pair(t.Context(), dir, auditlog.Query{Kind: audit.KindDrop}, 0) {
		must.OK(t, err)
		if e := r.Decision; e != nil {
			got[e.Unmapped.Sallyport.Sandbox] += 100 + e.Count // a record is a hundred
		}
	}
	if diff := cmp.Diff(got, map[string]int{"a": 106, "b": 101}); diff != "" {
		t.Errorf("records and packets by sandbox: %s", diff)
	}
}

// TestDropRecords: each kind of drop is OCSF, and an attempt is a finding too.
func TestDropRecords(t *testing.T) {
	mac, _ := net.ParseMAC("02:42:0a:e7:00:07")
	ip := netip.MustParseAddrPort("10.231.0.7:40000")
	for _, name := range []string{"box", ""} {
		for r := datapath.Unknown; r <= datapath.HostProcess; r++ {
			for _, addr := range []netip.AddrPort{ip, {}} {
				var got kept
				d := datapath.Drop{Reason: r, Sandbox: name, SandboxID: name, Source: addr, Destination: addr, SourceMAC: mac, Protocol: 17, Count: 3, Time: time.Now()}
				New(&got, nobody, slog.New(slog.DiscardHandler)).write(d)
				ocsf.Check(t, got...)
				if findings := len(got) - 1; (findings == 1) != r.Attempt() || got[0].Unmapped.Sallyport.Kind != audit.KindDrop {
					t.Errorf("%s: %d findings", r, findings)
				}
				if r.Attempt() && got[1].FindingInfo.Related[0].UID != got[0].ID() {
					t.Errorf("%s: the finding is about another record", r)
				}
			}
		}
	}
}

// A drop of a sandbox that runs has its tags, as each of its records has; a drop of an earlier
// run does not.
func TestDropsHaveTags(t *testing.T) {
	running := func() map[netip.Addr]sandbox.Info {
		return map[netip.Addr]sandbox.Info{netip.MustParseAddr("10.231.0.7"): {
			ID: "id", Session: "s2", Generation: 2, Spec: sandbox.Spec{Owner: "agents", Tags: map[string]string{sandbox.TagPod: "box-2"}},
		}}
	}
	for generation, want := range map[uint32]string{1: "", 2: "box-2"} {
		var got kept
		New(&got, running, slog.New(slog.DiscardHandler)).write(datapath.Drop{Reason: datapath.EastWest, Sandbox: "agents/box", SandboxID: "id", Generation: generation, Count: 1})
		for _, e := range got {
			if x := e.Unmapped.Sallyport; x.Tags[sandbox.TagPod] != want || (x.Session == "s2") != (want != "") || (x.Owner == "agents") != (want != "") {
				t.Errorf("generation %d: session %q, owner %q, tags %v", generation, x.Session, x.Owner, x.Tags)
			}
		}
	}
}

func nobody() map[netip.Addr]sandbox.Info { return nil }

type kept []*audit.Event

func (k *kept) Enqueue(e *audit.Event) error {
	*k = append(*k, e)
	return nil
}
