package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"sallyport/audit/auditlog"
	"sallyport/sandbox/client"
)

// Bounds of streams of events.
const (
	streamsAll   = 64
	streamsEach  = 8                // of one caller
	streamAlive  = 15 * time.Second // a comment goes out, so that who has gone is noticed
	streamWithin = 10 * time.Second // for what is written: who reads no more resumes later
)

// enterStream makes a place for a caller's stream, until end. A tenant has no more of
// them, by all of its keys, than are left for all others.
func (h *handler) enterStream(who Principal) (end func(), err error) {
	if !h.streams.Enter(who.ID, who.Owner()) {
		return nil, fmt.Errorf("%w: too many streams of events are open, of this caller or of all", errBusy)
	}
	return func() { h.streams.Leave(who.ID, who.Owner()) }, nil
}

// events streams what happens as server-sent events (HTML, section 9.2). The id of
// each is its position in the audit log, from which Last-Event-ID goes on; each
// stream reads the log for itself, so that nobody waits for who reads slowly.
func (h *handler) events(w http.ResponseWriter, r *http.Request) {
	var from uint64
	if text := r.Header.Get("Last-Event-ID"); text != "" {
		n, err := strconv.ParseUint(text, 10, 62)
		if err != nil {
			h.writeProblem(w, r, fmt.Errorf("%w: Last-Event-ID %q is not a position", errBadRequest, clip(text, 32)))
			return
		}
		from = n + 1
	}
	who := PrincipalOf(r.Context())
	end, err := h.enterStream(who)
	if err != nil {
		h.writeProblem(w, r, err)
		return
	}
	defer end()

	// The reader waits for the log, this one for what keeps the connection alive.
	ctx, stop := context.WithCancel(r.Context())
	next := make(chan client.Event)
	go func() {
		defer close(next)
		for e, err := range auditlog.Undamaged(h.opt.Events(ctx, from)) {
			if err != nil {
				h.opt.Logger.Error("a stream of events ends", "error", err)
				return
			}
			told, ok := client.EventOf(e)
			if !ok || !h.tells(who, told) {
				continue
			}
			select {
			case next <- eventFor(who, told):
			case <-ctx.Done():
				return
			}
		}
	}()
	defer func() {
		stop()
		for range next { // to its end
		}
	}()
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	h.stream(w, r, next)
}

func (h *handler) stream(w http.ResponseWriter, r *http.Request, next <-chan client.Event) {
	control := http.NewResponseController(w)
	say := func(format string, a ...any) bool {
		_ = control.SetWriteDeadline(time.Now().Add(streamWithin)) // what has none is a test's
		_, err := fmt.Fprintf(w, format, a...)
		return err == nil && control.Flush() == nil
	}
	if !say(": sallyport\n\n") {
		return
	}
	alive := time.NewTicker(streamAlive)
	defer alive.Stop()
	for {
		select {
		case <-r.Context().Done():
			return
		case <-alive.C:
			if !say(":\n\n") {
				return
			}
		case e, ok := <-next:
			if !ok {
				return
			}
			data, err := json.Marshal(e) // on one line
			if err != nil || !say("id: %d\nevent: %s\ndata: %s\n\n", e.Position, e.Type, data) {
				return
			}
		}
	}
}

// tells says whether an event is for a caller: of secrets, who may list them; of a tenant, what its sandboxes do
// and what they wait for. An event of an approval names no owner; that of a
// sandbox which is gone is nobody's any more.
func (h *handler) tells(who Principal, e client.Event) bool {
	if secretEvent(e.Type) && !who.May(ScopeSecrets) {
		return false
	}
	if who.Tenant == "" || e.Owner == who.Tenant && e.Sandbox != "" {
		return true
	}
	return e.Owner == "" && e.SandboxID != "" && h.owns(who.Tenant, e.SandboxID)
}

// secretEvent says whether an event is about a secret, by its type or by its app's name.
func secretEvent(name string) bool {
	return strings.HasPrefix(name, "secret.") || strings.HasPrefix(name, "secret/")
}

// owns says whether the sandbox of an ID is there and a tenant's.
func (h *handler) owns(tenant, id string) bool {
	if tenant == "" {
		return true
	}
	if h.opt.Sandboxes == nil {
		return false
	}
	for _, i := range h.opt.Sandboxes.List() {
		if i.ID == id {
			return i.Spec.Owner == tenant
		}
	}
	return false
}
