// Package drops records the packets that the datapath drops: those of one kind that follow
// each other are one audit event, and what only an attempt to get around the gateway can be is a
// finding too.
package drops

import (
	"cmp"
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"sallyport/audit"
	"sallyport/internal/periodic"
	"sallyport/sandbox"
	"sallyport/sandbox/datapath"
)

// foldFor is how long drops of one kind are gathered into one record: an
// address resolution that nobody answers is tried each second for some.
const foldFor = 4 * time.Second

// maxFolding bounds the kinds that are gathered at a time; further ones are
// written as they come, at the rate that the datapath bounds.
const maxFolding = 1024

// kind is what makes two drops one story.
type kind struct {
	generation  uint32
	reason      datapath.Reason
	protocol    uint8
	destination netip.AddrPort
}

// Recorder is the audit log.
type Recorder interface{ Enqueue(*audit.Event) error }

// Log records drops. It is safe for concurrent use.
type Log struct {
	trail Recorder
	// running are the sandboxes by their addresses: what a record says of one is looked up there.
	running func() map[netip.Addr]sandbox.Info
	log     *slog.Logger

	mu      sync.Mutex // guards folding
	folding map[kind]*folded
}

type folded struct {
	drop  datapath.Drop // the first
	until time.Time
}

// New returns a Log without drops.
func New(trail Recorder, running func() map[netip.Addr]sandbox.Info, log *slog.Logger) *Log {
	return &Log{trail: trail, running: running, log: log, folding: map[kind]*folded{}}
}

// Add takes one drop, or several that the datapath has counted together.
func (l *Log) Add(d datapath.Drop) {
	k := kind{d.Generation, d.Reason, d.Protocol, d.Destination}
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

// Run writes what has been gathered long enough until ctx is done. The caller of Add calls
// Flush after the last drop.
func (l *Log) Run(ctx context.Context) error {
	return periodic.Run(ctx, foldFor/8, l.flush)
}

// Flush writes all that has been gathered.
func (l *Log) Flush() { l.flush(time.Time{}) }

// flush writes what is due; the zero time means everything.
func (l *Log) flush(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for k, f := range l.folding {
		if now.IsZero() || now.After(f.until) {
			l.write(f.drop)
			delete(l.folding, k)
		}
	}
}

func (l *Log) write(d datapath.Drop) {
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
	for _, i := range l.running() {
		if i.ID == d.SandboxID && i.Generation == d.Generation { // another run may have other tags
			x.Session, x.Owner, x.Tags = i.Session, i.Spec.Owner, i.Tags()
		}
	}
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
