package api

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/audit/index"
	"sallyport/audit/retention"
	"sallyport/policy"
)

// ErrIndexing is the error of Options.Audit while too much of the log is not indexed.
var ErrIndexing = fmt.Errorf("%w: the audit log is being indexed: try again later, or use `sallyport audit query` on the host", errBusy)

// auditWithin bounds how long a query takes, and then how long it takes to write the answer.
const auditWithin = 30 * time.Second

// serveAudit serves a page of the events of the audit log that a query selects, the oldest
// first. The cursor is the number of the last event before the page.
func (h *handler) serveAudit(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), auditWithin)
	defer cancel()
	list, next, err := h.auditEvents(r.WithContext(ctx))
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("%w: the query takes longer than %s: select less, as by a shorter time", errBusy, auditWithin)
	}
	if next != "" {
		linkNext(w, r, next)
	}
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(auditWithin)) // what has none is a test's
	h.answer(w, r, http.StatusOK, list, err)
}

// auditEvents is a page, and the cursor of the next one, if there is one.
func (h *handler) auditEvents(r *http.Request) (list []*audit.Event, next string, err error) {
	values, who := r.URL.Query(), PrincipalOf(r.Context())
	q, err := h.auditQuery(values, who)
	if err != nil {
		return nil, "", err
	}
	limit, err := limitOf(values)
	if err != nil {
		return nil, "", err
	}
	end, err := h.enterStream(who)
	if err != nil {
		return nil, "", err
	}
	defer end()
	list = []*audit.Event{}
	for e, err := range auditlog.Undamaged(h.opt.Audit(r.Context(), q)) {
		if err != nil {
			return nil, "", err
		}
		if len(list) == limit {
			return list, strconv.FormatUint(list[limit-1].Metadata.Sequence, 10), nil
		}
		// A withheld field selects nothing: else the result would tell of it.
		if shown := auditFor(who, e.Event); shown != nil && q.Wants(shown) {
			list = append(list, shown)
		}
	}
	return list, "", nil
}

// auditQuery reads the parameters. A caller of a tenant gets the events of its sandboxes.
func (h *handler) auditQuery(values url.Values, who Principal) (q index.Query, err error) {
	q = index.Query{
		Sandbox: values.Get("sandbox"), Destination: values.Get("destination"), Rule: values.Get("rule"), Credential: values.Get("credential"),
		Decision: values.Get("decision"), Kind: audit.Kind(values.Get("kind")), Text: values.Get("text"), Alone: true,
	}
	if q.Credential != "" && !who.May(ScopeSecrets) {
		return q, fmt.Errorf("%w %s: to select by a credential", errScope, ScopeSecrets)
	}
	for name, t := range map[string]*time.Time{"since": &q.Since, "until": &q.Until} {
		if text := values.Get(name); text != "" {
			if *t, err = time.Parse(time.RFC3339, text); err != nil {
				return q, fmt.Errorf("%w: %s %q: write a time as 2026-12-01T00:00:00Z", errBadRequest, name, clip(text, 32))
			}
		}
	}
	if text := values.Get("cursor"); text != "" {
		after, err := base64.RawURLEncoding.DecodeString(text)
		n, numberErr := strconv.ParseUint(string(after), 10, 53)
		if err != nil || numberErr != nil {
			return q, errCursor
		}
		q.From = n + 1
	}
	if who.Tenant != "" {
		q.Tenant = &index.Tenant{Name: who.Tenant}
		if h.opt.Sandboxes != nil {
			for _, i := range h.opt.Sandboxes.List() {
				if i.Spec.Owner == who.Tenant {
					q.Tenant.Sandboxes = append(q.Tenant.Sandboxes, i.ID)
				}
			}
		}
	}
	return q, nil
}

// auditFor is what a caller may see of an event, nil for none of it. Names of credentials
// are for callers who may list them, the host's paths and who connects to a sandbox from
// where for its operators.
func auditFor(who Principal, e *audit.Event) *audit.Event {
	x := e.Unmapped.Sallyport
	if x.Sandbox == "" && !who.May(ScopeSecrets) && secretEvent(e.Subject()) {
		return nil
	}
	if who.Tenant == "" && who.May(ScopeSecrets) {
		return e
	}
	shown := *e
	if !who.May(ScopeSecrets) {
		for _, uses := range []*[]audit.CredentialUse{&x.Credentials, &x.Found} {
			*uses = slices.Clone(*uses)
			for i := range *uses {
				(*uses)[i] = audit.CredentialUse{Name: needsSecrets}
			}
		}
	}
	if who.Tenant != "" {
		shown.Message, shown.Detail, x.Reason = pathless(e.Message), pathless(e.Detail), pathless(x.Reason)
		if e.ClassUID == audit.ClassSSH {
			shown.Source = nil
		}
	}
	shown.Unmapped.Sallyport = x
	return &shown
}

// Retention is what keeps and deletes records of the audit log. Its errors are those of
// package retention, or of the audit log.
type Retention interface {
	Holds() ([]retention.Hold, error)
	AddHold(ctx context.Context, name, reason string) (retention.Hold, error)
	RemoveHold(ctx context.Context, name, reason string) error
	Delete(ctx context.Context, before time.Time, force bool) (retention.Plan, error)
}

// HoldReason says why a legal hold begins or ends.
type HoldReason struct {
	Reason string `json:"reason"`
}

// DeleteRequest says which records of the audit log are to be deleted.
type DeleteRequest struct {
	Before time.Time `json:"before"`          // a segment goes if all of its records are older
	Force  bool      `json:"force,omitempty"` // also what a sink lacks
}

func (h *handler) holds(*http.Request) ([]retention.Hold, error) { return h.opt.Retention.Holds() }

func (h *handler) addHold(r *http.Request, in HoldReason) (retention.Hold, error) {
	return h.opt.Retention.AddHold(r.Context(), r.PathValue("name"), in.Reason)
}

func (h *handler) releaseHold(r *http.Request, in HoldReason) (none, error) {
	return none{}, h.opt.Retention.RemoveHold(r.Context(), r.PathValue("name"), in.Reason)
}

func (h *handler) deleteAudit(r *http.Request, in DeleteRequest) (retention.Plan, error) {
	if in.Before.IsZero() {
		return retention.Plan{}, fmt.Errorf("%w: before is needed, as 2026-12-01T00:00:00Z", errBadRequest)
	}
	return h.opt.Retention.Delete(r.Context(), in.Before, in.Force)
}

// Sink is the state of a receiver of the audit log's records.
type Sink struct {
	Name     string `json:"name"`
	Type     string `json:"type"`
	Encoding string `json:"encoding"`
	Receiver string `json:"receiver"` // URL, address or file

	Cursor       uint64 `json:"cursor"`        // number of the last record that the receiver has
	Waiting      uint64 `json:"waiting"`       // records that it lacks
	WaitingBytes int64  `json:"waiting_bytes"` // of the log
	Full         bool   `json:"full"`          // that is more than its spool may hold

	Away     time.Time `json:"away,omitzero"`    // since when it has acknowledged nothing
	Answer   string    `json:"answer,omitempty"` // the last one, or the last error
	Answered time.Time `json:"answered,omitzero"`

	// Records since the daemon's start; Lost are those that the log lost.
	Sent    uint64 `json:"sent"`
	Refused uint64 `json:"refused"`
	Lost    uint64 `json:"lost"`
	Retries uint64 `json:"retries"`
}

// State says how the sink is, and whether that is as it should be.
func (s Sink) State() (text string, ok bool) {
	switch {
	case !s.Away.IsZero():
		text = fmt.Sprintf("takes nothing since %s: %s", s.Away.Local().Format(time.DateTime), s.Answer)
	case s.Sent > 0:
		text, ok = "answers: "+s.Answer, true
	default:
		text, ok = "has been sent nothing yet", true
	}
	if s.Waiting > 0 {
		text += fmt.Sprintf("; %d records wait (%v)", s.Waiting, policy.Size(s.WaitingBytes))
	}
	if s.Full {
		text, ok = text+", more than its spool may hold", false
	}
	if s.Refused+s.Lost > 0 {
		text, ok = text+fmt.Sprintf("; it lacks %d records that it refused and %d that the log lost", s.Refused, s.Lost), false
	}
	return text, ok
}

// SinkTest is what came of sending one record.
type SinkTest struct {
	Sink     string `json:"sink"`
	UID      string `json:"uid"` // of the record
	Sequence uint64 `json:"sequence"`
	Answer   string `json:"answer,omitempty"`
	Error    string `json:"error,omitempty"` // the receiver did not take it
}

// ErrNoSink is returned for a name that no sink of the configuration has.
var ErrNoSink = errors.New("there is no such sink: audit.sinks of the configuration has them")

// Sinks tests the sinks of the audit log.
type Sinks interface {
	// TestSink sends a record to a sink. Its errors are ErrNoSink or of the audit log.
	TestSink(ctx context.Context, name string) (SinkTest, error)
}

func (h *handler) testSink(r *http.Request, _ none) (SinkTest, error) {
	return h.opt.Sinks.TestSink(r.Context(), r.PathValue("name"))
}
