package model

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// keptSafety is how many of the snapshots that a restore makes are kept.
const keptSafety = 3

// state is the simple sandbox. It is comparable.
type state struct {
	mode       string // empty: there is none
	label      string
	pids, next int64
	file       string
	store      string
	count      int64
	snaps      string // see keep
	safety     int
	at         int // events of the log that have been seen
}

const (
	stopped    = "stopped"
	running    = "running"
	paused     = "paused"
	hibernated = "hibernated"
)

func (s state) live() bool   { return s.mode == running || s.asleep() }
func (s state) asleep() bool { return s.mode == paused || s.mode == hibernated }

// keep adds a snapshot, a line of snaps.
func (s state) keep(name string, memory bool) state {
	s.snaps += fmt.Sprintf("%s\t%s\t%s\t%d\t%v\n", name, s.file, s.store, s.count, memory)
	return s
}

func (s state) snap(name string) (c Contents, ok bool) {
	for line := range strings.Lines(s.snaps) {
		if f := strings.Split(strings.TrimSuffix(line, "\n"), "\t"); f[0] == name {
			c = Contents{File: f[1], Store: f[2], Live: f[4] == "true"}
			_, err := fmt.Sscan(f[3], &c.Count)
			return c, err == nil
		}
	}
	return c, false
}

// checker is of the sandboxes that have had one name.
type checker struct {
	events []string // of the log
	pids   int64    // that a new one has
	ghosts []Call   // that failed half-way, and may have their effect at any time
}

// log takes the next events off the log, if they are these.
func (c *checker) log(s state, events ...string) (state, bool) {
	end := s.at + len(events)
	if end > len(c.events) || !slices.Equal(c.events[s.at:end], events) {
		return s, false
	}
	s.at = end
	return s, true
}

// phase is the part of a call that is one step.
type phase int

const (
	whole   phase = iota
	waking        // the first part of a use
	perhaps       // the same of one that failed
	effect        // the second
	end           // of all
)

type step struct {
	phase phase
	op    Op
	ended time.Duration
}

// next lists the states that a step can lead to from one; none where the answer is
// not what the sandbox would have said.
func (c *checker) next(s state, i step, r Result) []state {
	one := func(s state, ok bool) []state {
		if !ok {
			return nil
		}
		return []state{s}
	}
	switch {
	case i.phase == end:
		return one(s, s.at == len(c.events))
	case i.phase == perhaps:
		woken, ok := c.run(s)
		return append(one(woken, ok), s)
	case r.Outcome == NoSandbox:
		return one(s, s.mode == "")
	case i.phase == waking:
		return one(c.run(s))
	case i.phase == effect:
		return one(c.effect(s, i, r))
	}
	n, out, ok := c.whole(s, i, r)
	if !ok || out != r.Outcome {
		return nil
	}
	if out != Done || i.op.Verb == Remove || i.op.Verb == Snapshot || i.op.Verb == Fork {
		return one(n, true)
	}
	return one(n, r.State == n.mode && r.Label == n.label && r.Pids == n.pids && r.Next == n.next)
}

// run is what a use does to a sandbox first.
func (c *checker) run(s state) (state, bool) {
	events := map[string]string{stopped: "started", paused: "resumed", hibernated: "woken"}
	e, idle := events[s.mode]
	switch {
	case s.mode == "":
		return s, false
	case !idle:
		return s, true
	case s.mode == stopped:
		s = s.session()
	}
	s.mode = running
	return c.log(s, e)
}

// session begins a new one.
func (s state) session() state {
	s.count = 0
	if s.next != 0 {
		s.pids, s.next = s.next, 0
	}
	return s
}

func (c *checker) effect(s state, i step, r Result) (state, bool) {
	if s.mode != running {
		return s, false
	}
	switch i.op.Verb {
	case WriteFile:
		s.file = i.op.Arg
	case WriteStore:
		s.store = i.op.Arg
	case ReadFile:
		ok := c.holds(s.file, WriteFile, i.ended, r.Text)
		s.file = r.Text
		return s, ok
	case ReadStore:
		ok := c.holds(s.store, WriteStore, i.ended, r.Text)
		s.store = r.Text
		return s, ok
	case Bump:
		ok := c.counts(s.count+1, i.ended, r.Count)
		s.count = r.Count
		return s, ok
	}
	return s, true
}

// holds tells whether a file that should have one text can be seen to have another.
func (c *checker) holds(want string, by Verb, ended time.Duration, got string) bool {
	return got == want || slices.ContainsFunc(c.ghosts, func(g Call) bool {
		return g.Op.Verb == by && g.Op.Arg == got && g.Began <= ended
	})
}

func (c *checker) counts(want int64, ended time.Duration, got int64) bool {
	for _, g := range c.ghosts {
		if g.Op.Verb == Bump && g.Began <= ended && want < got {
			want++
		}
	}
	return got == want
}

// whole does what is no use. ok is false where the log has something else.
func (c *checker) whole(s state, i step, r Result) (n state, out Outcome, ok bool) {
	if i.op.Verb == Create {
		if s.mode != "" {
			return s, Done, r.Created == nil || !*r.Created
		}
		n, ok = c.log(state{mode: stopped, pids: c.pids, at: s.at}, "created")
		return n, Done, ok && (r.Created == nil || *r.Created)
	}
	if s.mode == "" {
		return s, NoSandbox, true
	}
	n, ok = s, true
	switch i.op.Verb {
	case Get:
	case Start:
		n, ok = c.run(s)
	case Wake:
		if s.mode == stopped {
			return s, NoState, true
		}
		n, ok = c.run(s)
	case Pause:
		if s.mode == stopped {
			return s, NoState, true
		}
		if s.mode == running {
			n.mode = paused
			n, ok = c.log(n, "paused")
		}
	case Hibernate:
		if s.mode == stopped {
			return s, NoState, true
		}
		if s.mode != hibernated {
			n.mode = hibernated
			n, ok = c.log(n, "hibernated")
		}
	case Stop:
		if s.live() {
			n.mode, n.count = stopped, 0
			n, ok = c.log(n, "stopped")
		}
	case Remove:
		if s.live() {
			n, ok = c.log(n, "stopped")
		}
		if ok {
			n, ok = c.log(n, "removed")
		}
		n = state{at: n.at}
	case Set:
		n.label, n.next = i.op.Arg, i.op.Pids
		if n.next == n.pids {
			n.next = 0
		}
		n, ok = c.log(n, "changed")
	case Snapshot:
		if i.op.Memory && !s.live() {
			return s, NoState, true
		}
		n, ok = c.log(s.keep(i.op.Arg, i.op.Memory), "snapshot")
	case Restore:
		return c.restore(s, i)
	case Fork:
		want := Contents{File: s.file, Store: s.store, Count: s.count, Live: s.live()}
		if i.op.Arg != "" {
			if want, ok = s.snap(i.op.Arg); !ok {
				return s, NoSnapshot, true
			}
		}
		if !want.Live {
			want.Count = 0
		}
		got := r.Child
		ok = got != nil && got.Live == want.Live && c.holds(want.File, WriteFile, i.ended, got.File) &&
			c.holds(want.Store, WriteStore, i.ended, got.Store) && c.counts(want.Count, i.ended, got.Count)
	default:
		return s, Unknown, false
	}
	return n, Done, ok
}

func (c *checker) restore(s state, i step) (n state, out Outcome, ok bool) {
	to, ok := s.snap(i.op.Arg)
	if !ok {
		return s, NoSnapshot, true
	}
	events := []string{"snapshot"}
	if s.safety++; s.safety > keptSafety {
		s.safety = keptSafety
		events = append(events, "snapshot removed")
	}
	live := s.live()
	if live {
		events = append(events, "stopped")
	}
	events = append(events, "restored")
	n = s
	n.file, n.store = to.File, to.Store
	switch {
	case to.Live:
		// It is another session, whatever its processes remember.
		n = n.session()
		n.mode, n.count = running, to.Count
		events = append(events, "started")
	case live:
		n = n.session()
		n.mode = running
		events = append(events, "started")
	default:
		n.mode, n.count = stopped, 0
	}
	n, ok = c.log(n, events...)
	return n, Done, ok
}
