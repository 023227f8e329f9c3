package manager

import (
	"context"
	"fmt"
	"path"
	"strings"
	"time"

	"sallyport/audit"
	"sallyport/sandbox"
	"sallyport/sandbox/state"
)

// recordCommand has the audit log say which program ran in a sandbox, and how that went.
// It says no argument and no environment, since they may hold secrets. Nobody waits for
// it: the command has run.
func (m *Manager) recordCommand(ctx context.Context, i sandbox.Info, c sandbox.CommandSpec, how string, ok bool, began time.Time) {
	program := programOf(c)
	ev := state.Lifecycle(recordOf(i), sandbox.CommandEvent, how)
	ev.Message = "command " + program + " in sandbox " + i.Name
	ev.StartTime, ev.Duration = began.UnixMilli(), now().Sub(began).Milliseconds()
	if !ok {
		ev.StatusID = audit.StatusFailure
	}
	audit.Attribute(ctx, ev)
	if err := m.opt.Recorder.Enqueue(ev); err != nil {
		m.opt.Logger.Error("an event was lost", "message", ev.Message, "error", err)
	}
}

// programOf is the name of the program that a command runs.
func programOf(c sandbox.CommandSpec) string {
	return clip(strings.ToValidUTF8(path.Base(c.Args[0]), "\uFFFD"))
}

// howEnded says how a command ended, in words of our own.
func howEnded(end sandbox.CommandEnd, err error) string {
	if _, _, unable := unstarted(err); unable {
		return "could not be started"
	}
	switch {
	case err != nil:
		return "was broken off"
	case end.TimedOut:
		return "ran out of time"
	case end.Signal != "":
		return fmt.Sprintf("exited with %d, by a signal", end.Code)
	}
	return fmt.Sprintf("exited with %d", end.Code)
}
