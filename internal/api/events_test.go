package api_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/internal/test/must"
	"sallyport/sandbox"
	"sallyport/sandbox/client"
)

// Events come as they happen, to a tenant its own, and go on after the position
// that was seen last.
func TestEvents(t *testing.T) {
	root, _, h := serve(t, true)
	h.audit = t.TempDir()
	log := need[*auditlog.Log](t)(auditlog.Open(h.audit, auditlog.Options{}))
	defer log.Close()
	acme, _ := keyed(t, h, "acme", "acme", "read", "run")
	mine := need[sandbox.Info](t)(acme.Create(t.Context(), "mine", sandbox.Spec{}))
	append := func(app, state, name, id, owner string) {
		t.Helper()
		e := audit.Change(app, state)
		e.Message = app + " " + state
		x := &e.Unmapped.Sallyport
		x.Sandbox, x.SandboxID, x.Owner = name, id, owner
		must.OK(t, log.Append(t.Context(), e, audit.New(audit.KindDecision, audit.ClassHTTP, 3)))
	}
	append("sallyport", "started", "", "", "")
	append("sandbox/mine", "created", "mine", mine.ID, "acme")
	append("sandbox/theirs", "created", "theirs", "ffff", "other")
	append("approval/a1", "asked", "mine", mine.ID, "")
	append("key/acme", "created", "", "", "acme")
	append("approval/a2", "asked", "theirs", "ffff", "")
	append("sandbox/gone", "removed", "gone", "eeee", "acme")

	enough := errors.New("enough")
	read := func(c *client.Client, after uint64, n int) (all []string, last uint64) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := c.Events(ctx, after, func(e client.Event) error {
			all, last = slices.Concat(all, []string{e.Type + " " + e.Subject}), e.Position
			if len(all) == n {
				return enough
			}
			return nil
		})
		if !errors.Is(err, enough) {
			t.Fatalf("%v after %q", err, all)
		}
		return all, last
	}
	got, _ := read(acme, 1, 3)
	if want := "[sandbox.created mine approval.asked a1 sandbox.removed gone]"; fmt.Sprint(got) != want {
		t.Errorf("the tenant's: %v, want %v", got, want)
	}
	got, at := read(root, 1, 2)
	if want := "[sandbox.created mine sandbox.created theirs]"; fmt.Sprint(got) != want {
		t.Errorf("all: %v, want %v", got, want)
	}
	append("secret/openai-api-key", "set", "", "", "")
	append("sandbox/later", "started", "later", "dddd", "")
	reader, _ := keyed(t, h, "reader", "", "read")
	got, _ = read(reader, at, 5)
	if want := "[approval.asked a1 key.created acme approval.asked a2 sandbox.removed gone sandbox.started later]"; fmt.Sprint(got) != want {
		t.Errorf("without the scope of secrets: %v, want %v", got, want)
	}
	got, _ = read(root, at, 6)
	if want := "[approval.asked a1 key.created acme approval.asked a2 sandbox.removed gone secret.set openai-api-key sandbox.started later]"; fmt.Sprint(got) != want {
		t.Errorf("after %d: %v, want %v", at, got, want)
	}
	_, text := keyed(t, h, "raw", "", "read")
	if status, _, _, _ := raw(t, h, text, "GET", "/v1/events", "", "Last-Event-ID", "x"); status != 400 {
		t.Errorf("a position that is none: %d", status)
	}
}

// Streams of one caller are bounded, and those of others are not touched by it.
func TestStreamsAreBounded(t *testing.T) {
	_, _, h := serve(t, true)
	h.audit = t.TempDir()
	greedy, _ := keyed(t, h, "greedy", "", "read")
	other, _ := keyed(t, h, "other", "", "read")
	var open []io.Closer
	var err error
	for range 20 {
		var s io.ReadCloser
		if s, err = greedy.Stream(t.Context(), "/v1/events", nil); err != nil {
			break
		}
		open = append(open, s)
	}
	var p *client.Problem
	if len(open) != 8 || !errors.As(err, &p) || p.Status != 503 || p.Type != client.ProblemType+"busy" {
		t.Errorf("%d streams, then %v", len(open), err)
	}
	s, err := other.Stream(t.Context(), "/v1/events", nil)
	if err != nil {
		t.Fatalf("another's: %v", err)
	}
	for _, c := range append(open, s) {
		c.Close()
	}
	must.Soon(t, "room for another", func() bool {
		s, err := greedy.Stream(t.Context(), "/v1/events", nil)
		if err != nil {
			return false
		}
		return s.Close() == nil
	})
}
