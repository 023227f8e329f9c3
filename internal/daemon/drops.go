package daemon

import (
	"cmp"
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"sallyport/audit"
	"sallyport/sandbox/datapath"
)

// foldFor is how long drops of one kind are gathered into one record: an
// address resolution that nobody answers is tried each second for some.
const foldFor = 4 * time.Second

// maxFolding bounds the kinds that are gathered at a time; further ones are
// written as they come, at the rate that the datapath bounds.
const maxFolding = 1024

// dropKind is what makes two drops one story.
type dropKind struct {
	generation  uint32
	reason      datapath.Reason
	protocol    uint8
	destination netip.AddrPort
}

type recorder interface{ Enqueue(*audit.Event) error }

// dropLog writes down what the datapath refused, folded.
type dropLog struct {
	trail recorder
	log   *slog.Logger

	mu      sync.Mutex // guards folding
	folding map[dropKind]*folded
}

type folded struct {
	drop  datapath.Drop // the first
	until time.Time
}

func newDropLog(trail recorder, log *slog.Logger) *dropLog {
	return &dropLog{trail: trail, log: log, folding: map[dropKind]*folded{}}
}

func (l *dropLog) add(d datapath.Drop) {
	k := dropKind{d.Generation, d.Reason, d.Protocol, d.Destination}
	l.mu.Lock()
	defer l.mu.Unlock()
	if f, ok := l.folding[k]; ok {
		f.drop.Count += d.Count
		return
	}
	if len(l.folding) == maxFolding {
		l.write(d)
		return
	}
	l.folding[k] = &folded{d, time.Now().Add(foldFor)}
}

// run writes what has been gathered long enough until ctx is done; whoever adds
// writes the rest, after the last one.
func (l *dropLog) run(ctx context.Context) error {
	return every(ctx, foldFor/8, l.flush)
}

// flush writes what is due; the zero time means everything.
func (l *dropLog) flush(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for k, f := range l.folding {
		if now.IsZero() || now.After(f.until) {
			l.write(f.drop)
			delete(l.folding, k)
		}
	}
}

func (l *dropLog) write(d datapath.Drop) {
	e := audit.New(audit.KindDrop, audit.ClassNetwork, audit.NetworkRefuse)
	e.Time = d.Time.UnixMilli()
	e.Action, e.Disposition = audit.ActionDenied, audit.DispositionDropped
	e.SeverityID, e.StatusID = audit.SeverityLow, audit.StatusFailure
	e.Connection = &audit.Connection{ProtocolNum: int(d.Protocol), ProtocolName: protocolName(d)}
	if d.Reason.FromSandbox() {
		e.Connection.Direction = directionOut
		e.Source, e.Destination = audit.Sandboxed(d.Sandbox, d.SandboxID, text(d.Source.Addr())), outside(d.Destination)
	} else {
		e.Connection.Direction = directionIn
		e.Source, e.Destination = outside(d.Source), audit.Sandboxed(d.Sandbox, d.SandboxID, text(d.Destination.Addr()))
	}
	e.Source.Port, e.Source.MAC = int(d.Source.Port()), d.SourceMAC.String()
	e.Destination.Port = int(d.Destination.Port())
	for _, p := range []*audit.Endpoint{e.Source, e.Destination} {
		if p.IP == "" {
			p.Name = cmp.Or(p.Name, "unknown") // OCSF wants more than a MAC address
		}
	}
	e.Count = int(d.Count)
	e.Rule = &audit.Rule{Name: "datapath", Type: "floor"}
	x := &e.Unmapped.Sallyport
	x.Sandbox, x.SandboxID, x.Reason, x.Decision = d.Sandbox, d.SandboxID, d.Reason.String(), "deny"
	events := []*audit.Event{e}
	if d.Reason.Attempt() {
		events = append(events, audit.Finding(audit.FindingBypass, e))
	}
	for _, e := range events {
		if err := l.trail.Enqueue(e); err != nil {
			l.log.Warn("a drop could not be recorded", "error", err)
		}
	}
}

// outside is the endpoint that is no sandbox's.
func outside(a netip.AddrPort) *audit.Endpoint { return &audit.Endpoint{IP: text(a.Addr())} }

// OCSF's connection_info.direction_id, as seen from the sandbox.
const (
	directionIn  = 1
	directionOut = 2
)

func text(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

// protocolName is what a reader calls the protocol of a dropped frame.
func protocolName(d datapath.Drop) string {
	const arp = 0x0806
	switch {
	case d.EtherType == arp:
		return "arp"
	case d.Protocol == syscall.IPPROTO_TCP:
		return "tcp"
	case d.Protocol == syscall.IPPROTO_UDP:
		return "udp"
	case d.Protocol == syscall.IPPROTO_ICMP, d.Protocol == syscall.IPPROTO_ICMPV6:
		return "icmp"
	}
	return ""
}
