package gateway

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"sallyport/audit"
	"sallyport/gateway/event"
	"sallyport/gateway/live"
)

// complete ends a request and records its outcome. If a step panicked, the sandbox gets a
// 500 unless the response has begun. If the upstream's response broke off, complete breaks
// the sandbox's off too, so that the sandbox does not take it for complete.
func (q *request) complete(r *http.Request) {
	p := recover()
	if p != nil && p != http.ErrAbortHandler {
		q.err = errPanic
		q.gateway.Logger.Error("panic in a request", "sandbox", q.identity.Name, "panic", fmt.Sprint(p))
		if q.out.status == 0 {
			var id string
			if q.allowed != nil {
				id = q.allowed.ID()
			}
			q.out.Header().Set("Connection", "close")
			failed(errPanic, id).Write(&q.out, r)
			p = nil
		}
	}
	why := q.grant.meter.Err()
	if q.grant.handle.Revoked() != nil {
		why = errors.New(live.NoLonger)
	}
	q.out.close(why)
	broken := q.got.err != nil
	q.recordCompletion()
	if broken && q.endCall(r) {
		broken = false
	}
	q.form.body.Drop() // the policy has read it
	q.placeholders.Close()
	q.signed.Drop()
	q.heads.Release()
	q.grant.meter.End()
	if p != nil || broken {
		panic(http.ErrAbortHandler)
	}
}

// recordCompletion writes the completion of an allowed request. It runs once, when the
// last byte has gone to the sandbox or could not.
func (q *request) recordCompletion() {
	q.gateway.live.Leave(&q.grant.handle)
	for _, u := range q.sentWith {
		q.secrets.Release(u)
	}
	if q.grant.ahead != nil {
		_ = q.grant.ahead.Close()
	}
	if q.allowed == nil {
		return
	}
	used := q.charge()
	outcome := q.outcome()
	c := completion(&q.events, q.allowed.ActivityID, outcome)
	s := &c.Unmapped.Sallyport
	s.Credentials = q.placeholders.Mark(q.used)
	c.SetTokens(used)
	if q.err != nil && status(q.err) == http.StatusForbidden {
		c.Action, c.Disposition = audit.ActionDenied, audit.DispositionBlocked
	}
	q.gateway.blocked(c, outcome)
	kind := q.got.tell(c)
	if q.clock != "" {
		also(c, q.clock)
	}
	stolen := q.placeholders.Stolen()
	if stolen != nil {
		also(c, stolen.Error()+", and was broken off before it left")
		c.SeverityID, c.Action, c.Disposition = audit.SeverityHigh, audit.ActionDenied, audit.DispositionBlocked
		s.Found = append(s.Found, audit.CredentialUse{Name: stolen.Credential})
	}
	if q.said != "" {
		c.Message = strings.TrimPrefix(c.Message+"; "+q.said, "; ")
	}
	if len(q.lost) > 0 {
		also(c, forgotten(q.lost))
	}
	event.Reached(&q.events, c, q.reached)
	event.Finished(&q.events, c, time.Since(q.started), q.out.status, q.out.written.Load(), q.sent.read.Load(), q.out.written.Load())
	q.gateway.enqueue(c)
	if stolen != nil {
		q.gateway.enqueue(Exfiltration(c))
	} else if kind != "" {
		q.gateway.enqueue(finding(kind, c))
	}
	q.gateway.metrics.Finished(q.out.status, time.Since(q.started))
}

// tell has a completion say what was found, and returns the kind of the finding to
// record after it; "" for none.
func (f *finds) tell(c *audit.Event) (kind string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.hits) == 0 {
		return ""
	}
	s, total := &c.Unmapped.Sallyport, 0
	for _, n := range f.hits {
		total += n
	}
	names := slices.Sorted(maps.Keys(f.hits))
	also(c, held(names, total, s.Credentials))
	for _, name := range names {
		s.Found = append(s.Found, audit.CredentialUse{Name: name})
	}
	f.on.metrics.Scrubbed.Add(float64(total))
	if f.strays > 0 {
		also(c, "a host that it was never sent to answered with it: somebody may be guessing")
		c.SeverityID = audit.SeverityHigh
		return audit.FindingGuessed
	}
	return audit.FindingInAnswer
}

// finding is one of a completion whose text says what was found.
func finding(kind string, c *audit.Event) *audit.Event {
	if kind == audit.FindingGuessed {
		return grave(kind, c)
	}
	return audit.Finding(kind, c)
}

func grave(kind string, of *audit.Event) *audit.Event {
	f := audit.Finding(kind, of)
	f.SeverityID = audit.SeverityHigh
	return f
}

// also adds to what a completion says, which is of more weight then.
func also(c *audit.Event, text string) {
	c.Message = strings.TrimPrefix(c.Message+"; "+text, "; ")
	c.SeverityID = max(c.SeverityID, audit.SeverityMedium)
}

// held says what a response held.
func held(names []string, n int, sent []audit.CredentialUse) string {
	own := !slices.ContainsFunc(names, func(name string) bool {
		return !slices.ContainsFunc(sent, func(u audit.CredentialUse) bool { return u.Name == name })
	})
	if own {
		return fmt.Sprintf("the response held the injected credential %d times; each was overwritten", n)
	}
	return fmt.Sprintf("the response held a credential of the sandbox's other requests: %s, %d times; each was overwritten", strings.Join(names, ", "), n)
}

// forgotten says what answers are no longer searched for.
func forgotten(lost map[string]int) string {
	return "too much was injected for this sandbox: answers are no longer searched for old values of " + strings.Join(slices.Sorted(maps.Keys(lost)), ", ")
}

// outcome is the error that ended the request, nil for success.
func (q *request) outcome() error {
	err := q.err
	if over := q.grant.meter.Err(); over != nil {
		err = over // whatever came of it
	}
	why := q.grant.handle.Revoked()
	switch {
	case why != nil && (err != nil || q.got.err != nil || q.out.failed || q.out.status == http.StatusSwitchingProtocols):
		return why
	case err != nil:
	case q.got.err != nil && q.out.status != http.StatusSwitchingProtocols:
		if err = q.got.err; q.Err() != nil {
			err = errClient // which broke the response off
		}
	case q.out.failed:
		err = errClient
	case q.out.taken.Load() != nil:
		if err = q.out.ended.Err(); err != nil && q.streamed && q.Err() != nil {
			err = errClient // whose stream's end has ended the upstream's connection
		}
	}
	if err != nil && q.gateway.life.Err() != nil && explain(err) == errClient.Error() {
		err = errClosed
	}
	return err
}

// endCall gives a call of gRPC whose answer is broken off a status, where a message has
// ended and it is known why. Any other is left to be reset.
func (q *request) endCall(r *http.Request) bool {
	if q.out.messages == nil || !q.out.messages.Between() || q.out.failed {
		return false
	}
	a := q.revoked()
	if over := q.grant.meter.Err(); a == nil && over != nil {
		a = failed(over, q.allowed.ID())
	}
	if a == nil {
		return false
	}
	header := a.Call(r).Header
	delete(header, "Content-Type") // the answer has its own
	for name, values := range header {
		q.out.Header()[http.TrailerPrefix+name] = values
	}
	return true
}
