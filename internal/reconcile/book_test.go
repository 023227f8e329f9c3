package reconcile

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"sallyport/audit"
	box "sallyport/sandbox"
)

// world is a kernel with flows and a log without a gateway: each second all that there is
// is compared, and what is found is noted with the time.
type world struct {
	b     *book
	now   time.Duration
	flows []box.Connection
	log   []*audit.Event // not read yet
	found []string
}

func newWorld() *world {
	const boot = 1000 * time.Second
	return &world{b: newBook(boot), now: boot}
}

// pass lets time pass, in seconds.
func (w *world) pass(seconds int) {
	for range seconds {
		w.now += time.Second
		w.b.see(w.now, w.flows)
		for _, e := range w.log {
			if from, ok := sourceOf(e); ok {
				w.b.record(w.now+time.Millisecond, from, e)
			}
		}
		w.log = nil
		found, forget := w.b.judge(w.now)
		for _, f := range found {
			w.found = append(w.found, fmt.Sprintf("%s %d", f.What, f.Flow.Source.Port()))
		}
		w.flows = slices.DeleteFunc(w.flows, func(f box.Connection) bool {
			return slices.ContainsFunc(forget, func(g box.Connection) bool { return g.Source == f.Source && g.Opened == f.Opened })
		})
	}
}

var (
	inside  = netip.MustParseAddr("10.231.0.10")
	dialled = netip.MustParseAddrPort("198.18.0.7:443")
)

// open opens a flow half a second ago, and has it send bytes.
func (w *world) open(port uint16, sent uint64) *box.Connection {
	f := box.Connection{
		Sandbox: "demo", SandboxID: "id", Source: netip.AddrPortFrom(inside, port), Destination: dialled,
		Opened: w.now + time.Second/2, Sent: sent,
	}
	if sent > 0 {
		f.Begun = f.Opened + time.Millisecond
	}
	w.flows = append(w.flows, f)
	return &w.flows[len(w.flows)-1]
}

// event is one of a connection of the sandbox's from a port.
func (w *world) event(kind audit.Kind, port int, change ...func(e *audit.Event)) {
	e := audit.New(kind, audit.ClassHTTP, 3)
	e.Source = &audit.Endpoint{IP: inside.String(), Port: port}
	e.Destination = &audit.Endpoint{Hostname: "api.example.test", Port: 443}
	if kind != audit.KindConnection {
		e.Action = audit.ActionAllowed
	}
	for _, c := range change {
		c(e)
	}
	w.log = append(w.log, e)
}

func denied(e *audit.Event) { e.Action = audit.ActionDenied }

func carried(in, out int64) func(*audit.Event) {
	return func(e *audit.Event) { e.Traffic = &audit.Traffic{BytesIn: in, BytesOut: out} }
}

func folded(count, more int, ports ...int) func(*audit.Event) {
	return func(e *audit.Event) {
		denied(e)
		e.Count, e.Unmapped.Sallyport.SourcePorts, e.Unmapped.Sallyport.MoreSources = count, ports, more
	}
}

func TestBook(t *testing.T) {
	for _, tt := range []struct {
		name string
		play func(w *world)
		want string // findings
	}{
		{"a request", func(w *world) {
			w.open(40000, 900)
			w.event(audit.KindDecision, 40000)
			w.event(audit.KindCompletion, 40000, carried(100, 200))
			w.pass(20)
		}, ""},
		{"a denial", func(w *world) {
			w.open(40000, 900)
			w.event(audit.KindDecision, 40000, denied)
			w.pass(20)
		}, ""},
		{"nothing is decided for minutes", func(w *world) {
			w.open(40000, 900)
			w.pass(6)
			w.event(audit.KindConnection, 40000)
			w.pass(300)
		}, ""},
		{"recorded before it is seen", func(w *world) {
			w.event(audit.KindDecision, 40000)
			w.pass(1)
			f := w.open(40000, 900)
			f.Opened -= time.Second
			f.Begun -= time.Second
			w.pass(20)
		}, ""},
		{"no byte", func(w *world) {
			w.open(40000, 0)
			w.pass(20)
			w.flows[0].Closed, w.flows[0].Sent = true, 1
			w.pass(20)
		}, ""},
		{"the first byte after a minute", func(w *world) {
			w.open(40000, 0)
			w.pass(60)
			w.flows[0].Begun, w.flows[0].Sent = w.now, 900
			w.pass(3)
			w.event(audit.KindDecision, 40000)
			w.pass(20)
		}, ""},
		{"recorded an hour ago, and goes on", func(w *world) {
			w.open(40000, 900)
			w.event(audit.KindDecision, 40000)
			w.event(audit.KindCompletion, 40000)
			w.pass(3600)
			w.flows[0].Sent += 900
			w.pass(20)
		}, ""},
		{"from before this process", func(w *world) {
			f := w.open(40000, 900)
			f.Opened, f.Begun = f.Opened-time.Minute, f.Begun-time.Minute
			w.pass(20)
		}, ""},
		{"trouble in between", func(w *world) {
			w.open(40000, 900)
			w.pass(3)
			w.b.trouble(w.now)
			w.pass(20)
		}, ""},
		{"many denials in one event", func(w *world) {
			for port := range 30 {
				w.open(uint16(40000+port), 900)
			}
			ports := make([]int, 30)
			for i := range ports {
				ports[i] = 40000 + i
			}
			w.event(audit.KindDecision, 40000, folded(30, 0, ports...))
			w.pass(20)
		}, ""},
		{"denials whose sources are no longer listed", func(w *world) {
			for port := range 30 {
				w.open(uint16(40000+port), 900)
			}
			w.event(audit.KindDecision, 40000, folded(31, 29, 40000, 40001))
			w.pass(20)
		}, ""},
		{"a large upload", func(w *world) {
			w.open(40000, 900)
			w.event(audit.KindDecision, 40000)
			for range 30 {
				w.flows[0].Sent += 10 << 20
				w.pass(1)
			}
			w.pass(60) // the upstream takes its time
			w.event(audit.KindCompletion, 40000, carried(1000, 300<<20))
			w.pass(20)
		}, ""},
		{"a byte a message, in frames and TLS records of their own", func(w *world) {
			w.open(40000, 40<<20)
			w.event(audit.KindDecision, 40000)
			w.event(audit.KindCompletion, 40000, carried(1000, 1<<20))
			w.pass(20)
		}, ""},
		{"window updates of a large download", func(w *world) {
			w.open(40000, 200<<20)
			w.event(audit.KindDecision, 40000)
			w.event(audit.KindCompletion, 40000, carried(10<<30, 0))
			w.pass(20)
		}, ""},
		{"pings for a month", func(w *world) {
			w.open(40000, 900)
			w.event(audit.KindDecision, 40000)
			w.event(audit.KindCompletion, 40000)
			w.flows[0].Opened -= 30 * 24 * time.Hour
			w.pass(1)
			w.flows[0].Sent = 39 * 30 * 24 * 3600 / 10 // each ten seconds
			w.pass(20)
		}, ""},
		{"requests with bodies that were read to judge them", func(w *world) {
			w.open(40000, 100<<20)
			for range 100 {
				w.event(audit.KindDecision, 40000, denied, func(e *audit.Event) { e.HTTPRequest = &audit.HTTPRequest{Length: 1 << 20} })
			}
			w.pass(20)
		}, ""},
		{"the port again, both recorded", func(w *world) {
			w.open(40000, 900).Closed = true
			w.event(audit.KindDecision, 40000)
			w.pass(1)
			w.open(40000, 900)
			w.event(audit.KindDecision, 40000)
			w.pass(20)
		}, ""},

		{"no record", func(w *world) {
			w.open(40000, 900)
			w.pass(8)
			if len(w.found) != 0 {
				w.found = append(w.found, "too early")
			}
			w.pass(2) // ten seconds after it was opened, less a half
		}, "unrecorded-flow 40000"},
		{"no record, and it was closed at once", func(w *world) {
			w.open(40000, 900).Closed = true
			w.pass(20)
			if len(w.flows) != 0 {
				w.found = append(w.found, "is kept")
			}
		}, "unrecorded-flow 40000"},
		{"no record, and the kernel forgets it", func(w *world) {
			w.open(40000, 900)
			w.pass(1)
			w.flows = nil
			w.pass(20)
		}, "unrecorded-flow 40000"},
		{"a record of another port", func(w *world) {
			w.open(40000, 900)
			w.event(audit.KindDecision, 40001)
			w.pass(20)
		}, "unrecorded-flow 40000"},
		{"a record of another destination's port", func(w *world) {
			w.open(40000, 900)
			w.event(audit.KindDecision, 40000, func(e *audit.Event) { e.Destination.Port = 80 })
			w.pass(20)
		}, "unrecorded-flow 40000"},
		{"a record of a lifecycle", func(w *world) {
			w.open(40000, 900)
			w.event(audit.KindLifecycle, 40000)
			w.pass(20)
		}, "unrecorded-flow 40000"},
		{"the port again, the second not recorded", func(w *world) {
			w.open(40000, 900).Closed = true
			w.event(audit.KindDecision, 40000)
			w.pass(1)
			w.open(40000, 900)
			w.pass(20)
		}, "unrecorded-flow 40000"},
		{"the port again at once, the first not recorded", func(w *world) {
			w.open(40000, 900)
			w.pass(1)
			w.flows = nil
			w.open(40000, 900)
			w.pass(20)
		}, "unrecorded-flow 40000 unrecorded-flow 40000"},
		{"one more than an event counts", func(w *world) {
			for port := range 31 {
				w.open(uint16(40000+port), 900)
			}
			w.event(audit.KindDecision, 39999, folded(30, 30))
			w.pass(8)
			w.flows = w.flows[:0]
			w.pass(2)
			for i := range w.found {
				w.found[i] = "unrecorded-flow"
			}
		}, "unrecorded-flow"},
		{"after trouble", func(w *world) {
			w.b.trouble(w.now)
			w.open(40000, 900)
			w.pass(20)
		}, "unrecorded-flow 40000"},
		{"an upload that its record makes a request of", func(w *world) {
			w.open(40000, 100<<20)
			w.event(audit.KindDecision, 40000)
			w.event(audit.KindCompletion, 40000, carried(1<<20, 1<<20))
			w.pass(20)
		}, "unaccounted-bytes 40000"},
		{"an upload behind a denial", func(w *world) {
			w.open(40000, 10<<20).Closed = true
			w.event(audit.KindDecision, 40000, denied)
			w.pass(20)
		}, "unaccounted-bytes 40000"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld()
			tt.play(w)
			if got := strings.Join(w.found, " "); got != tt.want {
				t.Errorf("found %q, want %q", got, tt.want)
			}
		})
	}
}

// A flow that is over is not kept.
func TestBookForgets(t *testing.T) {
	w := newWorld()
	for round := range 10 {
		for port := range 100 {
			at := 40000 + 100*round + port
			w.open(uint16(at), 900).Closed = true
			w.event(audit.KindDecision, at)
			w.pass(1)
			w.event(audit.KindCompletion, at)
		}
	}
	w.pass(10)
	if len(w.flows) != 0 || len(w.b.sources) != 0 || w.b.early != 0 || w.b.open != 0 || len(w.found) != 0 {
		t.Errorf("%d flows, %d sources, %d records, %d open, found %v", len(w.flows), len(w.b.sources), w.b.early, w.b.open, w.found)
	}
}

// A connection that was reset looks as if it idled: that has an end too.
func TestBookForgetsWhatIdles(t *testing.T) {
	w := newWorld()
	w.open(40000, 900)
	w.open(40001, 0)
	w.open(40002, 900)
	w.event(audit.KindDecision, 40000, denied)
	w.event(audit.KindDecision, 40002) // and goes on
	w.pass(int(keepIdle/time.Second) - 5)
	if len(w.flows) != 3 {
		t.Errorf("%d flows are left", len(w.flows))
	}
	w.pass(20)
	if len(w.flows) != 1 || w.flows[0].Source.Port() != 40002 || len(w.found) != 0 {
		t.Errorf("%v are left, found %v", w.flows, w.found)
	}
}

// Records of flows that are never seen have a bound, and beyond it nothing is compared.
func TestBookIsBounded(t *testing.T) {
	w := newWorld()
	w.open(40000, 900)
	e := audit.New(audit.KindDecision, audit.ClassHTTP, 3)
	for i := range maxEarly + 1 {
		a := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 231, byte(1 + i>>16), 1}), uint16(i))
		w.b.record(w.now+time.Second, a, e)
	}
	if w.b.early != maxEarly {
		t.Errorf("%d are kept", w.b.early)
	}
	w.pass(20)
	if w.b.skipped != 1 || len(w.found) != 0 {
		t.Errorf("%d were not compared, found %v", w.b.skipped, w.found)
	}
}

// A sandbox's findings are told at once and then once a minute, with their number.
func TestFindingsAreBounded(t *testing.T) {
	tell := teller{}
	var got []string
	for second := range 130 {
		var found []Finding
		if second < 100 {
			for _, of := range []string{"a", "b"} {
				f := Finding{What: audit.FindingUnrecorded, Count: 1}
				f.Flow.SandboxID, f.Flow.Sandbox = of, of
				if of == "a" || second == 0 {
					found = append(found, f)
				}
			}
		}
		for _, f := range tell.add(time.Duration(second)*time.Second, found) {
			got = append(got, fmt.Sprintf("%d %s %d", second, f.Flow.Sandbox, f.Count))
		}
	}
	slices.Sort(got)
	if want := "[0 a 1 0 b 1 120 a 39 60 a 60]"; fmt.Sprint(got) != want {
		t.Errorf("got %v, want %s", got, want)
	}
	tell.add(time.Hour, nil)
	if len(tell) != 0 {
		t.Errorf("%d are kept", len(tell))
	}
}
