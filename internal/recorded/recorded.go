// Package recorded turns decisions that the audit has back into what they were made
// on, so that a policy can make them again.
//
// It guarantees that a decision whose input is not in its event, whole, is marked
// unfit rather than made on less. It reads the log as package audit does, without
// a daemon.
package recorded

import (
	"cmp"
	"context"
	"iter"
	"slices"
	"time"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/policy"
)

// inwards are the phases of what does not leave.
var inwards = []policy.Phase{policy.PhaseInbound, policy.PhaseSSH}

// Read yields the decisions about what leaves that a query selects of the log in
// dir. The errors
// that it yields are those of [auditlog.Read].
func Read(ctx context.Context, dir string, q auditlog.Query) iter.Seq2[policy.Recorded, error] {
	q.Kind = audit.KindDecision
	return func(yield func(policy.Recorded, error) bool) {
		for e, err := range auditlog.Read(ctx, dir, q) {
			var r policy.Recorded
			if err == nil && slices.Contains(inwards, policy.Phase(e.Unmapped.Sallyport.Phase)) {
				continue
			}
			if err == nil {
				r = Of(e)
			}
			if !yield(r, err) {
				return
			}
		}
	}
}

// Find returns the decision with an id.
func Find(ctx context.Context, dir, id string) (policy.Recorded, error) {
	e, err := auditlog.Find(ctx, dir, id)
	if err != nil {
		return policy.Recorded{}, err
	}
	return Of(e), nil
}

// Of is the decision that an event tells of.
func Of(e *audit.Event) policy.Recorded {
	x := &e.Unmapped.Sallyport
	r := policy.Recorded{
		ID:     e.ID(),
		At:     time.UnixMilli(cmp.Or(e.StartTime, e.Time)).UTC(),
		Action: policy.Action(x.Decision), Reason: x.Reason,
		Observed: x.Observed != nil,
		Count:    max(e.Count, 1),
		Input: policy.Input{
			Phase:   policy.Phase(x.Phase),
			Sandbox: policy.Sandbox{Name: x.Sandbox, ID: x.SandboxID, Session: x.Session, Tags: x.Tags},
		},
	}
	if e.Rule != nil {
		r.Rule, r.RuleType = e.Rule.Name, e.Rule.Type
	}
	if e.Policy != nil {
		r.Revision = e.Policy.Version
	}
	for _, c := range x.Credentials {
		r.Credentials = append(r.Credentials, c.Name)
	}
	fill(&r.Input, e)
	r.Unfit = unfit(&r, e)
	return r
}

// fill takes from an event what was asked for.
func fill(in *policy.Input, e *audit.Event) {
	x := &e.Unmapped.Sallyport
	if d := e.Destination; d != nil {
		in.Destination = policy.Destination{Host: cmp.Or(d.Hostname, d.IP), Port: port(d.Port)}
	}
	switch in.Phase {
	case policy.PhaseDNS:
		if e.Query != nil {
			in.Destination.Host = e.Query.Hostname
		}
	case policy.PhaseConnect:
		in.Protocol = policy.Protocol(x.Protocol)
	case policy.PhaseRequest:
		q := e.HTTPRequest
		if q == nil || q.URL == nil {
			return
		}
		in.Protocol = policy.ProtocolHTTP
		if p := policy.Protocol(q.URL.Scheme); p.IsLogin() {
			in.Protocol = p
		} else if q.URL.Scheme == "https" {
			in.Protocol = policy.ProtocolTLS
		}
		in.Request = &policy.Request{
			Method: e.Method(), Scheme: q.URL.Scheme, Path: q.URL.Path,
			QueryKeys: x.QueryKeys, Headers: x.HeaderNames, Size: q.Length,
		}
		if x.Unsized {
			in.Request.Size = -1
		}
	}
}

func port(n int) uint16 {
	if n < 0 || n > 1<<16-1 {
		return 0
	}
	return uint16(n)
}

// unfit says why a decision cannot be made again.
func unfit(r *policy.Recorded, e *audit.Event) policy.Unfit {
	in := &r.Input
	switch {
	// A refusal of the floor by policy itself has no name.
	case r.RuleType == "floor" && r.Rule != "":
		return policy.UnfitFloor
	case r.RuleType == "limit":
		return policy.UnfitLimit
	case in.Destination.Host == "" && r.Count > 1:
		return policy.UnfitFolded
	case len(e.Unmapped.Sallyport.Clipped) > 0:
		return policy.UnfitClipped
	case in.Destination.Host == "",
		in.Phase != policy.PhaseDNS && in.Destination.Port == 0,
		in.Phase == policy.PhaseRequest && in.Request == nil,
		in.Phase == policy.PhaseConnect && in.Protocol == "",
		!slices.Contains([]policy.Phase{policy.PhaseDNS, policy.PhaseConnect, policy.PhaseRequest}, in.Phase):
		return policy.UnfitIncomplete
	}
	return ""
}
