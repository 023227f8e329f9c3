package manager

import (
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"sallyport/internal/test/must"
	"sallyport/sandbox"
)

func ptr[T any](v T) *T { return &v }

// A second create says of each difference when it could come to hold.
func TestDifferences(t *testing.T) {
	m := open(t, newFaultHost(), t.TempDir())
	if _, _, err := m.GetOrCreate(t.Context(), "a", sandbox.Spec{}); err != nil {
		t.Fatal(err)
	}
	_, _, err := m.GetOrCreate(t.Context(), "a", sandbox.Spec{
		Image: "other", Tags: map[string]string{"x": "y"}, Lifetime: sandbox.Duration(time.Hour), CPUs: 3, Offline: true, Ephemeral: true,
	})
	if !errors.Is(err, sandbox.ErrSpecMismatch) {
		t.Fatalf("got %v, want a conflict", err)
	}
	for _, want := range []string{
		"tags, lifetime 1h0m0s (has none), which can be set at once",
		"cpus 3 (has none), offline, which can be set for its next session",
		"image other (has base), ephemeral, which needs a new sandbox",
		"sandbox set a",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("got %q, want %q in it", err, want)
		}
	}
}

// Tags hold at once, also for the gateway; limits from the next session on, and
// over a restart of the daemon; the container stays the same.
func TestSet(t *testing.T) {
	h, dir := newFaultHost(), t.TempDir()
	var told []sandbox.Info
	m, err := Open(t.Context(), Options{
		Dir: dir, Subnet: netip.MustParsePrefix("10.9.0.0/29"), Defaults: sandbox.Spec{Image: "base", Runtime: sandbox.GVisor, Pids: 100},
		Runtime: h, Network: h, Authority: h, Secrets: h, Recorder: h, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Publish: func(_ netip.Addr, i sandbox.Info) { told = append(told, i) },
	})
	must.OK(t, err)
	made, _, err := m.GetOrCreate(t.Context(), "a", sandbox.Spec{Env: map[string]string{"A": "1"}})
	must.OK(t, err)
	if _, err := m.Start(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	set := sandbox.SpecChange{Tags: map[string]string{"team": "x"}, CPUs: ptr(2.0), Env: map[string]string{}}
	got, err := m.Set(t.Context(), "a", set)
	must.OK(t, err)
	if got.Spec.Tags["team"] != "x" || got.Spec.CPUs != 0 || got.Next == nil || got.Next.CPUs != 2 || len(got.Next.Env) != 0 || got.Spec.Env["A"] != "1" {
		t.Errorf("got %+v with %+v next", got.Spec, got.Next)
	}
	if last := told[len(told)-1]; last.Spec.Tags["team"] != "x" || m.Identities()[made.Address].Spec.Tags["team"] != "x" {
		t.Errorf("the gateway was told %+v", told)
	}
	if h.limits.CPUs != 0 || h.starts != 1 {
		t.Errorf("something was restarted: %+v, %d starts", h.limits, h.starts)
	}
	if _, created, err := m.GetOrCreate(t.Context(), "a", sandbox.Spec{CPUs: 2}); err != nil || created {
		t.Errorf("asking for what it will have: %v", err)
	}

	m = open(t, h, dir)
	if got, err = m.Set(t.Context(), "a", sandbox.SpecChange{Restart: true}); err != nil {
		t.Fatal(err)
	}
	if got.Next != nil || got.Spec.CPUs != 2 || len(got.Spec.Env) != 0 || got.State != sandbox.Running || h.limits.CPUs != 2 || h.starts != 2 || got.ID != made.ID {
		t.Errorf("after a restart: %+v, limits %+v, %d starts", got, h.limits, h.starts)
	}
	// Back to what is: nothing is left to wait for.
	for range 2 {
		if _, err = m.Set(t.Context(), "a", sandbox.SpecChange{User: ptr("nobody")}); err != nil {
			t.Fatal(err)
		}
	}
	if got, err = m.Set(t.Context(), "a", sandbox.SpecChange{User: ptr("")}); err != nil || got.Next != nil {
		t.Errorf("got %+v next, %v", got.Next, err)
	}
	want := "a created, a started, a changed, a stopped, a started, a changed, a changed"
	if got := strings.Join(h.events, ", "); got != want {
		t.Errorf("events: got %s, want %s", got, want)
	}
}

// A value that cannot be set changes nothing, nor does one that is not on record.
func TestSetRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		change sandbox.SpecChange
		fault  string
		want   error
	}{
		"another image":      {sandbox.SpecChange{Image: ptr("b"), Tags: map[string]string{"a": "b"}}, "", sandbox.ErrSpecMismatch},
		"another disk":       {sandbox.SpecChange{Disk: ptr(int64(1 << 30))}, "", sandbox.ErrSpecMismatch},
		"being ephemeral":    {sandbox.SpecChange{Ephemeral: ptr(true)}, "", sandbox.ErrSpecMismatch},
		"no limit":           {sandbox.SpecChange{CPUs: ptr(0.0)}, "", sandbox.ErrBadSpec},
		"too little memory":  {sandbox.SpecChange{Memory: ptr(int64(1))}, "", sandbox.ErrBadSpec},
		"a user":             {sandbox.SpecChange{User: ptr("a b")}, "", sandbox.ErrBadSpec},
		"a short lifetime":   {sandbox.SpecChange{Lifetime: ptr(sandbox.Duration(1))}, "", sandbox.ErrBadSpec},
		"a label":            {sandbox.SpecChange{Labels: map[string]string{"": "x"}}, "", sandbox.ErrBadSpec},
		"a secret":           {sandbox.SpecChange{Env: map[string]string{"T": "known secret"}}, "", sandbox.ErrBadSpec},
		"no log":             {sandbox.SpecChange{Tags: map[string]string{"a": "b"}}, "record changed", errFault},
		"somebody else's":    {sandbox.SpecChange{Tags: map[string]string{"a": "b"}}, "", sandbox.ErrNotFound},
		"no update, at once": {sandbox.SpecChange{CPUs: ptr(1.0), Restart: true}, "update", errFault},
	} {
		t.Run(name, func(t *testing.T) {
			h := newFaultHost()
			m := open(t, h, t.TempDir())
			if _, _, err := m.GetOrCreate(t.Context(), "a", sandbox.Spec{}); err != nil {
				t.Fatal(err)
			}
			if _, err := m.Start(t.Context(), "a"); err != nil {
				t.Fatal(err)
			}
			before, _ := m.Get("a")
			ctx := t.Context()
			if c.want == sandbox.ErrNotFound {
				ctx = sandbox.ForOwner(ctx, "other")
			}
			h.fault = c.fault
			if _, err := m.Set(ctx, "a", c.change); !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
			if after, _ := m.Get("a"); c.fault != "update" && cmp.Diff(before.Spec, after.Spec)+cmp.Diff(before.Next, after.Next) != "" {
				t.Errorf("it is %+v now, next %+v", after.Spec, after.Next)
			}
		})
	}
}

// An ephemeral sandbox goes with its session, however that ends.
func TestEphemeral(t *testing.T) {
	for name, end := range map[string]func(*testing.T, *Manager, *faultHost, string, sandbox.Info) *Manager{
		"stopped": func(t *testing.T, m *Manager, _ *faultHost, _ string, _ sandbox.Info) *Manager {
			if _, err := m.Stop(t.Context(), "a"); err != nil {
				t.Error(err)
			}
			return m
		},
		"ended by itself": func(t *testing.T, m *Manager, h *faultHost, _ string, i sandbox.Info) *Manager {
			h.containers[i.ID] = false
			if _, err := m.reconcile(t.Context()); err != nil {
				t.Error(err)
			}
			return m
		},
		"its container is gone": func(t *testing.T, m *Manager, h *faultHost, _ string, i sandbox.Info) *Manager {
			delete(h.containers, i.ID)
			if _, err := m.reconcile(t.Context()); err != nil {
				t.Error(err)
			}
			return m
		},
		"ended while no daemon was": func(t *testing.T, _ *Manager, h *faultHost, dir string, i sandbox.Info) *Manager {
			h.containers[i.ID] = false
			return open(t, h, dir)
		},
		"a crash before its removal": func(t *testing.T, m *Manager, h *faultHost, dir string, i sandbox.Info) *Manager {
			h.fault = "record removed"
			_, _ = m.Stop(t.Context(), "a")
			h.fault = ""
			return open(t, h, dir)
		},
	} {
		t.Run(name, func(t *testing.T) {
			h, dir := newFaultHost(), t.TempDir()
			m := open(t, h, dir)
			i, _, err := m.GetOrCreate(t.Context(), "a", sandbox.Spec{Ephemeral: true})
			must.OK(t, err)
			m = open(t, h, dir) // one that has had no session stays
			if _, err := m.Start(t.Context(), "a"); err != nil {
				t.Fatal(err)
			}
			m = end(t, m, h, dir, i)
			if len(m.List())+len(h.containers)+len(h.roots)+len(h.endpoints) != 0 {
				t.Errorf("left: %v, containers %v, roots %v, endpoints %v", m.List(), h.containers, h.roots, h.endpoints)
			}
			if got, want := strings.Join(h.events, ", "), "a created, a started, a stopped, a removed"; got != want {
				t.Errorf("events: got %s, want %s", got, want)
			}
		})
	}
}

// A sandbox is stopped when its lifetime ends, and starts again only with more.
func TestLifetime(t *testing.T) { synctest.Test(t, testLifetime) }

func testLifetime(t *testing.T) {
	h := newFaultHost()
	m := open(t, h, t.TempDir())
	for name, spec := range map[string]sandbox.Spec{"a": {Lifetime: sandbox.Duration(time.Second)}, "b": {Lifetime: sandbox.Duration(time.Second), Ephemeral: true}, "c": {}} {
		if _, _, err := m.GetOrCreate(t.Context(), name, spec); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := m.Start(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second + 10*time.Millisecond)
	m.expireAll(t.Context())
	var names []string
	for _, i := range m.List() {
		names = append(names, i.Name+" "+string(i.State))
	}
	if d := cmp.Diff([]string{"a stopped", "c stopped"}, names); d != "" {
		t.Error(d)
	}
	if _, err := m.Start(t.Context(), "a"); !errors.Is(err, sandbox.ErrExpired) {
		t.Errorf("got %v, want %v", err, sandbox.ErrExpired)
	}
	if _, err := m.Set(t.Context(), "a", sandbox.SpecChange{Lifetime: ptr(sandbox.Duration(0))}); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Start(t.Context(), "a"); err != nil {
		t.Error(err)
	}
}

// The gateway never hears of a sandbox that is offline, and the network is told.
func TestOfflineIsNobody(t *testing.T) {
	h := newFaultHost()
	m := open(t, h, t.TempDir())
	i, _, err := m.GetOrCreate(t.Context(), "a", sandbox.Spec{Offline: true})
	must.OK(t, err)
	if _, err := m.Start(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if _, known := m.ByAddress(i.Address); known {
		t.Error("the gateway knows it")
	}
	if len(h.endpoints) != 1 || !h.endpoints[1].Offline {
		t.Errorf("endpoints %+v", h.endpoints)
	}
}
