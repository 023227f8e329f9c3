package api_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sallyport/internal/api"
	"sallyport/internal/test/must"
	"sallyport/sandbox"
	"sallyport/sandbox/client"
)

// A key is shown once, kept as a hash, void when it has expired or is removed, and
// each change is an event.
func TestKeys(t *testing.T) {
	c, _, h := serve(t, false)
	ctx := t.Context()
	made := need[api.KeyText](t)(api.CreateKey.Do(ctx, c, api.KeyRequest{Scopes: []string{"read"}, Expires: time.Now().Add(time.Hour)}, "ci"))
	file := filepath.Join(h.dir, "keys.json")
	if text := need[[]byte](t)(os.ReadFile(file)); bytes.Contains(text, []byte(made.Text)) || bytes.Contains(text, []byte(made.Text[20:])) || !bytes.Contains(text, []byte("ci")) {
		t.Errorf("the file holds the key: %s", text)
	}
	if i := need[os.FileInfo](t)(os.Stat(file)); i.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", i.Mode())
	}
	remote := dialed(t, h, made.Text)
	if s, err := api.GetStatus.Do(ctx, remote, client.None{}); err != nil || s.Version != "test" {
		t.Fatal(s, err)
	}
	list := need[[]api.Key](t)(api.ListKeys.Do(ctx, c))
	if len(list) != 1 || list[0].Used.IsZero() || list[0].ID != made.ID || list[0].Tenant != "" {
		t.Errorf("%+v", list)
	}
	for name, text := range map[string]string{
		"one letter": made.Text[:len(made.Text)-1] + "!", "no secret": made.Text[:20], "another's ID": "sp_0000000000000000" + made.Text[19:], "empty": "", "cut": made.Text[:len(made.Text)-2],
	} {
		if status, _, _, _ := raw(t, h, text, "GET", "/v1/status", ""); status != 401 {
			t.Errorf("%s: %d", name, status)
		}
	}
	again := need[*api.Keys](t)(api.OpenKeys(file, slog.New(slog.DiscardHandler)))
	if k, ok := again.Verify(made.Text); !ok || k.Name != "ci" {
		t.Errorf("after a restart: %v %v", k, ok)
	}
	soon := need[api.KeyText](t)(api.CreateKey.Do(ctx, c, api.KeyRequest{Scopes: []string{"read"}, Expires: time.Now().Add(1500 * time.Millisecond)}, "soon"))
	must.Soon(t, "a key to expire", func() bool {
		status, _, _, _ := raw(t, h, soon.Text, "GET", "/v1/status", "")
		return status == 401
	})
	must.OK(t, api.RemoveKey.Do(ctx, c, client.None{}, "ci"))
	var p *api.Problem
	if _, err := api.GetStatus.Do(ctx, remote, client.None{}); !errors.As(err, &p) || p.Status != 401 {
		t.Errorf("a key that is removed: %v", err)
	}
	for _, bad := range []api.KeyRequest{{}, {Scopes: []string{"root"}}, {Scopes: []string{"read"}, Tenant: "A B"}, {Scopes: []string{"read"}, Expires: time.Now().Add(-time.Hour)}} {
		if _, err := api.CreateKey.Do(ctx, c, bad, "bad"); !errors.As(err, &p) || p.Status != 400 {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	said := strings.Join(h.said(), "\n")
	for _, want := range []string{"API key ci (" + made.ID + ") created by ", "API key ci (" + made.ID + ") removed by ", "API call refused"} {
		if !strings.Contains(said, want) {
			t.Errorf("no event says %q:\n%s", want, said)
		}
	}
	if strings.Contains(said, made.Text) {
		t.Error("an event holds the key")
	}
}

// Guessing is bounded by source; a key that is known gets through all the same,
// and the events are fewer than the calls.
func TestFailuresAreBounded(t *testing.T) {
	_, _, h := serve(t, false)
	_, text := keyed(t, h, "good", "", "read")
	counts := map[int]int{}
	for range 60 {
		status, _, _, head := raw(t, h, "sp_guess", "GET", "/v1/status", "")
		counts[status]++
		if status == 429 && head.Get("Retry-After") == "" {
			t.Error("no Retry-After")
		}
	}
	if counts[401] < 5 || counts[401] > 15 || counts[401]+counts[429] != 60 {
		t.Errorf("%v", counts)
	}
	if status, _, _, _ := raw(t, h, text, "GET", "/v1/status", ""); status != 200 {
		t.Errorf("with a key: %d", status)
	}
	if n := len(h.said()); n < 10 || n > 40 {
		t.Errorf("%d events of 60 calls", n)
	}
}

// Only the server whose certificate was named gets a key to see.
func TestFingerprint(t *testing.T) {
	_, _, h := serve(t, false)
	good, text := keyed(t, h, "good", "", "read")
	need[api.Status](t)(api.GetStatus.Do(t.Context(), good, client.None{}))
	other := h.remote
	h.remote.Fingerprint = "sha256:" + strings.Repeat("0", 64)
	if _, err := api.GetStatus.Do(t.Context(), dialed(t, h, text), client.None{}); !errors.Is(err, client.ErrServer) {
		t.Errorf("another certificate: %v", err)
	}
	h.remote.Fingerprint = "" // the system's authorities know nothing of it
	var unknown *tls.CertificateVerificationError
	if _, err := api.GetStatus.Do(t.Context(), dialed(t, h, text), client.None{}); !errors.As(err, &unknown) {
		t.Errorf("nobody vouches: %v", err)
	}
	other.KeyFile = filepath.Join(t.TempDir(), "key")
	must.OK(t, os.WriteFile(other.KeyFile, []byte(text), 0o644))
	if _, err := client.Dial(other); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("a key that all can read: %v", err)
	}
	for _, url := range []string{"http://127.0.0.1:1", "https://", "https://a/b", "127.0.0.1:1"} {
		if _, err := client.Dial(client.Remote{URL: url, KeyFile: other.KeyFile}); err == nil {
			t.Errorf("%q is taken", url)
		}
	}
}

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
	need[sandbox.Info](t)(root.Create(ctx, "box", sandbox.Spec{}))
	need[sandbox.Info](t)(root.Start(ctx, "box"))
	slow := sandbox.CommandSpec{Args: []string{"sleep", "120"}}
	id := need[sandbox.CommandInfo](t)(root.StartCommand(ctx, "box", slow)).ID
	defer func() { _, _ = root.KillCommand(ctx, "box", id) }()
	fed := need[sandbox.CommandInfo](t)(root.StartCommand(ctx, "box", sandbox.CommandSpec{Args: []string{"cat"}, Input: true})).ID
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
					want.Expires = time.Now().Add(3 * time.Second)
				}
				_, text, err := h.keys.Create(want)
				must.OK(t, err)
				c := dialed(t, h, text)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				var begun atomic.Bool
				ended := make(chan error, 1)
				go func() { ended <- tt.do(ctx, c, &begun) }()
				must.Soon(t, "the call", begun.Load)
				time.Sleep(300 * time.Millisecond)
				if how == "removed" {
					need[api.Key](t)(h.keys.Remove("k"))
				} else {
					defer func() { need[api.Key](t)(h.keys.Remove("k")) }()
				}
				if err := <-ended; err == nil || errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("it went on: %v", err)
				}
			})
		}
	}
	// A call that removes its own key is answered.
	_, text, err := h.keys.Create(api.Key{Name: "self", Scopes: []api.Scope{api.ScopeAdmin}})
	must.OK(t, err)
	if err := api.RemoveKey.Do(ctx, dialed(t, h, text), client.None{}, "self"); err != nil {
		t.Errorf("a key that removes itself: %v", err)
	}
}
