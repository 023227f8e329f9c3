// Package observe keeps observe mode on record: a policy that has something in it denies less
// than it says, and that must not go unnoticed.
package observe

import (
	"context"
	"log/slog"
	"time"

	"sallyport/audit"
	"sallyport/internal/periodic"
	"sallyport/policy"
	"sallyport/policy/engine"
)

// How often observe mode is looked at, and recorded while it lasts.
const (
	watchEvery  = time.Second
	repeatEvery = time.Hour
)

// Watcher records when something is in observe mode from now on, each hour, and
// when it no longer is. All exported fields are needed.
type Watcher struct {
	Policy func() *engine.Policy // in force
	Event  func(subject, what, state string) *audit.Event
	Record func(*audit.Event) error
	Logger *slog.Logger

	said map[string]saying // by what is in observe mode
}

type saying struct {
	lifting policy.Lifting
	at      time.Time // when it was recorded last
}

// Run watches until ctx is done.
func (w *Watcher) Run(ctx context.Context) error { return periodic.Run(ctx, watchEvery, w.look) }

// look compares what is in observe mode at a time with what was last.
func (w *Watcher) look(now time.Time) {
	seen := map[string]bool{}
	for _, l := range w.Policy().Observing(now) {
		key := l.String()
		seen[key] = true
		last, known := w.said[key]
		switch {
		case !known:
			w.say(l, "observe-begun", now)
		case now.Sub(last.at) >= repeatEvery:
			w.say(l, "observing", now)
		}
	}
	for key, last := range w.said {
		if !seen[key] {
			w.say(last.lifting, "observe-ended", now)
			delete(w.said, key)
		}
	}
}

func (w *Watcher) say(l policy.Lifting, state string, now time.Time) {
	if w.said == nil {
		w.said = map[string]saying{}
	}
	w.said[l.String()] = saying{l, now}
	w.Logger.Warn("observe mode", "state", state, "what", l.String())
	e := w.Event("sallyport", "observe mode", state)
	e.SeverityID = audit.SeverityMedium
	e.Message = "observe mode: what the policy denies is carried: " + l.String()
	if state == "observe-ended" {
		e.SeverityID = audit.SeverityInformational
		e.Message = "observe mode is over, everything is enforced: " + l.String()
	}
	e.Policy = audit.Revision(w.Policy().Revision())
	if len(l.Names) == 1 {
		e.Unmapped.Sallyport.Sandbox = l.Names[0]
	}
	if err := w.Record(e); err != nil {
		w.Logger.Error("observe mode could not be recorded", "error", err)
	}
}
