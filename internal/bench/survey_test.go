package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sallyport/internal/bench/contender"
	"sallyport/internal/test/must"
	"sallyport/internal/test/testnet"
)

// TestMain plays a role when a run under test has started this program for it.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && (os.Args[1] == "-role" || os.Args[1] == "gateway") {
		main()
		return
	}
	os.Exit(m.Run())
}

// rows are the lines of tables by their first column. Two spaces or more are
// between columns.
func rows(text string) map[string][]string {
	found := map[string][]string{}
	for line := range strings.Lines(text) {
		var fields []string
		for f := range strings.SplitSeq(strings.TrimSpace(line), "  ") {
			if f = strings.TrimSpace(f); f != "" {
				fields = append(fields, f)
			}
		}
		if len(fields) > 1 {
			found[fields[0]] = fields[1:]
		}
	}
	return found
}

func TestSurvey(t *testing.T) {
	testnet.Privileged(t) // the memory of other programs is read
	// As in a run, but with what every machine has, and small.
	all, few := columns, slices.Clone(kinds)
	t.Cleanup(func() { columns, kinds = all, few })
	columns = []column{{name: "goproxy"}, {name: "squid", program: &contender.Program{Find: func(context.Context) error { return errors.New("not here") }}}, {name: "sallyport", ours: true}}
	kinds = slices.Clone(kinds)
	for i := range kinds {
		kinds[i].connections = min(kinds[i].connections, 40)
	}
	s := further(options{dir: t.TempDir(), listen: "127.0.0.1", rounds: 1, rules: 10, duration: 50 * time.Millisecond}, kindNames())
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	must.OK(t, s.run(ctx))
	var b bytes.Buffer
	must.OK(t, s.print(&b))
	t.Log("\n" + b.String())
	got := rows(b.String())
	for _, k := range kinds {
		single := k.name == "h2" || k.name == "grpc" // which goproxy does not speak
		for _, f := range k.figures {
			row := got[f.name]
			if len(row) != 5 {
				t.Errorf("row of %q: got %q, want a unit, three proxies and a ratio", f.name, row)
				continue
			}
			if absent := row[1] == "-"; absent != single || row[4] == "-" != single {
				t.Errorf("row of %q: got goproxy %q and ratio %q, want figures: %t", f.name, row[1], row[4], !single)
			}
			if row[2] != "-" || row[3] == "-" {
				t.Errorf("row of %q: got squid %q, which is not there, and sallyport %q, which is", f.name, row[2], row[3])
			}
		}
		at := s.entries[k.name]["sallyport"]
		if n := at.rounds[0].Requests; n == 0 || at.stats.Requests < uint64(n) || at.stats.Events != 2*at.stats.Requests || at.stats.Syncs == 0 {
			t.Errorf("%s: %d requests of the load, and sallyport counted %+v", k.name, n, *at.stats)
		}
	}
	if !strings.Contains(b.String(), "squid: not here\n") {
		t.Error("the report does not say why squid has no figures")
	}
	idle := s.entries["idle"]["sallyport"].rounds[0]
	if idle.Open != 40 || idle.Rest.Proportional <= 0 || idle.Rest.Resident < idle.Rest.Proportional {
		t.Errorf("idle connections: got %d with %v bytes at rest, want 40 and some", idle.Open, idle.Rest)
	}
	fresh := s.entries["fresh"]["sallyport"].rounds[0]
	whole := s.entries["fresh-whole"]["sallyport"].rounds[0]
	if fresh.Resumed == 0 || whole.Resumed != 0 {
		t.Errorf("sessions resumed: got %d and %d, want some where they are kept and none where not", fresh.Resumed, whole.Resumed)
	}
}

func TestRatio(t *testing.T) {
	more := figure{name: "rate", value: rate}
	less := figure{name: "p50", value: func(r result) float64 { return micros(r.P50) }, less: true}
	k := kind{name: "k", figures: []figure{more, less}}
	s := &survey{kinds: []kind{k}, entries: map[string]map[string]*entry{"k": {
		"goproxy":   {rounds: []result{{Rate: 100, P50: time.Millisecond}, {Rate: 300, P50: time.Millisecond}, {Rate: 200, P50: time.Millisecond}}},
		"sallyport": {rounds: []result{{Rate: 100, P50: 2 * time.Millisecond}}},
	}}}
	got := []string{s.ratio(k, more, baseline), s.ratio(k, less, baseline)}
	if diff := cmp.Diff([]string{"0.50", "0.50"}, got); diff != "" {
		t.Errorf("half as many and twice as long (-want +got):\n%s", diff)
	}
	s.entries["k"]["goproxy"] = &entry{rounds: []result{{Unspoken: true}}}
	if got := s.ratio(k, more, baseline); got != "-" {
		t.Errorf("ratio to what does not speak it: got %s, want -", got)
	}
}

func TestChosen(t *testing.T) {
	for _, c := range []struct {
		list string
		want []string
		err  bool
	}{
		{list: "", want: kindNames()},
		{list: "keep-alive", want: []string{"keep-alive"}},
		{list: "h2,idle", want: []string{"h2", "idle"}},
		{list: "h3", err: true},
	} {
		got, err := chosen(c.list)
		if diff := cmp.Diff(c.want, got); diff != "" || (err != nil) != c.err {
			t.Errorf("chosen(%q): error %v, (-want +got):\n%s", c.list, err, diff)
		}
	}
}
