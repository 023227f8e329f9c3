package denials

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sallyport/audit"
)

// record is a log that an Aggregator writes to.
type record struct {
	*Aggregator
	told map[string]int // ids that the sandboxes were told

	mu  sync.Mutex
	log []*audit.Event
}

func newRecord() *record {
	d := &record{told: make(map[string]int)}
	d.Aggregator = New(func(e *audit.Event) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.log = append(d.log, e)
	})
	return d
}

func (d *record) deny(sandbox, host string) {
	e := audit.New(audit.KindDecision, audit.ClassHTTP, 3)
	e.Unmapped.Sallyport.SandboxID, e.Unmapped.Sallyport.Reason = sandbox, "no rule"
	e.Destination = &audit.Endpoint{Hostname: host}
	d.told[d.Add(host, e)]++
}

// check counts the denials that the log stands for; each event has the id that
// the sandboxes were told.
func (d *record) check(t *testing.T, events, total int) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	sum := 0
	for _, e := range d.log {
		n := max(e.Count, 1)
		if d.told[e.ID()] != n {
			t.Errorf("event %s stands for %d denials, %d were told that id", e.ID(), n, d.told[e.ID()])
		}
		sum += n
	}
	if len(d.log) != events || sum != total {
		t.Errorf("%d events for %d denials, want %d for %d", len(d.log), sum, events, total)
	}
}

func TestFloodOfDenials(t *testing.T) {
	tests := []struct {
		name   string
		deny   func(*record)
		at     int // events at once
		events int // events after a second
		total  int
	}{
		{"few", func(d *record) {
			for range likeBudget {
				d.deny("a", "x.test")
			}
		}, likeBudget, likeBudget, likeBudget},
		{"many alike", func(d *record) {
			for range 5000 {
				d.deny("a", "x.test")
			}
		}, likeBudget, likeBudget + 1, 5000},
		{"another host is counted apart", func(d *record) {
			for range 50 {
				d.deny("a", "x.test")
				d.deny("a", "y.test")
			}
		}, 2 * likeBudget, 2*likeBudget + 2, 100},
		{"a host for each", func(d *record) {
			for i := range 5000 {
				d.deny("a", fmt.Sprintf("h%d.test", i))
			}
		}, sandboxBudget, maxAlike + 1, 5000},
		{"another sandbox has a budget of its own", func(d *record) {
			for range 5000 {
				d.deny("a", "x.test")
			}
			for range likeBudget {
				d.deny("b", "x.test")
			}
		}, 2 * likeBudget, 2*likeBudget + 1, 5000 + likeBudget},
		{"the next second has a new budget", func(d *record) {
			for range likeBudget {
				d.deny("a", "x.test")
			}
			time.Sleep(windowLength + time.Millisecond)
			for range likeBudget {
				d.deny("a", "x.test")
			}
		}, 2 * likeBudget, 2 * likeBudget, 2 * likeBudget},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newRecord()
				tt.deny(d)
				d.mu.Lock()
				atOnce := len(d.log)
				d.mu.Unlock()
				if atOnce != tt.at {
					t.Errorf("%d events at once, want %d", atOnce, tt.at)
				}
				time.Sleep(windowLength + time.Millisecond)
				synctest.Wait()
				d.check(t, tt.events, tt.total)
				d.Aggregator.mu.Lock()
				defer d.Aggregator.mu.Unlock()
				if len(d.sandboxes) != 0 {
					t.Errorf("%d sandboxes are remembered", len(d.sandboxes))
				}
			})
		})
	}
}

// TestFloodAtShutdown: what was counted is written when the gateway ends.
func TestFloodAtShutdown(t *testing.T) {
	d := newRecord()
	for range 100 {
		d.deny("a", "x.test")
	}
	d.Flush()
	d.check(t, likeBudget+1, 100)
	d.Flush()
	d.check(t, likeBudget+1, 100)
}

// An event never ends before it has begun, though the clock was set back within
// its window.
func TestFloodWhileTheClockIsSetBack(t *testing.T) {
	d := newRecord()
	e := audit.New(audit.KindDecision, audit.ClassHTTP, 3)
	begun := e.Time
	d.settle(&tally{folded: e, count: 2}, begun-time.Hour.Milliseconds(), "%d denials")
	if len(d.log) != 1 || d.log[0].StartTime != begun || d.log[0].Time < begun {
		t.Errorf("from %d to %d, begun at %d", d.log[0].StartTime, d.log[0].Time, begun)
	}
}

// An event names the sources of all that it counts, up to a bound, and counts those beyond.
func TestSourcesOfAFlood(t *testing.T) {
	d := newRecord()
	const number = likeBudget + maxPorts + 50
	for i := range number {
		for range 2 { // two requests of each connection
			e := audit.New(audit.KindDecision, audit.ClassHTTP, 3)
			e.Unmapped.Sallyport.SandboxID, e.Source = "a", &audit.Endpoint{Port: 10_000 + i}
			d.Add("x.test", e)
		}
	}
	d.Flush()
	last := d.log[len(d.log)-1]
	x := &last.Unmapped.Sallyport
	if len(d.log) != likeBudget+1 || len(x.SourcePorts) != maxPorts || x.SourcePorts[0] != last.Source.Port || !slices.IsSorted(x.SourcePorts) {
		t.Errorf("%d events, the last has sources %v", len(d.log), x.SourcePorts)
	}
	if want := last.Count - 2*maxPorts; x.MoreSources != want {
		t.Errorf("%d more, want %d of %d", x.MoreSources, want, last.Count)
	}
}
