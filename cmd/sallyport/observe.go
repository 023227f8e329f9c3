package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"sallyport/audit"
	"sallyport/internal/api"
	"sallyport/policy"
)

// banner says above a listing what is in observe mode. It goes to the error stream,
// where it is no part of what a program reads.
func (g *globals) banner(cmd *cobra.Command, d *api.Client) {
	if s, err := d.Status(cmd.Context()); err == nil { // or the listing itself says why not
		observing(cmd.ErrOrStderr(), s.Observing)
	}
}

func observing(w io.Writer, list []policy.Lifting) {
	for _, l := range list {
		fmt.Fprintf(w, "OBSERVE MODE: what the policy denies is carried: %s\n", l)
	}
}

// How often observe mode is looked at, and recorded while it lasts.
const (
	watchEvery  = time.Second
	repeatEvery = time.Hour
)

// watcher records when something is in observe mode from now on, each hour, and
// when it no longer is.
type watcher struct {
	policy func() *policy.Policy
	record func(*audit.Event) error
	log    *slog.Logger
	said   map[string]saying // by what is in observe mode
}

type saying struct {
	lifting policy.Lifting
	at      time.Time // when it was recorded last
}

func (w *watcher) run(ctx context.Context) error {
	t := time.NewTicker(watchEvery)
	defer t.Stop()
	for {
		w.look(time.Now())
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}

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
	e := changed(audit.Product{Name: "sallyport", Version: version}, "observe mode", state)
	e.SeverityID = audit.SeverityMedium
	e.Message = "observe mode: what the policy denies is carried: " + l.String()
	if state == "observe-ended" {
		e.SeverityID = audit.SeverityInformational
		e.Message = "observe mode is over, everything is enforced: " + l.String()
	}
	e.Policy = &audit.Policy{Version: w.policy().Revision()}
	if len(l.Names) == 1 {
		e.Unmapped.Sallyport.Sandbox = l.Names[0]
	}
	if err := w.record(e); err != nil {
		w.log.Error("observe mode could not be recorded", "error", err)
	}
}
