package worker

import (
	"errors"
	"strings"
	"testing"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/gateway/workerapi"
	"sallyport/internal/jail"
	"sallyport/internal/test/must"
)

// While the data path is held, nothing is let out, and all else is recorded.
func TestHeld(t *testing.T) {
	log, err := auditlog.Open(t.TempDir(), auditlog.Options{})
	must.OK(t, err)
	defer log.Close()
	w := newWorker(nil, jail.State{})
	r := recorder{log, &w.held}
	event := func(kind audit.Kind, action audit.Action) *audit.Event {
		e := audit.New(kind, audit.ClassHTTP, 3)
		e.Action = action
		return e
	}
	try := func(want bool, kind audit.Kind, action audit.Action) {
		t.Helper()
		err := r.Append(t.Context(), event(kind, action))
		if held := errors.Is(err, auditlog.ErrHeld); held != want || !held && err != nil || held && !strings.Contains(err.Error(), "sink siem") {
			t.Errorf("%s, action %d: %v", kind, action, err)
		}
	}
	why := "sink siem is behind"
	for _, held := range []bool{false, true, false} {
		text := ""
		if held {
			text = why
		}
		if w.apply(workerapi.Tables{Held: &text}); w.apply(workerapi.Tables{}) {
			t.Error("something ends")
		}
		try(held, audit.KindDecision, audit.ActionAllowed)
		try(false, audit.KindDecision, audit.ActionDenied)
		try(false, audit.KindCompletion, audit.ActionAllowed)
		try(false, audit.KindLifecycle, audit.ActionUnknown)
	}
}
