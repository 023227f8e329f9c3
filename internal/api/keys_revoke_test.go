package api_test

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"sallyport/internal/api"
	"sallyport/sandbox"
	"sallyport/sandbox/client"
)

// trickle is input that comes slowly and does not end before ctx or end.
func trickle(ctx context.Context) (_ io.Reader, end func()) {
	in, w := io.Pipe()
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-ctx.Done():
				_ = w.CloseWithError(context.DeadlineExceeded)
				return
			case <-time.After(50 * time.Millisecond):
				if _, err := w.Write([]byte("x")); err != nil {
					return
				}
			}
		}
	}()
	return in, func() { cancel(); _ = in.Close(); <-ended }
}

// Whatever goes on with a key ends with it: when it is removed, and when it expires.
func TestWithdrawnKeyEndsWhatGoesOn(t *testing.T) {
	root, _, h := serve(t, true)
	h.audit = t.TempDir()
	ctx := t.Context()
	must[sandbox.Info](t)(root.Create(ctx, "box", sandbox.Spec{}))
	must[sandbox.Info](t)(root.Start(ctx, "box"))
	slow := sandbox.CommandSpec{Args: []string{"sleep", "120"}}
	id := must[sandbox.CommandInfo](t)(root.StartCommand(ctx, "box", slow)).ID
	defer func() { _, _ = root.KillCommand(ctx, "box", id) }()
	fed := must[sandbox.CommandInfo](t)(root.StartCommand(ctx, "box", sandbox.CommandSpec{Args: []string{"cat"}, Input: true})).ID
	defer func() { _, _ = root.KillCommand(ctx, "box", fed) }()
	dir := t.TempDir() // the agent is a process of the test's own

	for _, tt := range []struct {
		name string
		do   func(ctx context.Context, c *client.Client, begun *atomic.Bool) error
	}{
		{"events", func(ctx context.Context, c *client.Client, begun *atomic.Bool) error {
			begun.Store(true)
			return c.Events(ctx, 0, func(client.Event) error { return nil })
		}},
		{"approvals", func(ctx context.Context, c *client.Client, begun *atomic.Bool) error {
			return api.WatchApprovals(ctx, c, func(api.ApprovalList) error { begun.Store(true); return nil })
		}},
		{"a command", func(ctx context.Context, c *client.Client, begun *atomic.Bool) error {
			begun.Store(true)
			_, err := c.Exec(ctx, "box", slow, sandbox.Streams{})
			return err
		}},
		{"a command with input", func(ctx context.Context, c *client.Client, begun *atomic.Bool) error {
			in, end := trickle(ctx)
			defer end()
			begun.Store(true)
			_, err := c.Exec(ctx, "box", sandbox.CommandSpec{Args: []string{"cat"}}, sandbox.Streams{Stdin: in})
			return err
		}},
		{"output", func(ctx context.Context, c *client.Client, begun *atomic.Bool) error {
			_, body, err := c.Output(ctx, "box", id, sandbox.OutputOptions{Follow: true})
			if err != nil {
				return err
			}
			defer body.Close()
			begun.Store(true)
			if _, err := io.Copy(io.Discard, body); err != nil {
				return err
			}
			return io.EOF
		}},
		{"input", func(ctx context.Context, c *client.Client, begun *atomic.Bool) error {
			in, end := trickle(ctx)
			defer end()
			begun.Store(true)
			return c.Feed(ctx, "box", fed, in, true)
		}},
		{"a watch", func(ctx context.Context, c *client.Client, begun *atomic.Bool) error {
			begun.Store(true)
			return c.Files("box").Watch(ctx, dir, sandbox.WatchOptions{}, func(sandbox.FileEvent) error { return nil })
		}},
		{"an upload", func(ctx context.Context, c *client.Client, begun *atomic.Bool) error {
			in, end := trickle(ctx)
			defer end()
			begun.Store(true)
			_, err := c.Files("box").Write(ctx, dir+"/f", in, sandbox.WriteOptions{})
			return err
		}},
	} {
		for _, how := range []string{"removed", "expired"} {
			if how == "expired" && tt.name != "events" && tt.name != "an upload" {
				continue // it takes the same way
			}
			t.Run(tt.name+", "+how, func(t *testing.T) {
				want := api.Key{Name: "k", Scopes: []api.Scope{api.ScopeRun, api.ScopeRead}}
				if how == "expired" {
					want.Expires = time.Now().Add(time.Second)
				}
				_, text, err := h.keys.Create(want)
				if err != nil {
					t.Fatal(err)
				}
				c := dialed(t, h, text)
				ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
				defer cancel()
				var begun atomic.Bool
				ended := make(chan error, 1)
				go func() { ended <- tt.do(ctx, c, &begun) }()
				wait(t, "the call", begun.Load)
				time.Sleep(300 * time.Millisecond)
				if how == "removed" {
					must[api.Key](t)(h.keys.Remove("k"))
				} else {
					defer func() { must[api.Key](t)(h.keys.Remove("k")) }()
				}
				if err := <-ended; err == nil || errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("it went on: %v", err)
				}
			})
		}
	}
	// What removes its own key is answered.
	_, text, err := h.keys.Create(api.Key{Name: "self", Scopes: []api.Scope{api.ScopeAdmin}})
	if err != nil {
		t.Fatal(err)
	}
	if err := api.RemoveKey.Do(ctx, dialed(t, h, text), client.None{}, "self"); err != nil {
		t.Errorf("a key that removes itself: %v", err)
	}
}
