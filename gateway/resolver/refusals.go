package resolver

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"sallyport/audit"
	"sallyport/internal/periodic"
	"sallyport/policy"
)

const (
	// holdFor is how long a refused look-up waits for the connection that
	// usually follows it, whose denial says more, and for its like.
	holdFor = 2 * time.Second
	// maxHeld bounds the names that wait for one sandbox. Further ones are
	// counted together.
	maxHeld = 64
)

// refusal is one name, or all beyond the bound, that a sandbox was refused.
type refusal struct {
	who      policy.Sandbox
	from     netip.Addr
	name     string // empty: several
	decision policy.Decision
	first    time.Time
	count    int
}

// held is what waits for one sandbox.
type held struct {
	names map[string]*refusal
	rest  *refusal
}

// refusals folds a sandbox's refused look-ups before they are recorded.
type refusals struct {
	record func(*refusal)

	mu        sync.Mutex
	sandboxes map[string]*held
}

func newRefusals(record func(*refusal)) *refusals {
	return &refusals{record: record, sandboxes: map[string]*held{}}
}

func (r *refusals) add(who policy.Sandbox, from netip.Addr, name string, d policy.Decision) {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.sandboxes[who.ID]
	if h == nil {
		h = &held{names: map[string]*refusal{}}
		r.sandboxes[who.ID] = h
	}
	one := h.names[name]
	switch {
	case one != nil:
	case len(h.names) < maxHeld:
		one = &refusal{who: who, from: from, name: name, decision: d, first: time.Now()}
		h.names[name] = one
	default:
		if h.rest == nil {
			h.rest = &refusal{who: who, from: from, decision: d, first: time.Now()}
		}
		one = h.rest
	}
	one.count++
}

// drop forgets a refusal that is told elsewhere.
func (r *refusals) drop(sandboxID, name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if h := r.sandboxes[sandboxID]; h != nil {
		delete(h.names, name)
	}
}

// run records what is due until ctx is done.
func (r *refusals) run(ctx context.Context) { _ = periodic.Run(ctx, holdFor/4, r.flush) }

// flush records what has waited long enough at a time.
func (r *refusals) flush(now time.Time) {
	var due []*refusal
	take := func(one *refusal) bool {
		if one == nil || now.Sub(one.first) < holdFor {
			return false
		}
		due = append(due, one)
		return true
	}
	r.mu.Lock()
	for id, h := range r.sandboxes {
		for name, one := range h.names {
			if take(one) {
				delete(h.names, name)
			}
		}
		if take(h.rest) {
			h.rest = nil
		}
		if len(h.names) == 0 && h.rest == nil {
			delete(r.sandboxes, id)
		}
	}
	r.mu.Unlock()
	for _, one := range due {
		r.record(one)
	}
}

// record writes a refusal down. Nothing left the host, so it need not be durable
// before the answer was given.
func (s *Server) record(r *refusal) {
	const query = 1 // activity_id of OCSF's DNS Activity
	e := audit.New(audit.KindDecision, audit.ClassDNS, query)
	e.SeverityID = audit.SeverityLow
	e.StatusID = audit.StatusFailure
	e.Action = audit.ActionDenied
	e.Disposition = audit.DispositionBlocked
	e.StartTime = r.first.UnixMilli()
	e.Message = fmt.Sprintf("look-up of %s refused", r.name)
	if r.name == "" {
		e.Message = fmt.Sprintf("%d look-ups of further names refused", r.count)
	} else {
		e.Query = &audit.DNSQuery{Hostname: r.name, Type: "A"}
	}
	if r.count > 1 {
		e.Count = r.count
	}
	ip := ""
	if r.from.IsValid() {
		ip = r.from.String()
	}
	e.Source = audit.Sandboxed(r.who.Name, r.who.ID, ip)
	d := r.decision
	if d.Rule != "" {
		e.Rule = &audit.Rule{Name: d.Rule, Type: d.RuleType}
	}
	if d.Revision != "" {
		e.Policy = audit.Revision(d.Revision)
	}
	if d.Err != nil {
		e.Detail = "the policy could not be evaluated"
	}
	x := &e.Unmapped.Sallyport
	x.Sandbox, x.SandboxID, x.Session, x.Tags, x.Owner = r.who.Name, r.who.ID, r.who.Session, r.who.Tags, r.who.Owner
	x.Phase, x.Decision, x.Reason = string(policy.PhaseDNS), string(policy.Deny), d.Reason
	if err := s.o.Recorder.Enqueue(e); err != nil {
		s.o.Logger.Error("refused look-ups not recorded", slog.String("sandbox_id", r.who.ID),
			slog.Int("count", r.count), slog.Any("error", err))
	}
}
