package webhook

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"sallyport/audit/auditlog"
	"sallyport/sandbox/client"
)

// Bounds of what is read ahead of what is sent.
const (
	ahead    = 16     // events of a lane
	scanTurn = 10_000 // of the log between two rounds
)

// lane is what waits of one owner, or of a sandbox of the host's own. Lanes take turns, an
// event each, so that neither a backlog of one nor an event that the server does not
// take holds up the others.
type lane struct {
	waiting []client.Event
	behind  bool // more of it is in the log, from there on
	from    uint64
	again   time.Time // when its first may be sent once more
	pause   time.Duration
}

func laneOf(e client.Event) string { return cmp.Or(e.Owner, e.SandboxID) }

// lanes are those of a server, and how far the log has been read for them.
type lanes struct {
	s    *Sender
	next uint64
	more bool // a turn has ended, and not the log
	of   map[string]*lane
}

// errRead says that the log cannot be read, for which the daemon goes on.
var errRead = errors.New("the audit log cannot be read")

// read calls take with the events that are wanted from a number on, until it says no or
// its turn is over, and returns the number after the last one that it has seen and
// whether that was for its turn.
func (s *Sender) read(ctx context.Context, from uint64, follow bool, take func(client.Event) bool) (next uint64, more bool, err error) {
	n := 0
	for e, err := range auditlog.Undamaged(s.opt.Events(ctx, from, follow)) {
		if err != nil {
			return from, false, errors.Join(errRead, err)
		}
		told, ok := client.EventOf(e)
		if ok && s.wants(told.Type) && !take(told) {
			return from, false, nil
		}
		if from = e.Metadata.Sequence + 1; follow {
			break
		}
		if n++; n == scanTurn {
			return from, true, nil
		}
	}
	return from, false, nil
}

// gather reads the log on, and what was passed over of lanes that have room again.
func (l *lanes) gather(ctx context.Context, follow bool) (err error) {
	l.next, l.more, err = l.s.read(ctx, l.next, follow, func(e client.Event) bool {
		name := laneOf(e)
		if e.Position <= l.s.at.Ahead[name] {
			return true
		}
		of := l.of[name]
		if of == nil {
			of = new(lane)
			l.of[name] = of
		}
		switch {
		case of.behind:
		case len(of.waiting) >= ahead:
			of.behind, of.from = true, e.Position
		default:
			of.waiting = append(of.waiting, e)
		}
		return true
	})
	if err != nil {
		return err
	}
	for name, of := range l.of {
		if !of.behind || len(of.waiting) > 0 {
			continue
		}
		more := false
		of.from, more, err = l.s.read(ctx, of.from, false, func(e client.Event) bool {
			if e.Position >= l.next || len(of.waiting) >= ahead {
				return false
			}
			if laneOf(e) == name {
				of.waiting = append(of.waiting, e)
			}
			return true
		})
		if err != nil {
			return err
		}
		of.behind, l.more = of.from < l.next, l.more || more
	}
	return nil
}

// settle notes how far the server is: everything up to Seen, and of each lane what was
// sent beyond that.
func (l *lanes) settle() {
	seen := l.next - 1
	for name, of := range l.of {
		switch {
		case len(of.waiting) > 0:
			seen = min(seen, of.waiting[0].Position-1)
		case of.behind:
			seen = min(seen, of.from-1)
		default:
			delete(l.of, name)
		}
	}
	l.s.at.Seen = seen
	maps.DeleteFunc(l.s.at.Ahead, func(_ string, position uint64) bool { return position <= seen })
}

// round sends an event of each lane whose turn it is, and says how long nothing is to be
// done then.
func (l *lanes) round(ctx context.Context) (idle time.Duration, gone bool, err error) {
	idle = l.s.firstTry
	for _, name := range slices.Sorted(maps.Keys(l.of)) {
		of := l.of[name]
		if len(of.waiting) == 0 || time.Until(of.again) > 0 {
			continue
		}
		e := of.waiting[0]
		done, gone, err := l.s.deliver(ctx, name, e)
		if err != nil || gone || ctx.Err() != nil {
			return 0, gone, err
		}
		if !done {
			of.pause = min(max(2*of.pause, l.s.firstTry), l.s.lastTry)
			of.again = time.Now().Add(jitter(of.pause))
			continue
		}
		of.waiting, of.pause, idle = of.waiting[1:], 0, 0
		l.s.at.Ahead[name] = e.Position
		delete(l.s.at.Since, name)
		l.settle()
		if err := l.s.keep(); err != nil {
			return 0, false, err
		}
	}
	return idle, false, nil
}
