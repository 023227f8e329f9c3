package daemon

import (
	"context"
	"log/slog"
	"time"

	"sallyport/audit"
	"sallyport/policy"
	"sallyport/policy/engine"
)

// How often observe mode is looked at, and recorded while it lasts.
const (
	watchEvery  = time.Second
	repeatEvery = time.Hour
)

// watcher records when something is in observe mode from now on, each hour, and
// when it no longer is.
type watcher struct {
	policy  func() *engine.Policy
	record  func(*audit.Event) error
	log     *slog.Logger
	version string
	said    map[string]saying // by what is in observe mode
}

type saying struct {
	lifting policy.Lifting
	at      time.Time // when it was recorded last
}

func (w *watcher) run(ctx context.Context) error { return every(ctx, watchEvery, w.look) }

// look compares what is in observe mode at a time with what was last.
func (w *watcher) look(now time.Time) {
	seen := map[string]bool{}
	for _, l := range w.policy().Observing(now) {
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

func (w *watcher) say(l policy.Lifting, state string, now time.Time) {
	if w.said == nil {
		w.said = map[string]saying{}
	}
	w.said[l.String()] = saying{l, now}
	w.log.Warn("observe mode", "state", state, "what", l.String())
	e := changed("sallyport", "observe mode", state, w.version)
	e.SeverityID = audit.SeverityMedium
	e.Message = "observe mode: what the policy denies is carried: " + l.String()
	if state == "observe-ended" {
		e.SeverityID = audit.SeverityInformational
		e.Message = "observe mode is over, everything is enforced: " + l.String()
	}
	e.Policy = audit.Revision(w.policy().Revision())
	if len(l.Names) == 1 {
		e.Unmapped.Sallyport.Sandbox = l.Names[0]
	}
	if err := w.record(e); err != nil {
		w.log.Error("observe mode could not be recorded", "error", err)
	}
}
