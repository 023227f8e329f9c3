package model

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// Event is one of the audit log about a sandbox, in the log's order.
type Event struct {
	Name, ID, Session, State string
}

// Check says what is wrong with calls and events, or nil. pids is what a new
// sandbox may have of processes, patience for how long an order is looked for, of
// each name.
func Check(calls []Call, events []Event, pids int64, patience time.Duration) error {
	names := map[string]bool{}
	for _, c := range calls {
		names[c.Op.Name] = true
	}
	for name := range names {
		if err := check(name, calls, events, pids, patience); err != nil {
			return err
		}
	}
	return nil
}

func check(name string, calls []Call, events []Event, pids int64, patience time.Duration) error {
	c := &checker{pids: pids}
	for _, e := range events {
		if e.Name == name {
			c.events = append(c.events, e.State)
		}
	}
	var history []porcupine.Operation
	var mine []Call
	last := time.Duration(0)
	add := func(k Call, p phase) {
		history = append(history, porcupine.Operation{
			ClientId: k.Client, Input: step{p, k.Op, k.Ended}, Output: k.Result, Call: int64(k.Began), Return: int64(k.Ended),
		})
	}
	for _, k := range calls {
		if k.Op.Name != name {
			continue
		}
		mine, last = append(mine, k), max(last, k.Ended)
		switch use := k.Op.Verb.use(); {
		case k.Result.Outcome == Unknown && !use:
			return fmt.Errorf("a call failed: %v", k)
		case !use:
			add(k, whole)
		// A command's sandbox is run before its client is told that it begins, and
		// again, should another have stopped it since, when it does.
		case k.Result.Outcome == NoSandbox:
			add(k, perhaps)
			add(k, whole)
		case k.Result.Outcome == Unknown:
			c.ghosts = append(c.ghosts, k)
			add(k, perhaps)
			add(k, perhaps)
		default:
			add(k, waking)
			add(k, waking)
			add(k, effect)
		}
	}
	history = append(history, porcupine.Operation{Input: step{phase: end}, Output: Result{}, Call: int64(last) + 1, Return: math.MaxInt64})
	m := porcupine.NondeterministicModel{
		Init: func() []any { return []any{state{}} },
		Step: func(s, in, out any) (list []any) {
			for _, n := range c.next(s.(state), in.(step), out.(Result)) {
				list = append(list, n)
			}
			return list
		},
	}
	model := m.ToModel()
	switch porcupine.CheckOperationsTimeout(model, history, patience) {
	case porcupine.Ok:
		return nil
	case porcupine.Unknown:
		return fmt.Errorf("%s: no order of its %d calls was found within %v, nor that there is none", name, len(mine), patience)
	}
	return fmt.Errorf("%s: what clients were told and what is recorded fit no order of the calls:\n%s\nrecorded: %s%s",
		name, describe(mine), strings.Join(c.events, ", "), reached(model, history))
}

func describe(calls []Call) string {
	slices.SortFunc(calls, func(a, b Call) int { return int(a.Began - b.Began) })
	var b strings.Builder
	for _, c := range calls {
		fmt.Fprintln(&b, c)
	}
	return b.String()
}

// reached tells how far the longest order comes that there is, and what it leaves.
func reached(m porcupine.Model, history []porcupine.Operation) string {
	_, info := porcupine.CheckOperationsVerbose(m, history, time.Second)
	var best []porcupine.Operation
	for _, p := range info.PartialLinearizationsOperations() {
		for _, order := range p {
			if len(order) > len(best) {
				best = order
			}
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\nthe longest order has %d of %d steps", len(best), len(history))
	if len(best) > 0 {
		var s any = m.Init()
		for _, o := range best {
			_, s = m.Step(s, o.Input, o.Output)
		}
		fmt.Fprintf(&b, ", ends with %v and leads to %+v", best[len(best)-1].Input, s)
	}
	return b.String()
}

// moves are the events that a sandbox can have in each state, and where they lead.
var moves = map[string]map[string]string{
	"":         {"created": stopped},
	stopped:    {"started": running, "removed": "", "restored": stopped, "failed": stopped, "recovered": stopped},
	running:    {"paused": paused, "hibernated": hibernated, "stopped": stopped},
	paused:     {"resumed": running, "hibernated": hibernated, "stopped": stopped},
	hibernated: {"woken": running, "stopped": stopped},
}

// Path says whether the events of each name are ones that a sandbox can have, each
// of the sandbox and the session that it then was; and returns what each is in the
// end.
func Path(events []Event) (states map[string]string, err error) {
	states = map[string]string{}
	type who struct{ id, session string }
	is := map[string]who{}
	sessions := map[string]bool{}
	for n, e := range events {
		wrong := func(format string, a ...any) error {
			return fmt.Errorf("event %d, %s of %s, which is %q: %s", n, e.State, e.Name, states[e.Name], fmt.Sprintf(format, a...))
		}
		from := states[e.Name]
		to, ok := moves[from][e.State]
		switch {
		case ok:
		case from != "" && (e.State == "snapshot" || e.State == "snapshot removed" || e.State == "changed"):
			to = from
		default:
			return states, wrong("it cannot have that")
		}
		w := is[e.Name]
		switch e.State {
		case "created":
			w = who{id: e.ID}
		case "started":
			if e.Session == "" || sessions[e.Session] {
				return states, wrong("its session %q is none, or not a new one", e.Session)
			}
			sessions[e.Session], w.session = true, e.Session
		}
		if e.ID != w.id || e.Session != w.session {
			return states, wrong("it is of sandbox %s and session %q, and not of %s and %q", e.ID, e.Session, w.id, w.session)
		}
		if e.State == "stopped" {
			w.session = ""
		}
		is[e.Name], states[e.Name] = w, to
	}
	return states, nil
}
