package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"sallyport/policy"
)

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
