package auditlog

import (
	"context"
	"iter"
	"time"

	"sallyport/audit"
)

// Record is one line for a reader: a decision with its completion, or an event that stands
// alone as Decision. A completion whose decision was not read is a Record without
// Decision.
type Record struct {
	Decision   *audit.Event `json:"decision,omitempty"`
	Completion *audit.Event `json:"completion,omitempty"`
}

// Bounds on what Pair keeps in memory.
const (
	maxHeld = 10_000 // records held back for their order
	maxOpen = 10_000 // decisions that were yielded without their completion
)

// Pair reads as Read does and yields each decision with its completion, in the
// order of the decisions. A Follow holds a decision back for at most wait; one
// that is completed later is yielded alone first, and once more when complete.
func Pair(ctx context.Context, dir string, q Query, wait time.Duration) iter.Seq2[Record, error] {
	if !q.Follow {
		return Pairs(Read(ctx, dir, q))
	}
	return func(yield func(Record, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		type item struct {
			event *audit.Event
			err   error
		}
		items := make(chan item)
		done := make(chan struct{})
		go func() {
			defer close(done)
			defer close(items)
			for e, err := range Read(ctx, dir, q) {
				select {
				case items <- item{e, err}:
				case <-ctx.Done():
					return
				}
			}
		}()
		defer func() {
			cancel()
			<-done
		}()

		p := newPairer(yield)
		t := time.NewTicker(max(wait/4, time.Millisecond))
		defer t.Stop()
		for !p.stopped {
			select {
			case it, ok := <-items:
				if !ok {
					p.end()
					return
				}
				p.add(it.event, it.err)
			case now := <-t.C:
				p.release(func(h *held) bool { return now.Sub(h.since) >= wait })
			}
		}
	}
}

// Pairs yields events with their completions, as Pair does.
func Pairs(events iter.Seq2[*audit.Event, error]) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		p := newPairer(yield)
		for e, err := range events {
			if p.add(e, err); p.stopped {
				return
			}
		}
		p.end()
	}
}

// pairer holds records back in the order of their decisions.
type pairer struct {
	queue   []*held
	waiting map[string]*held        // in queue without completion, by id of the decision
	open    map[string]*audit.Event // decisions yielded without completion, by id
	order   []string                // of open, oldest first
	yield   func(Record, error) bool
	stopped bool
}

type held struct {
	record Record
	since  time.Time
	ready  bool
}

func newPairer(yield func(Record, error) bool) *pairer {
	return &pairer{waiting: map[string]*held{}, open: map[string]*audit.Event{}, yield: yield}
}

func (p *pairer) end() { p.release(func(*held) bool { return true }) }

func (p *pairer) add(e *audit.Event, err error) {
	if err != nil {
		p.end()
		p.emit(Record{}, err)
		return
	}
	x := &e.Unmapped.Sallyport
	h := &held{record: Record{Decision: e}, since: time.Now(), ready: true}
	switch {
	case x.Kind == audit.KindCompletion:
		id := e.Metadata.CorrelationUID
		if waiting := p.waiting[id]; waiting != nil {
			waiting.record.Completion, waiting.ready = e, true
			delete(p.waiting, id)
			break
		}
		h.record = Record{Decision: p.open[id], Completion: e}
		delete(p.open, id)
		p.queue = append(p.queue, h)
	case x.Kind == audit.KindDecision && e.Action == audit.ActionAllowed:
		h.ready = false
		p.waiting[e.ID()] = h
		p.queue = append(p.queue, h)
	default:
		p.queue = append(p.queue, h)
	}
	excess := len(p.queue) - maxHeld
	p.release(func(*held) bool { excess--; return excess >= 0 })
}

// release yields from the front what is ready or may go as it is.
func (p *pairer) release(mayGo func(*held) bool) {
	for len(p.queue) > 0 && !p.stopped {
		h := p.queue[0]
		if !h.ready && !mayGo(h) {
			return
		}
		p.queue[0] = nil
		p.queue = p.queue[1:]
		if !h.ready {
			p.remember(h.record.Decision)
		}
		p.emit(h.record, nil)
	}
}

func (p *pairer) remember(d *audit.Event) {
	delete(p.waiting, d.ID())
	p.open[d.ID()] = d
	p.order = append(p.order, d.ID())
	if len(p.order) > maxOpen {
		delete(p.open, p.order[0])
		p.order = p.order[1:]
	}
}

func (p *pairer) emit(r Record, err error) {
	if !p.stopped && !p.yield(r, err) {
		p.stopped = true
	}
}
