package sandbox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"

	"sallyport/internal/size"
)

// SpecChange is what Set makes different in a sandbox's spec. What is nil stays. Tags,
// labels, idle and lifetime hold at once; an image, a runtime, a disk and being ephemeral
// are a sandbox's for good; the rest holds from the next session on.
type SpecChange struct {
	Image     *string           `json:"image,omitempty"`
	Runtime   *string           `json:"runtime,omitempty"`
	Env       map[string]string `json:"env,omitzero"`    // all of it
	Tags      map[string]string `json:"tags,omitzero"`   // all of them
	Labels    map[string]string `json:"labels,omitzero"` // all of them
	Workdir   *string           `json:"workdir,omitempty"`
	User      *string           `json:"user,omitempty"`
	CPUs      *float64          `json:"cpus,omitempty"`
	Memory    *int64            `json:"memory,omitempty"`
	Pids      *int64            `json:"pids,omitempty"`
	Disk      *int64            `json:"disk,omitempty"`
	Lifetime  *Duration         `json:"lifetime,omitempty"`
	Idle      *Duration         `json:"idle,omitempty"`
	OnIdle    *string           `json:"onIdle,omitempty"`
	Ephemeral *bool             `json:"ephemeral,omitempty"`
	Offline   *bool             `json:"offline,omitempty"`
	// Restart ends the session, if one runs and what is set is for the next one,
	// and begins that.
	Restart bool `json:"restart,omitempty"`
}

// When a difference of specs can come to hold.
type when int

const (
	atOnce when = iota
	nextSession
	newSandbox
)

// difference is a key of a spec that is asked for and that a sandbox has not.
type difference struct {
	what string
	when when
}

// explain tells of differences when each could hold, the soonest first.
func explain(all []difference, name string) string {
	var parts []string
	for w, how := range []string{
		atOnce:      "which can be set at once",
		nextSession: "which can be set for its next session",
		newSandbox:  "which needs a new sandbox",
	} {
		var these []string
		for _, d := range all {
			if d.when == when(w) {
				these = append(these, d.what)
			}
		}
		if len(these) > 0 {
			parts = append(parts, strings.Join(these, ", ")+", "+how)
		}
	}
	never := 0
	for _, d := range all {
		if d.when == newSandbox {
			never++
		}
	}
	hint := "leave that out, or "
	switch never {
	case 0:
		hint += fmt.Sprintf("change it with `sallyport sandbox set %s`", name)
	case len(all):
		hint += "remove the sandbox first"
	default:
		hint += fmt.Sprintf("use `sallyport sandbox set %s` for what needs no new sandbox", name)
	}
	return strings.Join(parts, "; ") + ": " + hint
}

// differs names what a second call asks for that the sandbox does not have.
// What the call leaves open agrees with anything.
func (s Spec) differs(have Spec) []difference {
	var d []difference
	add := func(differs bool, w when, format string, a ...any) {
		if differs {
			d = append(d, difference{fmt.Sprintf(format, a...), w})
		}
	}
	add(s.Tags != nil && !maps.Equal(s.Tags, have.Tags), atOnce, "tags")
	add(s.Labels != nil && !maps.Equal(s.Labels, have.Labels), atOnce, "labels")
	add(s.Lifetime != 0 && s.Lifetime != have.Lifetime, atOnce, "lifetime %v (has %s)", s.Lifetime, orNone(have.Lifetime))
	add(s.Idle != 0 && s.Idle != have.Idle, atOnce, "idle %v (has %s)", s.Idle, orNone(have.Idle))
	add(s.OnIdle != "" && s.OnIdle != have.OnIdle, atOnce, "onIdle %s (has %s)", s.OnIdle, orNone(have.OnIdle))
	add(s.CPUs != 0 && s.CPUs != have.CPUs, nextSession, "cpus %v (has %s)", s.CPUs, orNone(have.CPUs))
	add(s.Memory != 0 && s.Memory != have.Memory, nextSession, "memory %s (has %s)", size.Text(s.Memory), size.Text(have.Memory))
	add(s.Pids != 0 && s.Pids != have.Pids, nextSession, "pids %d (has %d)", s.Pids, have.Pids)
	add(s.Env != nil && !maps.Equal(s.Env, have.Env), nextSession, "env")
	add(s.User != "" && s.User != have.User, nextSession, "user %s (has %s)", s.User, orNone(have.User))
	add(s.Workdir != "" && s.Workdir != have.Workdir, nextSession, "workdir %s (has %s)", s.Workdir, orNone(have.Workdir))
	add(s.Offline && !have.Offline, nextSession, "offline")
	add(s.Image != "" && s.Image != have.Image, newSandbox, "image %s (has %s)", s.Image, have.Image)
	add(s.Runtime != "" && s.Runtime != have.Runtime, newSandbox, "runtime %s (has %s)", s.Runtime, have.Runtime)
	add(s.Disk != 0 && s.Disk != have.Disk, newSandbox, "disk %s (has %s)", size.Text(s.Disk), size.Text(have.Disk))
	add(s.Ephemeral && !have.Ephemeral, newSandbox, "ephemeral")
	return d
}

// orNone is a value of a spec as a text.
func orNone[T comparable](v T) string {
	var none T
	if v == none {
		return "none"
	}
	return fmt.Sprint(v)
}

// apply gives the spec that a change makes of one, and what differs.
func (c SpecChange) apply(s Spec) (Spec, []difference) {
	was := s
	var d []difference
	set := func(changed bool, w when, what string) {
		if changed {
			d = append(d, difference{what, w})
		}
	}
	if c.Tags != nil {
		s.Tags = maps.Clone(c.Tags)
		set(!maps.Equal(s.Tags, was.Tags), atOnce, "tags")
	}
	if c.Labels != nil {
		s.Labels = maps.Clone(c.Labels)
		set(!maps.Equal(s.Labels, was.Labels), atOnce, "labels")
	}
	if c.Env != nil {
		s.Env = maps.Clone(c.Env)
		set(!maps.Equal(s.Env, was.Env), nextSession, "env")
	}
	set(assign(&s.Lifetime, c.Lifetime), atOnce, "lifetime")
	set(assign(&s.Idle, c.Idle), atOnce, "idle")
	set(assign(&s.OnIdle, c.OnIdle), atOnce, "onIdle")
	set(assign(&s.CPUs, c.CPUs), nextSession, "cpus")
	set(assign(&s.Memory, c.Memory), nextSession, "memory")
	set(assign(&s.Pids, c.Pids), nextSession, "pids")
	set(assign(&s.User, c.User), nextSession, "user")
	set(assign(&s.Workdir, c.Workdir), nextSession, "workdir")
	set(assign(&s.Offline, c.Offline), nextSession, "offline")
	set(assign(&s.Image, c.Image), newSandbox, "image")
	set(assign(&s.Runtime, c.Runtime), newSandbox, "runtime")
	set(assign(&s.Disk, c.Disk), newSandbox, "disk")
	set(assign(&s.Ephemeral, c.Ephemeral), newSandbox, "ephemeral")
	return s, d
}

func assign[T comparable](to *T, from *T) bool {
	if from == nil || *from == *to {
		return false
	}
	*to = *from
	return true
}

// check refuses limits that a container cannot be given any more: without one is
// what only a new container can be.
func (c SpecChange) check() error {
	var errs []error
	zero := func(is bool, what string) {
		if is {
			errs = append(errs, fmt.Errorf("%w: %s: use a limit above zero, or make a new sandbox", ErrBadSpec, what))
		}
	}
	zero(c.CPUs != nil && *c.CPUs <= 0, "cpus")
	zero(c.Memory != nil && *c.Memory <= 0, "memory")
	zero(c.Pids != nil && *c.Pids <= 0, "pids")
	return errors.Join(errs...)
}

// wanted is the spec of the session that begins next.
func (r record) wanted() Spec {
	if r.Next != nil {
		return *r.Next
	}
	return r.Spec
}

// strictest is the spec of a sandbox that is made of this one, whose session is a new
// one: as wanted, but with the stricter of what is and what is wanted of all that
// restricts.
func (r record) strictest() Spec {
	s := r.wanted()
	s.Offline = s.Offline || r.Spec.Offline
	s.CPUs, s.Memory, s.Pids = stricter(s.CPUs, r.Spec.CPUs), stricter(s.Memory, r.Spec.Memory), stricter(s.Pids, r.Spec.Pids)
	return s
}

// stricter of two limits, of which 0 is none.
func stricter[T int64 | float64](a, b T) T {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// renewSpec gives a sandbox that does not run the spec of the session that begins.
// Should this be where we die, the next start does it again.
func (m *Manager) renewSpec(ctx context.Context, e *entry) error {
	next := e.rec.Next
	if next == nil {
		return nil
	}
	if err := m.opt.Runtime.Update(ctx, e.rec.ID, *next); err != nil {
		return err
	}
	return m.note(e, func(r *record) { r.Spec, r.Next = *next, nil })
}

// Set changes the spec of a sandbox. What it cannot change it refuses, and then
// changes nothing.
func (m *Manager) Set(ctx context.Context, name string, c SpecChange) (Info, error) {
	return m.doing(ctx, name, "setting", noRoom, func(e *entry) error { return m.set(ctx, e, c) })
}

func (m *Manager) set(ctx context.Context, e *entry, c SpecChange) error {
	if err := c.check(); err != nil {
		return err
	}
	next, all := c.apply(e.rec.wanted())
	var never []difference
	for _, d := range all {
		if d.when == newSandbox {
			never = append(never, d)
		}
	}
	if len(never) > 0 {
		return fmt.Errorf("%w: %s", ErrConflict, explain(never, e.rec.Name))
	}
	if err := next.validate(); err != nil {
		return err
	}
	if err := m.refuseSecrets(ctx, e.rec.Name, next.Env); err != nil {
		return err
	}
	if len(all) > 0 {
		rec := e.rec
		rec.Spec.Tags, rec.Spec.Labels, rec.Spec.Lifetime = next.Tags, next.Labels, next.Lifetime
		rec.Spec.Idle, rec.Spec.OnIdle = next.Idle, next.OnIdle
		rec.Next = nil
		if !next.serves(rec.Spec) {
			rec.Next = &next
		}
		ev := lifecycle(rec, "changed")
		var words []string
		for _, d := range all {
			words = append(words, d.what)
		}
		ev.Detail = strings.Join(words, ", ")
		was := e.rec
		if err := m.tell(ctx, e, ev, func(r *record) { r.Spec, r.Next = rec.Spec, rec.Next }); err != nil {
			return errors.Join(err, m.untell(e, ev, func(r *record) { r.Spec, r.Next = was.Spec, was.Next }))
		}
		if _, known := m.ByAddress(rec.Address); known {
			m.publish(rec.Address, m.info(e))
		}
	}
	if !c.Restart || e.rec.Next == nil || !e.state.live() {
		return nil
	}
	if err := m.halt(ctx, e, "to begin a session with another spec"); err != nil {
		return err
	}
	return m.start(ctx, e)
}

// serves says whether a session of one spec is as one of the other.
func (s Spec) serves(o Spec) bool {
	return maps.Equal(s.Env, o.Env) && s.User == o.User && s.Workdir == o.Workdir && s.Offline == o.Offline &&
		s.CPUs == o.CPUs && s.Memory == o.Memory && s.Pids == o.Pids
}
