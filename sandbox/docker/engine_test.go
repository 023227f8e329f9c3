package docker

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sallyport/internal/test/must"
	"sallyport/sandbox"
)

func (l *testEngine) part(t *testing.T, name string) *part {
	t.Helper()
	for _, p := range l.engine.parts {
		if p.Name == name {
			return p
		}
	}
	t.Fatalf("the engine has no %s", name)
	return nil
}

// watch keeps the engine until the test ends.
func (l *testEngine) watch(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- l.engine.Watch(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("watching the engine: %v", err)
		}
	})
}

func TestEngineKilled(t *testing.T) {
	l := need(t)
	l.watch(t)
	id := l.start(t, l.container(t, ""))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	exits, err := l.runtime.Exits(ctx)
	must.OK(t, err)
	l.sh(t, id, "setsid sh -c 'echo $$ >/root/pid; while :; do date +%s%N >/root/next; mv /root/next /root/beat; sleep 0.1; done' >/dev/null 2>&1 & until test -s /root/beat; do sleep 0.1; done")
	pid := l.sh(t, id, "cat /root/pid")
	status, err := l.runtime.Status(t.Context(), id)
	must.OK(t, err)
	for _, names := range [][]string{{"dockerd"}, {"containerd"}, {"containerd", "dockerd"}} {
		t.Run(strings.Join(names, " and "), func(t *testing.T) {
			old := map[string]int{}
			for _, name := range names {
				p := l.part(t, name)
				if old[name] = p.Find(); old[name] == 0 {
					t.Fatalf("%s is not found", name)
				}
				p.Signal(syscall.SIGKILL)
			}
			for _, name := range names {
				p := l.part(t, name)
				eventually(t, patience, func() error {
					if now := p.Find(); now == 0 || now == old[name] {
						return errors.New(name + " was not restarted")
					}
					return p.ready(t.Context())
				})
			}
			var got sandbox.Status
			eventually(t, patience, func() (err error) {
				got, err = l.runtime.Status(t.Context(), id)
				return err
			})
			if got != status {
				t.Errorf("status: got %+v, want %+v", got, status)
			}
			if got := l.sh(t, id, "kill -0 $(cat /root/pid) && cat /root/pid"); got != pid {
				t.Errorf("process: got %s, want %s", got, pid)
			}
			if got := l.sh(t, id, "a=$(cat /root/beat); for i in $(seq 600); do test $a = $(cat /root/beat) || break; sleep 0.1; done; test $a != $(cat /root/beat) && echo beats"); got != "beats" {
				t.Errorf("process: got %q", got)
			}
			// All that a sandbox goes through works on the restarted engine, once dockerd, which
			// waits up to three seconds before that, has dialled containerd anew.
			other := l.create(t, l.container(t, ""))
			eventually(t, patience, func() error { _, err := l.runtime.Start(t.Context(), other); return err })
			if got := l.sh(t, other, "echo works"); got != "works" {
				t.Errorf("new sandbox: got %q", got)
			}
			if err := l.runtime.Remove(t.Context(), other); err != nil {
				t.Error(err)
			}
		})
	}
	select {
	case id := <-exits:
		t.Errorf("exit of %s reported, which runs", id)
	default:
	}
	// A sandbox that ends while nobody can say so is reported later.
	l.part(t, "dockerd").Signal(syscall.SIGKILL)
	syscall.Kill(status.PID, syscall.SIGKILL)
	select {
	case got := <-exits:
		if got != id {
			t.Errorf("exit: got %s, want %s", got, id)
		}
	case <-time.After(patience):
		t.Error("no exit was reported")
	}
	cancel()
	for range exits {
	}
}

func TestEngineTakenOver(t *testing.T) {
	l := need(t)
	pids := func(e *Engine) (all []int) {
		for _, p := range e.parts {
			all = append(all, p.Find())
		}
		return all
	}
	before := pids(l.engine)
	again, err := StartEngine(t.Context(), l.cfg)
	must.OK(t, err)
	defer again.Close()
	after := pids(again)
	for i := range before {
		if before[i] == 0 || before[i] != after[i] {
			t.Errorf("processes: got %v, want %v", after, before)
		}
	}
	// It also notices when a process that it has taken over dies.
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := again.parts[1].Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("waiting for a live process: got %v", err)
	}
}

func TestEngineReconfigured(t *testing.T) {
	l := need(t)
	id := l.start(t, l.container(t, ""))
	status, err := l.runtime.Status(t.Context(), id)
	must.OK(t, err)
	path := layout(l.cfg).dockerdConfig()
	old := l.part(t, "dockerd").Find()
	must.OK(t, os.WriteFile(path, []byte("{}"), 0o600))
	again, err := StartEngine(t.Context(), l.cfg)
	must.OK(t, err)
	again.Close()
	if now := l.part(t, "dockerd").Find(); now == 0 || now == old {
		t.Errorf("dockerd was %d and is %d: it was not restarted", old, now)
	}
	for _, p := range l.engine.parts {
		if _, err := p.Adopt(); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := l.runtime.Status(t.Context(), id); err != nil || got != status {
		t.Errorf("sandbox: got %+v, %v, want %+v", got, err, status)
	}
}

func TestGuard(t *testing.T) {
	l := need(t)
	for _, runtime := range []string{"runsc", "runc", "io.containerd.runc.v2"} {
		t.Run(runtime, func(t *testing.T) {
			c := l.container(t, "")
			c.Spec.Runtime = runtime
			id := l.create(t, c)
			must.OK(t, os.Remove(l.pinPath()))
			_, err := l.runtime.Start(t.Context(), id)
			if perr := l.pin(); perr != nil {
				t.Fatal(perr)
			}
			if err == nil || !strings.Contains(err.Error(), "not guarding "+testBridge) {
				t.Errorf("without the pin: got %v, want a refusal", err)
			}
			if s, err := l.runtime.Status(t.Context(), id); err != nil || s.Running || s.Error == "" {
				t.Errorf("status after the refusal: got %+v, %v", s, err)
			}
			if _, err := l.runtime.Start(t.Context(), id); err != nil {
				t.Errorf("with the pin: %v", err)
			}
		})
	}
}

func TestGuardScript(t *testing.T) {
	l := need(t)
	dir := t.TempDir()
	real := filepath.Join(dir, "it's real")
	must.OK(t, os.WriteFile(real, []byte("#!/bin/sh\necho ran \"$@\"\n"), 0o755))
	pins := filepath.Join(dir, "pins")
	must.OK(t, os.Mkdir(pins, 0o700))
	must.OK(t, writeStartShim(dir, "runsc", testBridge, pins, dir, real, "--flag"))
	must.OK(t, writeStartShim(dir, "absent", "spdk-none", pins, dir, real))
	pin := filepath.Join(pins, "bridge-"+strconv.Itoa(l.bridge))
	for _, tt := range []struct {
		name, script string
		pinned       bool
		args         []string
		want         string
	}{
		{"create, unguarded", "runsc", false, []string{"--root", "/r", "create", "--bundle", "/b", "abc"}, ""},
		{"restore, unguarded", "runsc", false, []string{"restore", "abc"}, ""},
		{"start, unguarded", "runsc", false, []string{"start", "abc"}, ""},
		{"run, unguarded", "runsc", false, []string{"--debug", "run", "abc"}, ""},
		{"delete, unguarded", "runsc", false, []string{"--root", "/r", "delete", "abc"}, "ran --flag --root /r delete abc"},
		{"create, guarded", "runsc", true, []string{"create", "a b"}, "ran --flag create a b"},
		{"create, no bridge", "absent", true, []string{"create", "abc"}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			os.Remove(pin)
			if tt.pinned {
				must.OK(t, os.WriteFile(pin, nil, 0o600))
			}
			out, err := output(filepath.Join(dir, tt.script), tt.args...)
			if tt.want == "" && (err == nil || !strings.Contains(out, "sallyport up")) {
				t.Errorf("got %q, %v, want a refusal", out, err)
			}
			if tt.want != "" && strings.TrimSpace(out) != tt.want {
				t.Errorf("got %q, %v, want %q", out, err, tt.want)
			}
		})
	}
}

// The engine leaves the host's packets alone.
func TestEngineNetwork(t *testing.T) {
	l := need(t)
	l.start(t, l.container(t, ""))
	for path, want := range map[string]string{
		"/proc/sys/net/ipv4/conf/" + testBridge + "/route_localnet": "0",
	} {
		got, err := os.ReadFile(path)
		if err != nil || strings.TrimSpace(string(got)) != want {
			t.Errorf("%s: got %q, %v, want %q", path, got, err, want)
		}
	}
	// Nothing to inspect may be installed; then there is nothing to worry about.
	if out, err := output("iptables-save"); err == nil && strings.Contains(out, testBridge) {
		t.Errorf("packet filter rules were made:\n%s", out)
	}
}

func TestStartEngineRefuses(t *testing.T) {
	need(t)
	for name, change := range map[string]func(*EngineConfig){
		"no runsc":      func(c *EngineConfig) { c.Runsc = "/no/such/runsc" },
		"relative path": func(c *EngineConfig) { c.DataDir = "data" },
		"long path":     func(c *EngineConfig) { c.RunDir = "/tmp/" + strings.Repeat("x", 100) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			cfg := EngineConfig{DataDir: dir, RunDir: dir, Runsc: "/bin/true", Bridge: "spdk9", Pins: dir, Log: shared.cfg.Log}
			change(&cfg)
			if e, err := StartEngine(t.Context(), cfg); err == nil {
				e.Stop(t.Context())
				t.Error("it started")
			}
		})
	}
}

func TestConnect(t *testing.T) {
	l := need(t)
	e, err := Connect(t.Context(), l.engine.Host(), l.cfg)
	must.OK(t, err)
	if err := e.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	if !l.part(t, "dockerd").Alive() {
		t.Error("letting go of an existing engine ended it")
	}
	if _, err := Connect(t.Context(), "unix:///no/such.sock", l.cfg); !errors.Is(err, sandbox.ErrEngine) {
		t.Errorf("no engine: got %v, want ErrEngine", err)
	}
	other := l.cfg // whose guard this engine does not call
	other.DataDir, other.RunDir = t.TempDir(), filepath.Join(l.dir, "other")
	if _, err := Connect(t.Context(), l.engine.Host(), other); err == nil || !strings.Contains(err.Error(), "daemon.json") {
		t.Errorf("an engine without the guard: got %v, want a refusal that says what to write where", err)
	}
}

// patience is for how long something is waited for that comes. Only failures take it.
const patience = 2 * time.Minute

// eventually repeats do until it succeeds.
func eventually(t *testing.T, limit time.Duration, do func() error) {
	t.Helper()
	for deadline := time.Now().Add(limit); ; time.Sleep(50 * time.Millisecond) {
		err := do()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}
