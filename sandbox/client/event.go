package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"sallyport/audit"
	"sallyport/sandbox"
)

// Event is a change of what there is: of a sandbox, an approval, the policy, a
// secret, a key. It is made from the audit log, which has more of it under ID.
type Event struct {
	// Position is the event's in the audit log. It grows; a reader who was away
	// goes on after the last it saw.
	Position uint64    `json:"position"`
	ID       string    `json:"id"` // UUIDv7
	Type     string    `json:"type"`
	Time     time.Time `json:"time"`
	// Subject is what has changed, without its kind, which Type begins with.
	Subject   string            `json:"subject,omitempty"`
	Sandbox   string            `json:"sandbox,omitempty"`
	SandboxID string            `json:"sandboxID,omitempty"`
	Session   string            `json:"session,omitempty"`
	Owner     string            `json:"owner,omitempty"` // tenant
	Tags      map[string]string `json:"tags,omitempty"`
	Message   string            `json:"message"`
	Detail    string            `json:"detail,omitempty"`
	Reason    string            `json:"reason,omitempty"`
	Operator  string            `json:"operator,omitempty"` // behind it, by name
}

// EventOf is an event of the audit log as it is told; false for one that is not
// of a lifecycle. A command that ran in a sandbox has changed nothing of what there is.
func EventOf(e *audit.Event) (Event, bool) {
	x := &e.Unmapped.Sallyport
	if x.Kind != audit.KindLifecycle || e.Subject() == "" || x.State == sandbox.CommandEvent {
		return Event{}, false
	}
	kind, subject, _ := strings.Cut(e.Subject(), "/")
	out := Event{
		Position: e.Metadata.Sequence, ID: e.ID(), Type: kind + "." + x.State, Time: time.UnixMilli(e.Time).UTC(), Subject: subject,
		Sandbox: x.Sandbox, SandboxID: x.SandboxID, Session: x.Session, Owner: x.Owner, Tags: x.Tags,
		Message: e.Message, Detail: e.Detail, Reason: x.Reason,
	}
	if e.Actor != nil {
		out.Operator = e.Actor.User.Name
	}
	return out, true
}

// maxEvent bounds a line of the stream of events, in bytes: an event of the log
// is no longer.
const maxEvent = 2 << 20

// Events hands over what happens to see, from after a position, or with after 0
// from now on, until ctx is done or see returns an error. When the connection
// breaks it returns io.ErrUnexpectedEOF: go on after the last position.
func (c *Client) Events(ctx context.Context, after uint64, see func(Event) error) error {
	header := http.Header{"Accept": {"text/event-stream"}}
	if after > 0 {
		header.Set("Last-Event-ID", strconv.FormatUint(after, 10))
	}
	body, err := c.Stream(ctx, "/v1/events", header)
	if err != nil {
		return err
	}
	defer body.Close()
	lines := bufio.NewScanner(body)
	lines.Buffer(make([]byte, 64<<10), maxEvent)
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !ok {
			continue
		}
		var e Event
		if err := json.Unmarshal(data, &e); err != nil {
			return fmt.Errorf("an event that cannot be read: %w", err)
		}
		if err := see(e); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	return io.ErrUnexpectedEOF // the daemon has ended
}
