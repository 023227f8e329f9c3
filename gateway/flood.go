package gateway

import (
	"fmt"
	"sync"
	"time"

	"sallyport/audit"
)

// Budgets of denials, a second. What is beyond them is counted.
const (
	likeBudget    = 10  // of a sandbox for one host, rule and reason
	sandboxBudget = 100 // of a sandbox
	maxAlike      = 128 // kinds of a sandbox's denials that are counted apart
	floodWindow   = time.Second
)

// floods keeps one sandbox's denials from filling the log for all. The first
// ones in a second are events of their own; those after them become one event
// that counts them, for each host, rule and reason.
type floods struct {
	write func(*audit.Event)

	ending sync.Mutex // one flush at a time

	mu        sync.Mutex
	sandboxes map[string]*flood // by ID
	timer     *time.Timer       // ends the window, nil between windows
}

// flood is one sandbox's denials in the current window.
type flood struct {
	written int
	alike   map[alike]*tally
	rest    tally // of what is in no tally of its own
}

type alike struct{ host, rule, reason string }

type tally struct {
	written int
	folded  *audit.Event // the first that was not written
	count   int          // of those that were not
}

func newFloods(write func(*audit.Event)) *floods {
	return &floods{write: write, sandboxes: make(map[string]*flood)}
}

// add writes a denial now or counts it, and returns the id that the log has, or
// will have, for it.
func (fs *floods) add(host string, e *audit.Event) string {
	x := &e.Unmapped.Sallyport
	key := alike{host: host, reason: x.Reason}
	if e.Rule != nil {
		key.rule = e.Rule.Name
	}
	fs.mu.Lock()
	if fs.timer == nil {
		fs.timer = time.AfterFunc(floodWindow, fs.flush)
	}
	f := fs.sandboxes[x.SandboxID]
	if f == nil {
		f = &flood{alike: make(map[alike]*tally)}
		fs.sandboxes[x.SandboxID] = f
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
		fs.mu.Unlock()
		fs.write(e)
		return e.ID()
	}
	defer fs.mu.Unlock()
	if t.folded == nil {
		t.folded = e
	}
	t.count++
	return t.folded.ID()
}

// flush ends the window and writes what was counted in it.
func (fs *floods) flush() {
	fs.ending.Lock()
	defer fs.ending.Unlock()
	fs.mu.Lock()
	ended := fs.sandboxes
	fs.sandboxes = make(map[string]*flood)
	if fs.timer != nil {
		fs.timer.Stop()
		fs.timer = nil
	}
	fs.mu.Unlock()
	now := time.Now().UnixMilli()
	for _, f := range ended {
		for _, t := range f.alike {
			fs.settle(t, now, "%d denials of this host, rule and reason within a second")
		}
		fs.settle(&f.rest, now, "%d denials of this and other hosts within a second")
	}
}

func (fs *floods) settle(t *tally, now int64, message string) {
	e := t.folded
	if e == nil {
		return
	}
	if t.count > 1 {
		e.Count, e.Message = t.count, fmt.Sprintf(message, t.count)
		e.StartTime, e.Time = e.Time, max(e.Time, now) // the clock may have been set back
	}
	fs.write(e)
}
