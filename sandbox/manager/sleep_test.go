package manager

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sallyport/internal/test/must"
	"sallyport/sandbox"
	"sallyport/sandbox/state"
)

func TestSleepAndWake(t *testing.T) {
	for _, way := range []struct {
		state         sandbox.State
		asleep, awake string
	}{{sandbox.Paused, "paused", "resumed"}, {sandbox.Hibernated, "hibernated", "woken"}} {
		t.Run(string(way.state), func(t *testing.T) {
			b := newBed(t)
			before := b.live(t, "a")
			toSleep := b.Pause
			if way.state == sandbox.Hibernated {
				toSleep = b.Hibernate
			}
			var i sandbox.Info
			for range 2 { // the second finds it so
				i = b.must(t)(toSleep(t.Context(), "a"))
			}
			if i.State != way.state || i.Session != before.Session || i.Slept.IsZero() {
				t.Errorf("asleep: %+v", i)
			}
			if known, ok := b.ByAddress(before.Address); !ok || known.State != way.state {
				t.Errorf("the gateway sees %v, %v", known.State, ok)
			}
			if got := b.plain(t, b.dir, b.ram); len(got) > 0 {
				t.Errorf("memory in the clear: %v", got)
			}
			if way.state == sandbox.Hibernated && (len(b.h.endpoints) > 0 || b.h.containers[i.ID]) {
				t.Errorf("something is left of it: %v %v", b.h.endpoints, b.h.containers)
			}
			b.h.events, b.h.gate = slices.Clip(b.h.events), slices.Clip(b.h.gate)
			// A command is a use, and wakes it.
			_, _ = b.Exec(t.Context(), "a", sandbox.CommandSpec{Args: []string{"true"}}, sandbox.Streams{}) // which no agent answers
			i = b.must(t)(b.Get("a"))
			if i.State != sandbox.Running || i.Session != before.Session || !i.Slept.IsZero() || i.Lost != "" || i.Address != before.Address {
				t.Errorf("awake: %+v", i)
			}
			if got := b.h.memory[i.ID]; got != "what it was thinking of" {
				t.Errorf("it woke with %q", got)
			}
			if len(b.h.endpoints) != 1 || b.h.endpoints[i.Generation].ID != i.ID {
				t.Errorf("endpoints %v, want that of generation %d", b.h.endpoints, i.Generation)
			}
			want := []string{"a created", "a started", "a " + way.asleep, "a " + way.awake}
			if !slices.Equal(b.h.events, want) {
				t.Errorf("events %v, want %v", b.h.events, want)
			}
			if want := []string{"sleep", "wake 1"}; !slices.Equal(b.h.gate, want) {
				t.Errorf("the gate was told %v, want %v", b.h.gate, want)
			}
			if _, err := os.Stat(filepath.Join(b.dir, "a", checkpointFile)); err == nil {
				t.Error("the checkpoint of a sandbox that goes on is left")
			}
		})
	}
}

// TestPausedHibernates: from one sleep into the other, without being awake.
func TestPausedHibernates(t *testing.T) {
	b := newBed(t)
	b.live(t, "a")
	b.must(t)(b.Pause(t.Context(), "a"))
	b.must(t)(b.Hibernate(t.Context(), "a"))
	i := b.must(t)(b.Wake(t.Context(), "a"))
	if b.h.memory[i.ID] != "what it was thinking of" {
		t.Errorf("it woke with %q", b.h.memory[i.ID])
	}
	want := []string{"a created", "a started", "a paused", "a hibernated", "a woken"}
	if !slices.Equal(b.h.events, want) {
		t.Errorf("events %v, want %v", b.h.events, want)
	}
	if want := []string{"sleep", "wake 1"}; !slices.Equal(b.h.gate, want) {
		t.Errorf("the gate was told %v, want %v", b.h.gate, want)
	}
}

func TestSleepRefusals(t *testing.T) {
	b := newBed(t)
	b.must(t)(sandbox.Info{}, func() error { _, _, err := b.GetOrCreate(t.Context(), "a", sandbox.Spec{}); return err }())
	for name, f := range map[string]func(context.Context, string) (sandbox.Info, error){"pause": b.Pause, "hibernate": b.Hibernate, "wake": b.Wake} {
		if _, err := f(t.Context(), "a"); !errors.Is(err, sandbox.ErrState) {
			t.Errorf("%s of a stopped sandbox: %v", name, err)
		}
		if _, err := f(t.Context(), "nobody"); !errors.Is(err, sandbox.ErrNotFound) {
			t.Errorf("%s of nobody: %v", name, err)
		}
	}
	if _, _, err := b.GetOrCreate(t.Context(), "r", sandbox.Spec{Runtime: sandbox.RunC}); err != nil {
		t.Fatal(err)
	}
	b.must(t)(b.Start(t.Context(), "r"))
	if _, err := b.Hibernate(t.Context(), "r"); !errors.Is(err, sandbox.ErrNoCheckpoint) {
		t.Errorf("Hibernate with runc: %v", err)
	}
	b.must(t)(b.Pause(t.Context(), "r"))
	b.must(t)(b.Wake(t.Context(), "r"))
}

// TestUnusableMemory: a sandbox whose memory cannot be had starts from its disk,
// and this is said in event, answer and listing.
func TestUnusableMemory(t *testing.T) {
	for name, tt := range map[string]struct {
		harm func(t *testing.T, b *bed, path string)
		says string
	}{
		"cut":   {func(t *testing.T, _ *bed, path string) { shrink(t, path) }, "damaged"},
		"gone":  {func(t *testing.T, _ *bed, path string) { _ = os.Remove(path) }, "gone"},
		"build": {func(_ *testing.T, b *bed, _ string) { b.h.build = "2" }, "gVisor 1 wrote it, and this is 2"},
		"of another sandbox": {func(t *testing.T, b *bed, path string) {
			b.live(t, "b")
			b.must(t)(b.Hibernate(t.Context(), "b"))
			must.OK(t, os.Rename(filepath.Join(b.dir, "b", checkpointFile), path))
		}, "another sandbox"},
		"restored in vain": {func(_ *testing.T, b *bed, _ string) { b.h.fault = "filled" }, errFault.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			before := b.live(t, "a")
			b.must(t)(b.Hibernate(t.Context(), "a"))
			tt.harm(t, b, filepath.Join(b.dir, "a", checkpointFile))
			b.h.events = nil
			i, err := b.Start(t.Context(), "a")
			if name == "restored in vain" { // it may be the engine's fault: once it stays as it is
				if err == nil || b.must(t)(b.Get("a")).State != sandbox.Hibernated {
					t.Fatalf("the first time: %v, %v", err, i.State)
				}
				b.h.events = nil
				i, err = b.Start(t.Context(), "a")
			}
			must.OK(t, err)
			if i.State != sandbox.Running || i.Session == before.Session || !strings.Contains(i.Lost, tt.says) {
				t.Errorf("the answer: %+v, want one that says %q", i, tt.says)
			}
			if l := b.List()[0]; l.Lost != i.Lost {
				t.Errorf("the listing: %+v", l)
			}
			if b.h.memory[i.ID] != "fresh" {
				t.Errorf("it runs with %q", b.h.memory[i.ID])
			}
			events := slices.DeleteFunc(b.h.events, func(e string) bool { return !strings.HasPrefix(e, "a ") || e == "a woken" })
			if want := []string{"a stopped", "a started"}; !slices.Equal(events, want) {
				t.Errorf("events %v, want %v", events, want)
			}
			if got := b.plain(t, b.ram); len(got) > 0 {
				t.Errorf("memory in the clear: %v", got)
			}
			b.h.fault = ""
			b.must(t)(b.Hibernate(t.Context(), "a"))
			if i := b.must(t)(b.Wake(t.Context(), "a")); i.Lost != "" {
				t.Errorf("what is long over is still said: %q", i.Lost)
			}
		})
	}
}

func shrink(t *testing.T, path string) {
	t.Helper()
	info, err := os.Stat(path)
	if err == nil {
		err = os.Truncate(path, info.Size()-1)
	}
	must.OK(t, err)
}

// TestSleepFaults: what fails leaves a sandbox that runs, or sleeps, and goes on.
func TestSleepFaults(t *testing.T) {
	for fault, state := range map[string]sandbox.State{
		"checkpoint": sandbox.Running, "build": sandbox.Running, "record hibernated": sandbox.Running, "pause": sandbox.Running,
	} {
		t.Run(fault, func(t *testing.T) {
			b := newBed(t)
			b.live(t, "a")
			toSleep := b.Hibernate
			if fault == "pause" {
				toSleep = b.Pause
			}
			b.h.fault = fault
			if _, err := toSleep(t.Context(), "a"); !errors.Is(err, errFault) {
				t.Fatalf("got %v, want the fault", err)
			}
			b.h.fault = ""
			i := b.must(t)(b.Get("a"))
			if i.State != state || b.h.memory[i.ID] != "what it was thinking of" {
				t.Errorf("afterwards it is %s, with %q", i.State, b.h.memory[i.ID])
			}
			if n := len(b.h.gate); n > 0 && b.h.gate[n-1] != "wake 1" {
				t.Errorf("its connections are held: %v", b.h.gate)
			}
			b.must(t)(toSleep(t.Context(), "a"))
			b.must(t)(b.Wake(t.Context(), "a"))
		})
	}
}

// TestStopAsleep: a sandbox that is stopped or removed asleep gives its memory up, and one that
// is stopped at all its connections.
func TestStopAsleep(t *testing.T) {
	b := newBed(t)
	for _, toSleep := range []func(context.Context, string) (sandbox.Info, error){b.Pause, b.Hibernate} {
		i := b.live(t, "a")
		b.must(t)(toSleep(t.Context(), "a"))
		if i := b.must(t)(b.Stop(t.Context(), "a")); i.State != sandbox.Stopped || i.Session != "" {
			t.Errorf("stopped: %+v", i)
		}
		if _, ok := b.ByAddress(i.Address); ok {
			t.Error("a stopped sandbox is somebody to the gateway")
		}
		if last := b.h.gate[len(b.h.gate)-1]; last != "end" {
			t.Errorf("the gate was told %q last", last)
		}
		if i := b.must(t)(b.Start(t.Context(), "a")); b.h.memory[i.ID] != "fresh" || i.Lost != "" {
			t.Errorf("started: %q, %+v", b.h.memory[i.ID], i)
		}
		b.h.gate = nil
		b.must(t)(b.Stop(t.Context(), "a")) // awake: another may get its address, and not its connections
		if !slices.Contains(b.h.gate, "end") {
			t.Errorf("stopped awake, and the gate was told %q", b.h.gate)
		}
		b.must(t)(b.Start(t.Context(), "a"))
		b.must(t)(toSleep(t.Context(), "a"))
		must.OK(t, b.Remove(t.Context(), "a"))
	}
	if left, _ := filepath.Glob(b.ram + "/*"); len(left) > 0 {
		t.Errorf("left in memory: %v", left)
	}
}

// TestCrashes ends the daemon at every call of every change, and starts another:
// the sandbox is in a state that it gets out of, and has its memory unless that
// is said.
func TestCrashes(t *testing.T) {
	for name, change := range map[string]func(*bed, context.Context) error{
		"pause":     func(b *bed, ctx context.Context) error { _, err := b.Pause(ctx, "a"); return err },
		"hibernate": func(b *bed, ctx context.Context) error { _, err := b.Hibernate(ctx, "a"); return err },
		"resume": func(b *bed, ctx context.Context) error {
			_, err := b.Pause(ctx, "a")
			if err == nil {
				_, err = b.Wake(ctx, "a")
			}
			return err
		},
		"wake": func(b *bed, ctx context.Context) error {
			_, err := b.Hibernate(ctx, "a")
			if err == nil {
				_, err = b.Wake(ctx, "a")
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			for at := 1; ; at++ {
				b := newBed(t)
				before := b.live(t, "a")
				b.h.calls, b.h.crash = 0, at
				crashed := ends(func() {
					must.OK(t, change(b, t.Context()))
				})
				if !crashed {
					if at < 3 {
						t.Error("the change has no calls to crash at")
					}
					return
				}
				b.h.crash = 0
				begun := false // and nobody knows what came of that
				for id, note := range b.h.notes {
					begun = begun || note == "begun" && !b.h.containers[id]
				}
				b.open(t)
				i := b.must(t)(b.Get("a"))
				if i.State == sandbox.Failed {
					t.Errorf("crash at call %d: %s", at, i.Reason)
				}
				i = b.must(t)(b.Start(t.Context(), "a"))
				if kept := b.h.memory[i.ID] == "what it was thinking of"; !kept && i.Lost == "" {
					t.Errorf("crash at call %d: the memory is lost and nothing says so", at)
				} else if kept && i.Session != before.Session {
					t.Errorf("crash at call %d: the session is another", at)
				} else if kept == begun {
					t.Errorf("crash at call %d, with its memory begun with: %v, and kept: %v: %s", at, begun, kept, i.Lost)
				}
				if b.h.paused[i.ID] {
					t.Errorf("crash at call %d: it is paused, and should run", at)
				}
				if len(b.h.endpoints) != 1 {
					t.Errorf("crash at call %d: endpoints %v", at, b.h.endpoints)
				}
				if left, _ := filepath.Glob(b.ram + "/*"); len(left) > 0 {
					t.Errorf("crash at call %d: left in memory: %v", at, left)
				}
				b.must(t)(b.Hibernate(t.Context(), "a"))
				b.must(t)(b.Wake(t.Context(), "a"))
			}
		})
	}
}

// TestReboot: memory in RAM, containers that run and endpoints are gone.
func TestReboot(t *testing.T) {
	b := newBed(t)
	hibernated, paused := b.live(t, "a"), b.live(t, "b")
	b.must(t)(b.Hibernate(t.Context(), "a"))
	b.must(t)(b.Pause(t.Context(), "b"))
	clear(b.h.endpoints)
	b.h.containers[paused.ID] = false
	delete(b.h.memory, paused.ID)
	b.h.events = nil
	b.open(t)
	if i := b.must(t)(b.Get("a")); i.State != sandbox.Hibernated || i.Session != hibernated.Session {
		t.Errorf("the hibernated one: %+v", i)
	}
	if i := b.must(t)(b.Get("b")); i.State != sandbox.Stopped || !strings.Contains(i.Lost, "paused") {
		t.Errorf("the paused one: %+v", i)
	}
	if want := []string{"b stopped"}; !slices.Equal(b.h.events, want) {
		t.Errorf("events %v, want %v", b.h.events, want)
	}
	if i := b.must(t)(b.Wake(t.Context(), "a")); b.h.memory[i.ID] != "what it was thinking of" {
		t.Errorf("it woke with %q", b.h.memory[i.ID])
	}
}

// Nothing that has outlived its lifetime runs again, not even for the moment until
// that is noticed; half a checkpoint that a crash left goes with the sleep.
func TestWakeAfterLifetime(t *testing.T) {
	for what, sleep := range map[string]func(*bed) (sandbox.Info, error){
		"paused":     func(b *bed) (sandbox.Info, error) { return b.Pause(t.Context(), "a") },
		"hibernated": func(b *bed) (sandbox.Info, error) { return b.Hibernate(t.Context(), "a") },
	} {
		b := newBed(t)
		b.must(t)(b.start(t, "a", sandbox.Spec{Lifetime: sandbox.Duration(time.Hour)}))
		part := filepath.Join(b.dir, "a", checkpointFile+".part")
		b.must(t)(sleep(b))
		must.OK(t, os.WriteFile(part, nil, 0o600))
		e := b.entries["a"]
		e.mu.Lock()
		e.Rec.Created = e.Rec.Created.Add(-2 * time.Hour)
		b.release(e)
		b.h.events = nil
		if _, err := b.Wake(t.Context(), "a"); !errors.Is(err, sandbox.ErrExpired) {
			t.Errorf("waking one that was %s: %v", what, err)
		}
		if len(b.h.events) > 0 {
			t.Errorf("%s: %v", what, b.h.events)
		}
		e.mu.Lock() // something takes its time, and is not waited for
		b.expireAll(t.Context())
		b.release(e)
		b.expireAll(t.Context())
		states(t, b.Manager, "a stopped")
		if _, err := os.Lstat(part); !os.IsNotExist(err) {
			t.Errorf("%s: half a checkpoint is left: %v", what, err)
		}
	}
}

// TestSpentMemory ends daemon, engine or host in the middle of a wake: memory that may have
// been gone on with is behind the disk, and not gone on with again; it is given up aloud.
// Memory that nothing has begun with is kept.
func TestSpentMemory(t *testing.T) {
	for name, tt := range map[string]struct {
		fault, ends string
		then        func(*bed, string)
		kept        bool
	}{
		"not begun":                            {ends: "filled", kept: true},
		"begun, and the container is gone":     {ends: "begun"},
		"not begun, as far as the host knows":  {ends: "filled", then: func(b *bed, id string) { b.boot = "another"; delete(b.h.notes, id) }},
		"begun by what a power cut left of it": {ends: "begun", then: func(b *bed, id string) { b.boot = "another"; b.h.notes[id] = "asked" }},
		"nothing to tell by":                   {ends: "filled", then: func(b *bed, id string) { delete(b.h.notes, id) }},
		"begun, and its end not on record":     {fault: "begun", ends: "record stopped"},
		"by a version that kept no boot":       {ends: "filled", then: func(b *bed, _ string) { b.rewrite("a", func(r *state.Record) { r.Boot = "" }) }},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			before := b.live(t, "a")
			b.must(t)(b.Hibernate(t.Context(), "a"))
			b.h.fault, b.h.ends = tt.fault, tt.ends
			if !ends(func() { _, _ = b.Wake(t.Context(), "a") }) {
				t.Fatal("the wake has no such step")
			}
			b.h.fault, b.h.ends = "", ""
			if tt.then != nil {
				tt.then(b, before.ID)
			}
			b.after(t, before, tt.kept)
		})
	}
}

// TestSleepsOverBoots: what is hibernated, also since a wake that has failed, has its
// memory in the host's next boot, whose engine knows of nothing.
func TestSleepsOverBoots(t *testing.T) {
	for name, fault := range map[string]string{"not woken": "", "woken in vain": "filled"} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			before := b.live(t, "a")
			b.must(t)(b.Hibernate(t.Context(), "a"))
			if b.h.fault = fault; fault != "" {
				if i, err := b.Wake(t.Context(), "a"); err == nil {
					t.Fatalf("it is woken: %+v", i)
				}
			}
			b.h.fault, b.boot = "", "another"
			clear(b.h.notes)
			b.after(t, before, true)
		})
	}
}

// TestSpentUnsealed: the same where what could not be hibernated was to go on.
func TestSpentUnsealed(t *testing.T) {
	for step, kept := range map[string]bool{"restore": true, "begun": false} {
		t.Run(step, func(t *testing.T) {
			b := newBed(t)
			before := b.live(t, "a")
			b.h.fault, b.h.ends = "record hibernated", step
			if !ends(func() { _, _ = b.Hibernate(t.Context(), "a") }) {
				t.Fatal("it does not go on")
			}
			b.h.fault, b.h.ends = "", ""
			b.after(t, before, kept)
		})
	}
}

// TestSleptAgain: that a wake has begun, of which the daemon did not hear, is nothing
// against the memory that is written afterwards.
func TestSleptAgain(t *testing.T) {
	b := newBed(t)
	before := b.live(t, "a")
	b.must(t)(b.Hibernate(t.Context(), "a"))
	b.h.ends = "restored"
	if !ends(func() { _, _ = b.Wake(t.Context(), "a") }) {
		t.Fatal("the wake has no such step")
	}
	b.h.ends = ""
	b.open(t)
	b.h.ends = "stopped"
	if !ends(func() { _, _ = b.Hibernate(t.Context(), "a") }) {
		t.Fatal("the hibernation has no such step")
	}
	b.h.ends = ""
	b.after(t, before, true)
}

// rewrite changes a record of a daemon that has ended.
func (b *bed) rewrite(name string, change func(*state.Record)) {
	r, err := state.Read(b.Manager.dir(name))
	if err == nil {
		change(&r)
		err = r.Write(b.Manager.dir(name))
	}
	if err != nil {
		panic(err)
	}
}

// after opens the next daemon, and checks that the sandbox has its memory, or that it
// is said to be lost.
func (b *bed) after(t *testing.T, before sandbox.Info, kept bool) {
	t.Helper()
	b.h.events = nil
	b.open(t)
	i := b.must(t)(b.Get("a"))
	if want := map[bool]sandbox.State{true: sandbox.Hibernated, false: sandbox.Stopped}[kept]; i.State != want {
		t.Errorf("it is %s, want %s", i.State, want)
	}
	i = b.must(t)(b.Start(t.Context(), "a"))
	got, want := b.h.memory[i.ID], map[bool]string{true: "what it was thinking of", false: "fresh"}[kept]
	if got != want {
		t.Errorf("it goes on with %q, want %q", got, want)
	}
	if kept != (i.Session == before.Session) || kept != (i.Lost == "") {
		t.Errorf("kept %v: session %s, was %s; lost: %q", kept, i.Session, before.Session, i.Lost)
	}
	if !kept && !strings.Contains(i.Lost, sandbox.ErrRan.Error()) {
		t.Errorf("why its memory is lost: %q", i.Lost)
	}
	if told := slices.Contains(b.h.events, "a stopped"); told == kept {
		t.Errorf("events %v", b.h.events)
	}
}
