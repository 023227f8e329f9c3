package api_test

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sallyport/audit/auditlog"
	"sallyport/internal/test/must"
	"sallyport/sandbox"
	"sallyport/sandbox/agent/wire"
	"sallyport/sandbox/client"
)

// A command in the background: started, fed, watched, told, resized and ended, by
// routes of which each is called once.
func TestCommands(t *testing.T) {
	c, _, _ := serve(t, true)
	ctx := t.Context()
	if _, err := c.Create(ctx, "box", sandbox.Spec{}); err != nil {
		t.Fatal(err)
	}
	cat := need[sandbox.CommandInfo](t)(c.StartCommand(ctx, "box", sandbox.CommandSpec{Args: []string{"cat"}, Input: true}))
	for _, open := range []bool{true, false} {
		must.OK(t, c.Feed(ctx, "box", cat.ID, strings.NewReader("abc"), open))
	}
	must.Soon(t, "its output", func() bool {
		return need[sandbox.CommandInfo](t)(c.Command(ctx, "box", cat.ID)).Stdout.To == 6
	})
	from, out, err := c.Output(ctx, "box", cat.ID, sandbox.OutputOptions{Stream: "stdout", From: 2, Follow: true})
	must.OK(t, err)
	text := need[[]byte](t)(io.ReadAll(out))
	_ = out.Close()
	if from != 2 || string(text) != "cabc" {
		t.Errorf("from %d: %q", from, text)
	}
	must.Soon(t, "its end", func() bool {
		i := need[sandbox.CommandInfo](t)(c.Command(ctx, "box", cat.ID))
		return i.State == wire.Exited && i.Code == 0 && i.Stdout.To == 6
	})

	screen := need[sandbox.CommandInfo](t)(c.StartCommand(ctx, "box", sandbox.CommandSpec{Args: []string{"sleep", "600"}, TTY: true}))
	if _, err := c.ResizeCommand(ctx, "box", screen.ID, sandbox.Size{Rows: 10, Cols: 20}); err != nil {
		t.Error(err)
	}
	if _, err := c.SignalCommand(ctx, "box", screen.ID, "TERM"); err != nil {
		t.Error(err)
	}
	must.Soon(t, "the signal to end it", func() bool {
		return need[sandbox.CommandInfo](t)(c.Command(ctx, "box", screen.ID)).Signal == "TERM"
	})
	long := need[sandbox.CommandInfo](t)(c.StartCommand(ctx, "box", sandbox.CommandSpec{Args: []string{"sleep", "600"}}))
	if _, err := c.KillCommand(ctx, "box", long.ID); err != nil {
		t.Error(err)
	}
	must.Soon(t, "its end", func() bool {
		return need[sandbox.CommandInfo](t)(c.Command(ctx, "box", long.ID)).State == wire.Exited
	})
	if list := need[[]sandbox.CommandInfo](t)(c.Commands(ctx, "box")); len(list) != 3 || list[0].ID != cat.ID {
		t.Errorf("got %+v", list)
	}
}

// Each command is an event with its program and how it ended, who ran it, and nothing
// else that was written for it.
func TestCommandsAreRecorded(t *testing.T) {
	_, _, h := serve(t, true)
	c, _ := keyed(t, h, "ci", "acme", "run", "read")
	ctx := t.Context()
	box := need[sandbox.Info](t)(c.Create(ctx, "box", sandbox.Spec{}))
	const hidden = "hunter2"
	for _, args := range [][]string{{"sh", "-c", "exit 3 # " + hidden}, {"/bin/true", hidden}, {"/nowhere/none", hidden}} {
		_, _ = c.Exec(ctx, "box", sandbox.CommandSpec{Args: args, Env: map[string]string{"TOKEN": hidden}}, sandbox.Streams{})
	}
	need[sandbox.CommandInfo](t)(c.StartCommand(ctx, "box", sandbox.CommandSpec{Args: []string{"sleep", "0"}}))
	var got []string
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.events {
		x := &e.Unmapped.Sallyport
		if x.State != sandbox.CommandEvent {
			continue
		}
		if x.SandboxID != box.ID || x.Owner != "acme" || e.Actor == nil || e.Actor.User.Name != "key ci" || e.StartTime == 0 {
			t.Errorf("%+v", e)
		}
		if line := auditlog.Line(auditlog.Record{Decision: e}); strings.Contains(line, hidden) {
			t.Errorf("it says too much: %s", line)
		}
		got = append(got, fmt.Sprintf("%s: %s, %d", e.Message, e.Detail, e.StatusID))
		if _, told := client.EventOf(e); told {
			t.Error("it is told as a change of the sandbox")
		}
	}
	if diff := cmp.Diff([]string{
		"command sh in sandbox box: exited with 3, 2", "command true in sandbox box: exited with 0, 1",
		"command none in sandbox box: could not be started, 2", "command sleep in sandbox box: goes on in the background, 1",
	}, got); diff != "" {
		t.Error(diff)
	}
}
