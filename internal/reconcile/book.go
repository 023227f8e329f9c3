package reconcile

import (
	"math"
	"net/netip"
	"time"

	"sallyport/audit"
	"sallyport/sandbox"
)

// Times of the comparison.
const (
	grace     = 8 * time.Second  // after a flow's first byte, until its record is missing; and without a byte, until all are
	keepEarly = 3 * time.Second  // a record may be read before its flow is seen
	keepMore  = 30 * time.Second // flows may be seen that an event only counts
	keepIdle  = time.Hour        // one that has sent nothing for as long: of a connection that a sandbox resets the host says nothing more
)

// maxEarly bounds the records whose flows were not seen yet. Beyond it, flows are not
// compared for a while.
const maxEarly = 1 << 16

// book has the flows with what is recorded of them. It is not safe for concurrent use.
type book struct {
	sources map[netip.AddrPort]*source
	more    map[netip.Addr]more
	early   int           // records in sources
	since   time.Duration // what began until then is not compared
	open    int           // flows after the last judgement
	skipped int           // flows that were not compared, and had no record
}

// source is a port of a sandbox: nearly always one connection, or none that was seen yet.
type source struct {
	entries []*entry
	early   []record // of flows that were not seen yet
}

type entry struct {
	flow    sandbox.Connection
	changed time.Duration // when more was sent
	listed  bool          // the kernel still has it
	done    bool          // there is nothing more to find
	recorded
}

// recorded is what records say of a flow.
type recorded struct {
	events  int64 // of which each may have a head
	bodies  int64 // of which each may have a body that was read and not sent on
	in, out int64 // bytes
	open    int   // allowed decisions without completion
}

type record struct {
	recorded
	port uint16 // that was dialled
	many bool   // it stands for other sources too
	read time.Duration
}

// more are events that were counted in others, whose sources nobody has listed.
type more struct {
	flows int
	until time.Duration
}

func newBook(now time.Duration) *book {
	return &book{sources: map[netip.AddrPort]*source{}, more: map[netip.Addr]more{}, since: now}
}

// trouble says that what began until now cannot be compared.
func (b *book) trouble(now time.Duration) { b.since = now }

// see takes in the kernel's list of flows, which was read at now.
func (b *book) see(now time.Duration, flows []sandbox.Connection) {
	for _, s := range b.sources {
		for _, e := range s.entries {
			e.listed = false
		}
	}
	for _, f := range flows {
		s := b.source(f.Source)
		e := s.find(f)
		if e == nil {
			e = &entry{flow: f, changed: now}
			s.entries = append(s.entries, e)
			for _, r := range s.early {
				if r.read >= f.Opened {
					e.add(r)
				}
			}
		}
		if f.Sent != e.flow.Sent {
			e.changed = now
		}
		if f.Sandbox == "" { // detached meanwhile
			f.Sandbox, f.SandboxID = e.flow.Sandbox, e.flow.SandboxID
		}
		e.flow, e.listed = f, true
	}
}

func (b *book) source(a netip.AddrPort) *source {
	s := b.sources[a]
	if s == nil {
		s = new(source)
		b.sources[a] = s
	}
	return s
}

func (s *source) find(f sandbox.Connection) *entry {
	for _, e := range s.entries {
		if e.flow.Destination == f.Destination && e.flow.Opened == f.Opened {
			return e
		}
	}
	return nil
}

// sourceOf is where an event's connection comes from, if it is of one.
func sourceOf(e *audit.Event) (netip.AddrPort, bool) {
	switch e.Unmapped.Sallyport.Kind {
	case audit.KindDecision, audit.KindCompletion:
	case audit.KindConnection:
		if e.Traffic != nil { // of a finding
			return netip.AddrPort{}, false
		}
	default:
		return netip.AddrPort{}, false
	}
	if e.Source == nil || e.Source.Port <= 0 || e.Source.Port > math.MaxUint16 {
		return netip.AddrPort{}, false
	}
	ip, err := netip.ParseAddr(e.Source.IP)
	return netip.AddrPortFrom(ip.Unmap(), uint16(e.Source.Port)), err == nil
}

// record takes in an event of the log, which was read by now.
func (b *book) record(now time.Duration, from netip.AddrPort, e *audit.Event) {
	x := &e.Unmapped.Sallyport
	if x.MoreSources > 0 {
		b.more[from.Addr()] = more{b.more[from.Addr()].flows + x.MoreSources, now + keepMore}
	}
	r := record{recorded: of(e), read: now, many: len(x.SourcePorts) > 0}
	if e.Destination != nil {
		r.port = uint16(e.Destination.Port)
	}
	b.note(from, r)
	for _, port := range x.SourcePorts {
		if port != e.Source.Port {
			b.note(netip.AddrPortFrom(from.Addr(), uint16(port)), r)
		}
	}
}

// of is what an event says of the flow that it is of, or of each.
func of(e *audit.Event) recorded {
	x := &e.Unmapped.Sallyport
	r := recorded{events: int64(max(e.Count, 1))}
	if t := e.Traffic; t != nil {
		r.in, r.out = t.BytesIn, t.BytesOut
	}
	if x.Kind == audit.KindCompletion {
		r.open = -1
		return r
	}
	if e.Action == audit.ActionAllowed {
		r.open = 1
	}
	if q := e.HTTPRequest; q != nil && (q.Length > 0 || x.Unsized) {
		r.bodies = r.events
	}
	return r
}

func (b *book) note(from netip.AddrPort, r record) {
	s := b.source(from)
	known := false
	for _, e := range s.entries {
		known = e.add(r) && e.listed && !e.flow.Closed || known
	}
	if known { // else it may be of one that has the port next
		return
	}
	if b.early == maxEarly {
		b.trouble(r.read)
		return
	}
	s.early = append(s.early, r)
	b.early++
}

// add counts a record, unless it cannot be of the flow. One that stands for many may be of
// another destination's.
func (e *entry) add(r record) bool {
	if r.port != e.flow.Destination.Port() && !r.many {
		return false
	}
	e.events += r.events
	e.bodies += r.bodies
	e.in += r.in
	e.out += r.out
	e.open += r.open
	return true
}

// Bounds of bytes that a flow may send beyond those of its records, by far more than honest
// traffic does.
const (
	perFlow   = 1 << 20   // handshakes, what was refused unread
	perSecond = 1 << 10   // pings and the like, of a connection that idles for days
	perEvent  = 256 << 10 // a head, of 128 KiB at most, with what was read ahead of it
	perBody   = 2 << 20   // a body that was read to judge it, of 1 MiB at most, or drained
	// A byte in a message, a frame and a TLS record of its own takes 48.
	perByteOut = 48
	// A client of HTTP/2 answers each frame by two of its own, of 48 bytes in a TLS record.
	perByteIn = 4
)

// excess is by how many bytes a flow has sent more than its records can account for.
// Retransmissions are not in what a flow has sent.
func (e *entry) excess(now time.Duration) int64 {
	bound := perFlow + perSecond*int64((now-e.flow.Opened)/time.Second) + perEvent*e.events + perBody*e.bodies + perByteOut*e.out + perByteIn*e.in
	return int64(e.flow.Sent) - bound
}

// judge returns what is to be found at now, when the log has been read to its end, and
// the flows that the kernel may forget.
func (b *book) judge(now time.Duration) (found []Finding, forget []sandbox.Connection) {
	b.open = 0
	for from, s := range b.sources {
		kept := s.entries[:0]
		for _, e := range s.entries {
			if f := b.look(e, now); f.What != "" {
				found = append(found, f)
			}
			switch {
			case !e.over(now):
				kept = append(kept, e)
				b.open++
			case e.listed:
				forget = append(forget, e.flow)
			}
		}
		clear(s.entries[len(kept):])
		s.entries = kept
		for len(s.early) > 0 && s.early[0].read+keepEarly < now {
			s.early = s.early[1:]
			b.early--
		}
		if len(s.entries)+len(s.early) == 0 {
			delete(b.sources, from)
		}
	}
	for a, m := range b.more {
		if m.until < now {
			delete(b.more, a)
		}
	}
	return found, forget
}

// look judges one flow.
func (b *book) look(e *entry, now time.Duration) Finding {
	switch {
	case e.done || e.flow.Begun == 0:
	case e.flow.Begun <= b.since:
		e.done = true
		if e.events == 0 {
			b.skipped++
		}
	case e.events == 0 && now-e.flow.Begun >= grace:
		e.done = true
		if m := b.more[e.flow.Source.Addr()]; m.flows > 0 {
			m.flows--
			b.more[e.flow.Source.Addr()] = m
			break
		}
		return Finding{What: audit.FindingUnrecorded, Flow: e.flow, Count: 1}
	case e.events > 0 && e.open <= 0 && now-e.changed >= grace && e.excess(now) > 0:
		e.done = true
		return Finding{What: audit.FindingUnaccounted, Flow: e.flow, Excess: e.excess(now), Count: 1}
	}
	return Finding{}
}

// over says that nothing more is expected of a flow: it was judged, and has ended, idles or is
// forgotten by the kernel.
func (e *entry) over(now time.Duration) bool {
	if e.listed && !e.flow.Closed {
		return e.open <= 0 && now-e.changed > keepIdle
	}
	return e.done || e.flow.Begun == 0 || e.events > 0 && (e.flow.Sent < perFlow || e.open <= 0 && now-e.changed > grace)
}
