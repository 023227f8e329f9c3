package manager

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"sallyport/internal/test/must"
	"sallyport/sandbox"
)

// pooledHost opens a manager with a pool of two, which is full.
func pooledHost(t *testing.T, h *faultHost, dir string) *Manager {
	t.Helper()
	m := openPooled(t, h, dir, 2)
	if err := m.refillPool(t.Context()); err != nil || m.poolSize() != 2 {
		t.Fatalf("%d in the pool, %v", m.poolSize(), err)
	}
	return m
}

func openPooled(t *testing.T, h *faultHost, dir string, size int) *Manager {
	t.Helper()
	m, err := Open(t.Context(), Options{
		Dir: dir, Subnet: netip.MustParsePrefix("10.9.0.0/27"), Defaults: sandbox.Spec{Image: "base", Runtime: sandbox.GVisor, Pids: 100},
		Pool: size, Runtime: h, Network: h, Authority: h, Secrets: h, Recorder: h, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	must.OK(t, err)
	return m
}

// A sandbox in the pool is nobody's: on no list, on no record, with no identity. A caller that
// asks for one like it gets it, running, with all that a sandbox has.
func TestPool(t *testing.T) {
	h, dir := newFaultHost(), t.TempDir()
	m := pooledHost(t, h, dir)
	if len(m.List())+len(h.events)+len(h.endpoints)+len(m.Identities()) != 0 || len(h.containers) != 2 {
		t.Fatalf("listed %v, events %v, endpoints %v, containers %v", m.List(), h.events, h.endpoints, h.containers)
	}
	i, created, err := m.GetOrCreate(sandbox.ForOwner(t.Context(), "acme"), "a", sandbox.Spec{Env: map[string]string{"A": "1"}, Tags: map[string]string{"t": "u"}, User: "nobody"})
	if err != nil || !created {
		t.Fatal(created, err)
	}
	if i.State != sandbox.Running || i.Session == "" || i.Spec.Tags["t"] != "u" || i.Spec.Owner != "acme" || h.starts != 2 || m.poolSize() != 1 {
		t.Errorf("got %+v after %d starts, %d in the pool", i, h.starts, m.poolSize())
	}
	if ep := h.endpoints[i.Generation]; ep.Sandbox != "a" || ep.ID != i.ID || ep.Address != i.Address || len(h.endpoints) != 1 {
		t.Errorf("endpoints %+v", h.endpoints)
	}
	if known, ok := m.ByAddress(i.Address); !ok || known.Name != "a" {
		t.Errorf("the gateway knows %+v", known)
	}
	if got, want := strings.Join(h.events, ", "), "a created, a started"; got != want {
		t.Errorf("events: got %s, want %s", got, want)
	}
	if _, err := os.Stat(filepath.Join(i.Memory, "memories.md")); err != nil || filepath.Dir(i.Memory) != filepath.Join(dir, "a") {
		t.Errorf("its memory: %v", err)
	}
	if to, err := filepath.EvalSymlinks(m.link(i.ID)); err != nil || filepath.Base(to) != "a" {
		t.Errorf("the engine finds %s, %v", to, err)
	}
	// As any other from then on, also for the next daemon.
	m = openPooled(t, h, dir, 0)
	if got, err := m.Get("a"); err != nil || got.State != sandbox.Running {
		t.Errorf("after a restart: %+v, %v", got, err)
	}
	must.OK(t, m.Remove(t.Context(), "a"))
	must.OK(t, m.refillPool(t.Context()))
	left, _ := filepath.Glob(filepath.Join(dir, ".*", "*"))
	if len(left)+len(h.containers)+len(h.roots)+len(m.addresses) != 0 {
		t.Errorf("left: %v, containers %v, roots %v, addresses %v", left, h.containers, h.roots, m.addresses)
	}
}

// Another container than the pool's is made as ever.
func TestPoolIsNotForAll(t *testing.T) {
	for name, s := range map[string]sandbox.Spec{
		"image": {Image: "other"}, "runtime": {Runtime: sandbox.RunC}, "cpus": {CPUs: 1}, "memory": {Memory: 1 << 30}, "pids": {Pids: 70}, "workdir": {Workdir: "/srv"},
	} {
		t.Run(name, func(t *testing.T) {
			m := pooledHost(t, newFaultHost(), t.TempDir())
			if i, _, err := m.GetOrCreate(t.Context(), "a", s); err != nil || m.poolSize() != 2 || i.State != sandbox.Stopped {
				t.Errorf("got %v, %v with %d in the pool", i.State, err, m.poolSize())
			}
		})
	}
}

// Whatever step fails, nothing half-made runs, and the next attempt succeeds.
func TestTakeFails(t *testing.T) {
	for fault, exists := range map[string]bool{"record created": false, "record started": true, "attach": true} {
		t.Run(fault, func(t *testing.T) {
			h := newFaultHost()
			m := pooledHost(t, h, t.TempDir())
			h.fault = fault
			if _, _, err := m.GetOrCreate(t.Context(), "a", sandbox.Spec{}); !errors.Is(err, errFault) {
				t.Fatalf("got %v, want the fault", err)
			}
			if _, err := m.Get("a"); (err == nil) != exists {
				t.Errorf("it is there: %v, want %v", err == nil, exists)
			}
			running := 0
			for _, r := range h.containers {
				if r {
					running++
				}
			}
			if running != 1 || len(h.endpoints)+len(m.Identities()) != 0 {
				t.Errorf("%d run, endpoints %v", running, h.endpoints)
			}
			h.fault = ""
			if _, _, err := m.GetOrCreate(t.Context(), "a", sandbox.Spec{}); err != nil {
				t.Error(err)
			}
			if i, err := m.Start(t.Context(), "a"); err != nil || i.State != sandbox.Running {
				t.Errorf("got %v, %v", i.State, err)
			}
		})
	}
}

// One of the pool that has ended is not given to anybody.
func TestPoolOfTheDead(t *testing.T) {
	h := newFaultHost()
	m := pooledHost(t, h, t.TempDir())
	for id := range h.containers {
		h.containers[id] = false
	}
	if _, created, err := m.GetOrCreate(t.Context(), "a", sandbox.Spec{}); err != nil || !created {
		t.Fatal(created, err)
	}
	if _, err := m.Start(t.Context(), "a"); err != nil || len(h.containers) != 1 || m.poolSize() != 0 {
		t.Errorf("containers %v, %d in the pool, %v", h.containers, m.poolSize(), err)
	}
}

// The remains of a daemon that was killed, at whichever step, are gone after the next one's
// start, and no address of it is given away before.
func TestPoolAfterACrash(t *testing.T) {
	for _, step := range []string{"waiting", "named", "linked", "moved", "recorded"} {
		t.Run(step, func(t *testing.T) {
			h, dir := newFaultHost(), t.TempDir()
			m := pooledHost(t, h, dir)
			rec := m.pool.ready[0]
			was := rec.Name
			rec.Name = "a"
			if step != "waiting" {
				must.OK(t, rec.Write(m.dir(was)))
			}
			if step != "waiting" && step != "named" {
				must.OK(t, m.linkTo(rec.ID, "a"))
			}
			if step == "moved" || step == "recorded" {
				must.OK(t, os.Rename(m.dir(was), m.dir("a")))
			}
			if step == "recorded" {
				rec.Ready = true
				must.OK(t, rec.Write(m.dir("a")))
			}
			m = openPooled(t, h, dir, 2)
			if step != "moved" && !m.addresses[rec.Address] {
				t.Error("its address may be given away")
			}
			must.OK(t, m.refillPool(t.Context()))
			want := 2
			if step == "recorded" {
				want = 3
				if i, err := m.Get("a"); err != nil || i.State != sandbox.Stopped || h.containers[rec.ID] {
					t.Errorf("got %v, %v, running %v", i.State, err, h.containers[rec.ID])
				}
			}
			if len(h.containers) != want || len(h.roots) != want || m.poolSize() != 2 || len(m.List()) != want-2 {
				t.Errorf("containers %v, roots %v, %d in the pool, listed %v", h.containers, h.roots, m.poolSize(), m.List())
			}
		})
	}
}

// Many who ask at once get one each, from the pool or made, and it is full again
// afterwards; at the end it is empty.
func TestFill(t *testing.T) {
	h := newFaultHost()
	m := openPooled(t, h, t.TempDir(), 2)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- m.FillPool(ctx) }()
	full := func() {
		t.Helper()
		must.Soon(t, "two in the pool", func() bool { return m.poolSize() == 2 })
	}
	full()
	var g sync.WaitGroup
	for _, name := range []string{"a", "b", "c", "d", "a", "b"} {
		g.Go(func() {
			if _, _, err := m.GetOrCreate(t.Context(), name, sandbox.Spec{}); err != nil {
				t.Error(err)
			}
		})
	}
	g.Wait()
	full()
	if len(m.List()) != 4 || len(h.containers) != 6 {
		t.Errorf("listed %v, containers %v", m.List(), h.containers)
	}
	cancel()
	if err := errors.Join(<-ended, m.DrainPool(t.Context())); err != nil || m.poolSize() != 0 || len(h.containers) != 4 {
		t.Errorf("%v, %d in the pool, containers %v", err, m.poolSize(), h.containers)
	}
}
