// Package denials keeps one sandbox's denials, and its connections about which nothing was
// decided, from filling the audit log for all.
package denials

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"sallyport/audit"
)

// Budgets of denials that are events of their own, a second. Those beyond are counted.
const (
	likeBudget    = 10  // of a sandbox for one host, rule and reason
	sandboxBudget = 100 // of a sandbox
	maxAlike      = 128 // kinds of a sandbox's denials that are counted apart
	maxPorts      = 256 // source ports that an event lists of those that it counts
	windowLength  = time.Second
)

// Aggregator writes the first denials of a sandbox in a second as events of their own.
// Those after them become one event that counts them, for each host, rule and reason. It
// is safe for concurrent use.
type Aggregator struct {
	write func(*audit.Event)

	flushing sync.Mutex // one Flush at a time

	mu        sync.Mutex
	sandboxes map[string]*window // by ID
	timer     *time.Timer        // ends the window, nil between windows
}

// window is one sandbox's denials in the current second.
type window struct {
	written int
	alike   map[alike]*tally
	rest    tally // of denials that are in no tally of their own
}

type alike struct{ host, rule, reason string }

type tally struct {
	written int
	folded  *audit.Event // the first that was not written
	count   int          // of those that were not
	ports   []int        // of their sources, sorted
	more    int          // of them that have none of these
}

// New returns an Aggregator that writes with write.
func New(write func(*audit.Event)) *Aggregator {
	return &Aggregator{write: write, sandboxes: make(map[string]*window)}
}

// Add writes a denial now or counts it, and returns the id that the log has, or
// will have, for it.
func (a *Aggregator) Add(host string, e *audit.Event) string {
	x := &e.Unmapped.Sallyport
	key := alike{host: host, reason: x.Reason}
	if e.Rule != nil {
		key.rule = e.Rule.Name
	}
	a.mu.Lock()
	if a.timer == nil {
		a.timer = time.AfterFunc(windowLength, a.Flush)
	}
	f := a.sandboxes[x.SandboxID]
	if f == nil {
		f = &window{alike: make(map[alike]*tally)}
		a.sandboxes[x.SandboxID] = f
	}
	t := f.alike[key]
	switch {
	case t != nil:
	case len(f.alike) < maxAlike:
		t = new(tally)
		f.alike[key] = t
	default:
		t = &f.rest
	}
	if t != &f.rest && t.written < likeBudget && f.written < sandboxBudget {
		t.written++
		f.written++
		a.mu.Unlock()
		a.write(e)
		return e.ID()
	}
	defer a.mu.Unlock()
	if t.folded == nil {
		t.folded = e
	}
	t.count++
	if e.Source != nil {
		t.from(e.Source.Port)
	}
	return t.folded.ID()
}

// from takes note of a source port: each connection has records, if not of its own.
func (t *tally) from(port int) {
	switch at, found := slices.BinarySearch(t.ports, port); {
	case found:
	case len(t.ports) == maxPorts:
		t.more++
	default:
		t.ports = slices.Insert(t.ports, at, port)
	}
}

// Flush ends the second and writes the events that count denials of it.
func (a *Aggregator) Flush() {
	a.flushing.Lock()
	defer a.flushing.Unlock()
	a.mu.Lock()
	ended := a.sandboxes
	a.sandboxes = make(map[string]*window)
	if a.timer != nil {
		a.timer.Stop()
		a.timer = nil
	}
	a.mu.Unlock()
	now := time.Now().UnixMilli()
	for _, f := range ended {
		for _, t := range f.alike {
			a.settle(t, now, "stands for %d of this host, rule and reason within a second")
		}
		a.settle(&f.rest, now, "stands for %d of this and other hosts within a second")
	}
}

func (a *Aggregator) settle(t *tally, now int64, message string) {
	e := t.folded
	if e == nil {
		return
	}
	if t.count > 1 {
		e.Count, e.Message = t.count, fmt.Sprintf(message, t.count)
		e.Unmapped.Sallyport.SourcePorts, e.Unmapped.Sallyport.MoreSources = t.ports, t.more
		e.StartTime, e.Time = e.Time, max(e.Time, now) // the clock may have been set back
	}
	a.write(e)
}
