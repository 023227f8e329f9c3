package manager

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"sallyport/internal/test/must"
	"sallyport/sandbox"
	"sallyport/sandbox/state"
)

// The remains of an attempt that the engine could not be reached to undo are removed by the
// next, and its name is free.
func TestHalfMadeMakesWay(t *testing.T) {
	b := newBed(t)
	rec := state.Record{Name: "a", ID: newID(), Address: netip.MustParseAddr("10.9.0.3")}
	must.OK(t, errors.Join(os.Mkdir(b.Manager.dir("a"), 0o700), rec.Write(b.Manager.dir("a"))))
	i, created, err := b.GetOrCreate(t.Context(), "a", sandbox.Spec{})
	if err != nil || !created || i.ID == rec.ID {
		t.Errorf("got %+v, %v, %v", i, created, err)
	}
	// A folder that no sandbox has left stays.
	must.OK(t, os.Mkdir(b.Manager.dir("b"), 0o700))
	if _, _, err := b.GetOrCreate(t.Context(), "b", sandbox.Spec{}); !errors.Is(err, sandbox.ErrBadName) {
		t.Errorf("a folder in the way: %v", err)
	}
}

// Whatever step fails, nothing half-made is left.
func TestCreateLeavesNothing(t *testing.T) {
	for _, fault := range []string{"create", "root", "record created"} {
		t.Run(fault, func(t *testing.T) {
			h, dir := newFaultHost(), t.TempDir()
			h.fault = fault
			m := open(t, h, dir)
			if _, _, err := m.GetOrCreate(t.Context(), "a", sandbox.Spec{}); !errors.Is(err, errFault) {
				t.Fatalf("got %v, want the fault", err)
			}
			if len(h.containers)+len(h.roots)+len(m.List()) != 0 {
				t.Errorf("left: containers %v, roots %v, sandboxes %v", h.containers, h.roots, m.List())
			}
			if _, err := os.Stat(filepath.Join(dir, "a")); err == nil {
				t.Error("its folder is left")
			}
			h.fault = ""
			if _, created, err := m.GetOrCreate(t.Context(), "a", sandbox.Spec{}); err != nil || !created {
				t.Errorf("the next attempt: created %v, %v", created, err)
			}
		})
	}
}

// A sandbox that cannot be identified does not run.
func TestStartFailsClosed(t *testing.T) {
	for _, fault := range []string{"start", "attach", "record started"} {
		t.Run(fault, func(t *testing.T) {
			h := newFaultHost()
			m := open(t, h, t.TempDir())
			i, _, err := m.GetOrCreate(t.Context(), "a", sandbox.Spec{})
			must.OK(t, err)
			h.fault = fault
			if _, err := m.Start(t.Context(), "a"); !errors.Is(err, errFault) {
				t.Fatalf("got %v, want the fault", err)
			}
			if h.containers[i.ID] || len(h.endpoints) != 0 {
				t.Errorf("it runs: %v, endpoints %v", h.containers, h.endpoints)
			}
			if _, ok := m.ByAddress(i.Address); ok {
				t.Error("the gateway knows it")
			}
			if got, err := m.Get("a"); err != nil || got.State != sandbox.Stopped {
				t.Errorf("got %v, %v, want stopped", got.State, err)
			}
		})
	}
}

// A manager that starts anew agrees with what really runs.
func TestReconcile(t *testing.T) {
	for _, c := range []struct {
		name     string
		meddle   func(h *faultHost, id, dir string)
		state    sandbox.State
		attached bool
	}{
		{"nothing happened", func(*faultHost, string, string) {}, sandbox.Running, true},
		{"it ended", func(h *faultHost, id, _ string) { h.containers[id] = false }, sandbox.Stopped, false},
		{"its identity is gone", func(h *faultHost, _, _ string) { h.endpoints = map[uint32]sandbox.Endpoint{} }, sandbox.Running, true},
		{"its container is gone", func(h *faultHost, id, _ string) { delete(h.containers, id) }, sandbox.Failed, false},
		{"it is on another interface", func(h *faultHost, _, _ string) {
			for g, ep := range h.endpoints {
				ep.Link = 99
				h.endpoints[g] = ep
			}
		}, sandbox.Running, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			h, dir := newFaultHost(), t.TempDir()
			m := open(t, h, dir)
			i, _, err := m.GetOrCreate(t.Context(), "a", sandbox.Spec{})
			must.OK(t, err)
			if _, err := m.Start(t.Context(), "a"); err != nil {
				t.Fatal(err)
			}
			h.endpoints[999] = sandbox.Endpoint{Generation: 999, Link: 55} // nobody's
			c.meddle(h, i.ID, dir)

			m = open(t, h, dir)
			got, err := m.Get("a")
			if err != nil || got.State != c.state {
				t.Errorf("got %v %q, %v, want %v", got.State, got.Reason, err, c.state)
			}
			if _, known := m.ByAddress(i.Address); known != c.attached {
				t.Errorf("known to the gateway: %v, want %v", known, c.attached)
			}
			ep, attached := h.endpoints[got.Generation]
			if attached != c.attached || attached && ep.Link != 7 {
				t.Errorf("endpoint %v %v, want %v on interface 7", attached, ep, c.attached)
			}
			if _, left := h.endpoints[999]; left {
				t.Error("an endpoint that is nobody's is left")
			}
		})
	}
}

// An end behind the manager's back while it runs is one event, an identity that is taken away,
// and no more.
func TestWatched(t *testing.T) {
	for _, c := range []struct {
		name   string
		meddle func(h *faultHost, id string)
		state  sandbox.State
	}{
		{"it ended", func(h *faultHost, id string) { h.containers[id] = false }, sandbox.Stopped},
		{"it ended, its interface too", func(h *faultHost, id string) { h.containers[id] = false; clear(h.endpoints) }, sandbox.Stopped},
		{"its container is gone", func(h *faultHost, id string) { delete(h.containers, id) }, sandbox.Failed},
	} {
		for _, again := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, daemon restarted %v", c.name, again), func(t *testing.T) {
				h, dir := newFaultHost(), t.TempDir()
				m := open(t, h, dir)
				i, _, err := m.GetOrCreate(t.Context(), "a", sandbox.Spec{})
				must.OK(t, err)
				if _, err := m.Start(t.Context(), "a"); err != nil {
					t.Fatal(err)
				}
				c.meddle(h, i.ID)
				for range 2 {
					if again {
						m = open(t, h, dir)
					} else if _, err := m.reconcile(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				if got, err := m.Get("a"); err != nil || got.State != c.state || got.Session != "" {
					t.Errorf("got %v, session %q, %v, want %v", got.State, got.Session, err, c.state)
				}
				if _, known := m.ByAddress(i.Address); known || len(h.endpoints) != 0 {
					t.Errorf("known to the gateway: %v, endpoints: %v", known, h.endpoints)
				}
				if got, want := strings.Join(h.events, ", "), "a created, a started, a stopped"; got != want {
					t.Errorf("events: got %s, want %s", got, want)
				}
			})
		}
	}
}

// A daemon that died while it made a sandbox removes it at the next start.
func TestHalfMadeIsRemoved(t *testing.T) {
	h, dir := newFaultHost(), t.TempDir()
	m := open(t, h, dir)
	i, _, err := m.GetOrCreate(t.Context(), "a", sandbox.Spec{})
	must.OK(t, err)
	rec, err := state.Read(filepath.Join(dir, "a"))
	must.OK(t, err)
	rec.Ready = false
	must.OK(t, rec.Write(filepath.Join(dir, "a")))
	m = open(t, h, dir)
	if _, err := m.Get("a"); !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("got %v, want it gone", err)
	}
	if _, left := h.containers[i.ID]; left {
		t.Error("its container is left")
	}
}

// A daemon that is killed as it writes a file leaves an unfinished one, which the next removes.
func TestOpenRemovesUnfinishedFiles(t *testing.T) {
	b := newBed(t)
	b.live(t, "a")
	left := []string{filepath.Join(b.dir, "..counters.tmp-1"), filepath.Join(b.dir, "a", "."+state.RecordFile+".tmp-1")}
	inside := filepath.Join(b.dir, "a", "memory", ".of the sandbox.tmp-1")
	must.OK(t, os.MkdirAll(filepath.Dir(inside), 0o700))
	for _, path := range append(left, inside) {
		must.OK(t, os.WriteFile(path, []byte("{"), 0o600))
	}
	b.open(t)
	for _, path := range left {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left: %v", path, err)
		}
	}
	if _, err := os.Lstat(inside); err != nil {
		t.Errorf("a file of the sandbox's is gone: %v", err)
	}
}

// An engine that is away at the start is an error, and takes nothing down.
func TestOpenWithoutEngine(t *testing.T) {
	h, dir := newFaultHost(), t.TempDir()
	m := open(t, h, dir)
	if _, _, err := m.GetOrCreate(t.Context(), "a", sandbox.Spec{}); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Start(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	h.fault = "status"
	_, err := Open(t.Context(), m.opt)
	if !errors.Is(err, sandbox.ErrEngine) {
		t.Errorf("got %v, want ErrEngine", err)
	}
	if len(h.endpoints) != 1 {
		t.Errorf("endpoints: %v, want the sandbox's", h.endpoints)
	}
}

func TestSpec(t *testing.T) {
	for _, c := range []struct {
		name string
		spec sandbox.Spec
		want string
	}{
		{"a known secret", sandbox.Spec{Env: map[string]string{"T": "known secret"}}, "variable T holds a secret"},
		{"an environment name", sandbox.Spec{Env: map[string]string{"a b": "x"}}, "environment name"},
		{"a NUL byte", sandbox.Spec{Env: map[string]string{"A": "x\x00"}}, "NUL"},
		{"a relative folder", sandbox.Spec{Workdir: "x"}, "absolute"},
		{"an unknown runtime", sandbox.Spec{Runtime: "kata"}, "runsc"},
		{"a limit below zero", sandbox.Spec{Pids: -1}, "pids -1: use at least 64"},
		{"too few processes", sandbox.Spec{Pids: 63}, "pids 63: use at least 64"},
		{"too little of a processor", sandbox.Spec{CPUs: 0.001}, "cpus 0.001: use at least 0.01"},
		{"too little memory", sandbox.Spec{Memory: 4096}, "memory of 4KiB: use at least 32MiB"},
		{"too little disk", sandbox.Spec{Disk: 1}, "disk of 1B: use at least"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := open(t, newFaultHost(), t.TempDir())
			_, _, err := m.GetOrCreate(t.Context(), "a", c.spec)
			if !errors.Is(err, sandbox.ErrBadSpec) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// Where it cannot be told whether a value is a secret, it is taken for one.
func TestSecretsThatCannotBeCompared(t *testing.T) {
	h := newFaultHost()
	h.fault = "compare"
	m := open(t, h, t.TempDir())
	if _, _, err := m.GetOrCreate(t.Context(), "a", sandbox.Spec{Env: map[string]string{"T": "x"}}); !errors.Is(err, sandbox.ErrBadSpec) {
		t.Errorf("got %v, want a refusal", err)
	}
	if _, _, err := m.GetOrCreate(t.Context(), "a", sandbox.Spec{}); err != nil {
		t.Errorf("without an environment: %v", err)
	}
}

// A record that cannot be read costs its own sandbox, not the others.
func TestDamagedRecord(t *testing.T) {
	h, dir := newFaultHost(), t.TempDir()
	m := open(t, h, dir)
	for _, name := range []string{"a", "b"} {
		if _, _, err := m.GetOrCreate(t.Context(), name, sandbox.Spec{}); err != nil {
			t.Fatal(err)
		}
		if _, err := m.Start(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	must.OK(t, os.WriteFile(filepath.Join(dir, "a", state.RecordFile), []byte("{"), 0o600))
	m = open(t, h, dir)
	if list := m.List(); len(list) != 1 || list[0].Name != "b" || list[0].State != sandbox.Running {
		t.Errorf("got %v, want b running", list)
	}
	if len(h.endpoints) != 1 {
		t.Errorf("endpoints %v, want b's alone", h.endpoints)
	}
	if _, _, err := m.GetOrCreate(t.Context(), "a", sandbox.Spec{}); err == nil || !strings.Contains(err.Error(), "move it aside") {
		t.Errorf("making it again: got %v, want what is in the way", err)
	}
}

// An address that was given back rests until the subnet has been used up.
func TestAddresses(t *testing.T) {
	h, dir := newFaultHost(), t.TempDir()
	m := open(t, h, dir)
	var got []string
	for _, name := range []string{"a", "b"} {
		i, _, err := m.GetOrCreate(t.Context(), name, sandbox.Spec{})
		must.OK(t, err)
		got = append(got, i.Address.String())
	}
	must.OK(t, m.Remove(t.Context(), "a"))
	m = open(t, h, dir) // also over a restart
	for _, name := range []string{"c", "d", "e"} {
		i, _, err := m.GetOrCreate(t.Context(), name, sandbox.Spec{})
		must.OK(t, err)
		got = append(got, i.Address.String())
	}
	want := "10.9.0.3 10.9.0.4 10.9.0.5 10.9.0.6 10.9.0.3"
	if s := strings.Join(got, " "); s != want {
		t.Errorf("got %s, want %s", s, want)
	}
	if _, _, err := m.GetOrCreate(t.Context(), "f", sandbox.Spec{}); !errors.Is(err, sandbox.ErrNoAddress) {
		t.Errorf("got %v, want ErrNoAddress", err)
	}
}

// Calls for one name at the same time make one sandbox, and removing it
// meanwhile loses none that was promised.
func TestConcurrent(t *testing.T) {
	h := newFaultHost()
	m := open(t, h, t.TempDir())
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				if _, _, err := m.GetOrCreate(t.Context(), "a", sandbox.Spec{}); err != nil {
					t.Error(err)
				}
				if err := m.Remove(t.Context(), "a"); err != nil && !errors.Is(err, sandbox.ErrNotFound) {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n := len(m.List()); n != 0 || len(h.containers) != 0 {
		t.Errorf("%d sandboxes, containers %v, want none", n, h.containers)
	}
}

func TestCheckName(t *testing.T) {
	for name, ok := range map[string]bool{
		"a": true, "a-b": true, "0": true, strings.Repeat("a", 63): true,
		"": false, "-a": false, "a-": false, "A": false, "a.b": false, "a/b": false, "..": false, "ä": false,
		strings.Repeat("a", 64): false,
	} {
		if err := sandbox.CheckName(name); (err == nil) != ok {
			t.Errorf("%q: got %v, want ok %v", name, err, ok)
		}
	}
}

// A listing does not wait for a sandbox that takes its time to stop.
func TestListDoesNotWait(t *testing.T) {
	h := newFaultHost()
	m := open(t, h, t.TempDir())
	if _, _, err := m.GetOrCreate(t.Context(), "a", sandbox.Spec{}); err != nil {
		t.Fatal(err)
	}
	e, err := m.existing(t.Context(), "a") // as a call that is under way holds it
	must.OK(t, err)
	listed := make(chan []sandbox.Info)
	go func() { listed <- m.List() }()
	select {
	case list := <-listed:
		if len(list) != 1 || list[0].Name != "a" {
			t.Errorf("got %v, want a", list)
		}
	case <-time.After(time.Minute):
		t.Error("the listing waits")
	}
	m.release(e)
}

// Something that takes long with one sandbox keeps none of the others from being
// looked after, and costs the one nothing.
func TestOthersDoNotWait(t *testing.T) {
	h := newFaultHost()
	m := open(t, h, t.TempDir())
	var ids []string
	for _, name := range []string{"a", "b"} {
		if _, _, err := m.GetOrCreate(t.Context(), name, sandbox.Spec{}); err != nil {
			t.Fatal(err)
		}
		i, err := m.Start(t.Context(), name)
		must.OK(t, err)
		ids = append(ids, i.ID)
	}
	e, err := m.existing(t.Context(), "a")
	must.OK(t, err)
	h.containers[ids[1]] = false
	done := make(chan bool)
	go func() {
		busy, err := m.reconcile(t.Context())
		done <- busy && err == nil
	}()
	select {
	case ok := <-done:
		if !ok {
			t.Error("it does not tell that one was not looked at")
		}
	case <-time.After(time.Minute):
		t.Error("the others wait")
	}
	m.release(e)
	states(t, m, "a running, b stopped")
	if len(h.endpoints) != 1 || h.endpoints[e.Rec.Generation].ID != ids[0] {
		t.Errorf("endpoints %v, want a's", h.endpoints)
	}
}

// A call that hangs does not keep the daemon from its end.
func TestCloseDoesNotWait(t *testing.T) {
	m := open(t, newFaultHost(), t.TempDir())
	if _, _, err := m.GetOrCreate(t.Context(), "a", sandbox.Spec{}); err != nil {
		t.Fatal(err)
	}
	e, err := m.existing(t.Context(), "a")
	must.OK(t, err)
	closed := make(chan error)
	go func() { closed <- m.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(5 * closeGrace):
		t.Error("it waits")
	}
	m.release(e)
}
