package manager

import (
	"slices"
	"strings"
	"testing"

	"sallyport/sandbox"
	"sallyport/sandbox/state"
)

// TestSpentMemory ends daemon, engine or host in the middle of a wake: memory that may
// have been gone on with is behind the disk, and not gone on with again; it is given
// up aloud. What nothing has begun with is kept.
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
