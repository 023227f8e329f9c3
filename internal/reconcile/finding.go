package reconcile

import (
	"cmp"
	"fmt"
	"time"

	"sallyport/audit"
	"sallyport/sandbox"
)

// Finding is a flow that the audit log does not account for.
type Finding struct {
	What   string // audit.FindingUnrecorded or FindingUnaccounted
	Flow   sandbox.Connection
	Excess int64 // bytes beyond the bound, of FindingUnaccounted
	Count  int   // flows that it stands for, of one sandbox; Flow is the first
}

// events are what is known of the flow, and the finding, which is an alert.
func (f Finding) events() []*audit.Event {
	w := &f.Flow
	e := audit.New(audit.KindConnection, audit.ClassNetwork, audit.NetworkTraffic)
	e.SeverityID = audit.SeverityHigh
	e.Source = audit.Sandboxed(w.Sandbox, w.SandboxID, w.Source.Addr().String())
	e.Destination = &audit.Endpoint{IP: w.Destination.Addr().String(), Port: int(w.Destination.Port())}
	e.Source.Port = int(w.Source.Port())
	e.Connection = &audit.Connection{ProtocolName: "tcp", ProtocolNum: 6, Direction: 2}
	e.Traffic = &audit.Traffic{BytesIn: int64(w.Got), BytesOut: int64(w.Sent), Packets: int64(w.Packets)}
	if f.Count > 1 {
		e.Count = f.Count
	}
	e.Rule = &audit.Rule{Name: "reconciliation", Type: "floor"}
	x := &e.Unmapped.Sallyport
	x.Sandbox, x.SandboxID, x.Phase = w.Sandbox, w.SandboxID, "connect"
	x.Reason = fmt.Sprintf("it sent %d bytes and got %d in %d packets, and the gateway has recorded nothing of it", w.Sent, w.Got, w.Packets)
	if f.What == audit.FindingUnaccounted {
		x.Reason = fmt.Sprintf("it sent %d bytes, %d more than its records can account for", w.Sent, f.Excess)
	}
	alert := audit.Finding(f.What, e)
	alert.SeverityID = audit.SeverityHigh
	return []*audit.Event{e, alert}
}

// tellEvery is how often a sandbox has a finding of one kind told. Those between are one.
const tellEvery = time.Minute

// teller bounds how many findings are told. It is not safe for concurrent use.
type teller map[tellKey]*told

type tellKey struct {
	what    string
	sandbox string
}

type told struct {
	until time.Duration
	next  Finding // Count 0: none waits
}

// add returns the findings that are to be told now.
func (t teller) add(now time.Duration, found []Finding) (tell []Finding) {
	for _, f := range found {
		key := tellKey{f.What, cmp.Or(f.Flow.SandboxID, f.Flow.Source.Addr().String())}
		switch w := t[key]; {
		case w == nil:
			t[key] = &told{until: now + tellEvery}
			tell = append(tell, f)
		case w.next.Count == 0:
			w.next = f
		default:
			w.next.Count += f.Count
		}
	}
	for key, w := range t {
		switch {
		case now < w.until:
		case w.next.Count == 0:
			delete(t, key)
		default:
			tell = append(tell, w.next)
			*w = told{until: now + tellEvery}
		}
	}
	return tell
}
