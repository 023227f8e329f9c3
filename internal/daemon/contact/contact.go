// Package contact says which destinations a sandbox has been in contact with, by the audit log:
// a version of its memory may have come from each of them.
package contact

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/audit/index"
)

// Contacts are those of the sandboxes of one audit log. It is safe for concurrent use.
type Contacts struct {
	Dir    string     // of the audit log
	Index  string     // the file of its index
	Worker func() int // the process that has the sandboxes' connections, or 0

	// The requests and connections that were open when it was last asked are contact
	// later too: more arrives over them.
	mu sync.Mutex
	of map[string]map[string]contact // by ID of the sandbox, and of the decision's event
}

// contact is a request or a connection that was allowed.
type contact struct {
	host   string
	worker int    // the process that has it
	begun  uint64 // number of the decision's record
	ended  uint64 // and of that of its end, or 0
}

// maxContacts is how many open ones are followed of a sandbox.
const maxContacts = 4096

// Of returns the destinations of the requests and connections of a sandbox that
// were allowed by records after a number, or ended after a time or not yet, and the number
// of the last record about one. One whose completion is lost ends when the sandbox stops,
// or the process that had it is another one.
func (c *Contacts) Of(ctx context.Context, id string, after uint64, since time.Time) (hosts []string, last uint64, err error) {
	worker := c.Worker()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = map[string]map[string]contact{}
	}
	open := c.of[id]
	if open == nil {
		open = map[string]contact{}
		c.of[id] = open
	}
	last = after
	seen := map[string]bool{}
	maps.DeleteFunc(open, func(_ string, c contact) bool { return c.ended > 0 && c.ended <= after })
	for _, kind := range []audit.Kind{audit.KindDecision, audit.KindCompletion} {
		q := index.Query{From: after + 1, Sandbox: id, Kind: kind}
		for e, err := range auditlog.Undamaged(index.Search(ctx, c.Dir, c.Index, q)) {
			if err != nil {
				return nil, 0, err
			}
			last = max(last, e.Number)
			if kind == audit.KindCompletion {
				of := e.Event.Metadata.CorrelationUID
				if c, ok := open[of]; ok && e.Event.Time < since.UnixMilli() && c.begun <= after {
					delete(open, of) // before the version before, which had it
				} else if ok {
					c.ended = e.Number
					open[of] = c
				}
				continue
			}
			host := destination(e.Event)
			switch {
			case host == "":
			case len(open) == maxContacts:
				seen["more connections at a time than are followed"] = true
				fallthrough
			default:
				seen[host] = true
				if len(open) < maxContacts {
					open[e.Event.ID()] = contact{host: host, worker: worker, begun: e.Number}
				}
			}
		}
	}
	// A connection that was open when the sandbox stopped has ended, also if no completion says so.
	q := index.Query{From: after + 1, Sandbox: id, Kind: audit.KindLifecycle, Text: "stopped"}
	for e, err := range auditlog.Undamaged(index.Search(ctx, c.Dir, c.Index, q)) {
		if err != nil {
			return nil, 0, err
		}
		if x := e.Event.Unmapped.Sallyport; x.State != "stopped" || !strings.HasPrefix(x.Subject, "sandbox/") {
			continue
		}
		last = max(last, e.Number)
		for of, c := range open {
			if c.ended == 0 && c.begun < e.Number {
				c.ended = e.Number
				open[of] = c
			}
		}
	}
	for id, c := range open {
		seen[c.host] = true
		if c.ended == 0 && c.worker != worker { // it has ended with its process
			c.ended = last
			open[id] = c
		}
	}
	return slices.Sorted(maps.Keys(seen)), last, nil
}

// destination is whom an allowed decision lets a sandbox be in contact with, or "".
func destination(e *audit.Event) string {
	to := e.Destination
	switch {
	case e.Action == audit.ActionDenied || e.ClassUID == audit.ClassDNS || to == nil:
		return ""
	case e.Unmapped.Sallyport.Phase == "inbound":
		return "requests to an exposed port"
	case to.Hostname != "":
		return strings.ToLower(to.Hostname)
	}
	return to.IP
}

// Forget is of a sandbox that is removed.
func (c *Contacts) Forget(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.of, id)
}
