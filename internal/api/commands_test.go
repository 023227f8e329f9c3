package api_test

import (
	"io"
	"strings"
	"testing"

	"sallyport/sandbox"
	"sallyport/sandbox/agent/wire"
)

// A command in the background: started, fed, watched, told, resized and ended, by
// routes of which each is called once.
func TestCommands(t *testing.T) {
	c, _, _ := serve(t, true)
	ctx := t.Context()
	if _, err := c.Create(ctx, "box", sandbox.Spec{}); err != nil {
		t.Fatal(err)
	}
	cat := must[sandbox.CommandInfo](t)(c.StartCommand(ctx, "box", sandbox.CommandSpec{Args: []string{"cat"}, Input: true}))
	for _, open := range []bool{true, false} {
		if err := c.Feed(ctx, "box", cat.ID, strings.NewReader("abc"), open); err != nil {
			t.Fatal(err)
		}
	}
	wait(t, "its output", func() bool {
		return must[sandbox.CommandInfo](t)(c.Command(ctx, "box", cat.ID)).Stdout.To == 6
	})
	from, out, err := c.Output(ctx, "box", cat.ID, sandbox.OutputOptions{Stream: "stdout", From: 2, Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	text := must[[]byte](t)(io.ReadAll(out))
	_ = out.Close()
	if from != 2 || string(text) != "cabc" {
		t.Errorf("from %d: %q", from, text)
	}
	wait(t, "its end", func() bool {
		i := must[sandbox.CommandInfo](t)(c.Command(ctx, "box", cat.ID))
		return i.State == wire.Exited && i.Code == 0 && i.Stdout.To == 6
	})

	screen := must[sandbox.CommandInfo](t)(c.StartCommand(ctx, "box", sandbox.CommandSpec{Args: []string{"sleep", "600"}, TTY: true}))
	if _, err := c.ResizeCommand(ctx, "box", screen.ID, sandbox.Size{Rows: 10, Cols: 20}); err != nil {
		t.Error(err)
	}
	if _, err := c.SignalCommand(ctx, "box", screen.ID, "TERM"); err != nil {
		t.Error(err)
	}
	wait(t, "the signal to end it", func() bool {
		return must[sandbox.CommandInfo](t)(c.Command(ctx, "box", screen.ID)).Signal == "TERM"
	})
	long := must[sandbox.CommandInfo](t)(c.StartCommand(ctx, "box", sandbox.CommandSpec{Args: []string{"sleep", "600"}}))
	if _, err := c.KillCommand(ctx, "box", long.ID); err != nil {
		t.Error(err)
	}
	wait(t, "its end", func() bool {
		return must[sandbox.CommandInfo](t)(c.Command(ctx, "box", long.ID)).State == wire.Exited
	})
	if list := must[[]sandbox.CommandInfo](t)(c.Commands(ctx, "box")); len(list) != 3 || list[0].ID != cat.ID {
		t.Errorf("got %+v", list)
	}
}
