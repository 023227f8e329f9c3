package manager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"sallyport/internal/image"
	"sallyport/internal/size"
	"sallyport/sandbox"
	"sallyport/sandbox/agent/wire"
	"sallyport/sandbox/disk"
	"sallyport/sandbox/state"
)

var envForm = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// maxUser bounds the name of a user or a group, in bytes.
const maxUser = 64

// Bounds of labels.
const (
	maxLabels = 64
	maxLabel  = 1024 // bytes of a value
)

// Needs of gVisor for starting a shell: bytes, processes of the host, which its
// threads are, and the least share of a processor that the kernel gives.
const (
	minMemory = 32 << 20
	minPids   = 64
	minCPUs   = 0.01
)

// withDefaults completes a spec with the daemon's defaults.
func withDefaults(s, d sandbox.Spec) sandbox.Spec {
	s.Image, s.Runtime = cmp.Or(s.Image, d.Image), cmp.Or(s.Runtime, d.Runtime)
	s.CPUs, s.Memory, s.Pids, s.Disk = cmp.Or(s.CPUs, d.CPUs), cmp.Or(s.Memory, d.Memory), cmp.Or(s.Pids, d.Pids), cmp.Or(s.Disk, d.Disk)
	s.Idle, s.OnIdle = cmp.Or(s.Idle, d.Idle), cmp.Or(s.OnIdle, d.OnIdle)
	if s.Idle != 0 && s.OnIdle == "" {
		if s.OnIdle = sandbox.IdleHibernate; s.Runtime != sandbox.GVisor {
			s.OnIdle = sandbox.IdleStop
		}
	}
	s.Lifetime = cmp.Or(s.Lifetime, d.Lifetime)
	return s
}

func validate(s sandbox.Spec) error {
	var errs []error
	bad := func(format string, a ...any) {
		errs = append(errs, fmt.Errorf("%w: "+format, append([]any{sandbox.ErrBadSpec}, a...)...))
	}
	if s.Image == "" {
		bad("no image: name one")
	}
	if s.Runtime != sandbox.GVisor && s.Runtime != sandbox.RunC {
		bad("runtime %q: use %s, or %s which shares the host's kernel", s.Runtime, sandbox.GVisor, sandbox.RunC)
	}
	for k, v := range s.Env {
		if !envForm.MatchString(k) {
			bad("environment name %q: use letters, digits and underscores", k)
		}
		if strings.ContainsRune(v, 0) {
			bad("environment value of %s holds a NUL byte", k)
		}
	}
	for k := range s.Tags {
		if k == "" || len(k) > 63 {
			bad("tag %q: use 1 to 63 bytes", k)
		}
		if strings.HasPrefix(k, sandbox.TagPrefix) {
			bad("tag %q: what begins with %s is for Sallyport to say", k, sandbox.TagPrefix)
		}
	}
	if len(s.Labels) > maxLabels {
		bad("%d labels: use at most %d", len(s.Labels), maxLabels)
	}
	for k, v := range s.Labels {
		if k == "" || len(k) > 63 || len(v) > maxLabel {
			bad("label %q: use a name of 1 to 63 bytes and a value of at most %d", k, maxLabel)
		}
	}
	if user, group, grouped := strings.Cut(s.User, ":"); s.User != "" && !(userName(user) && (!grouped || userName(group))) {
		bad("user %q: write a name or a number, with :GROUP behind if need be", s.User)
	}
	if s.Lifetime != 0 && s.Lifetime < sandbox.Duration(time.Second) {
		bad("lifetime %v: use at least 1s, or leave it out", s.Lifetime)
	}
	if s.Workdir != "" && !folderName(s.Workdir) {
		bad("working directory %q: use an absolute path, without . and .., and outside of /proc, /sys and /dev", s.Workdir)
	}
	if s.CPUs != 0 && s.CPUs < minCPUs {
		bad("cpus %v: use at least %v", s.CPUs, minCPUs)
	}
	if s.Pids != 0 && s.Pids < minPids {
		bad("pids %d: use at least %d, since those of gVisor itself count", s.Pids, minPids)
	}
	if s.Memory != 0 && s.Memory < minMemory {
		bad("memory of %s: use at least %s", size.Text(s.Memory), size.Text(minMemory))
	}
	if s.Disk != 0 && s.Disk < disk.Min {
		bad("disk of %s: use at least %s", size.Text(s.Disk), size.Text(disk.Min))
	}
	if s.Idle != 0 && time.Duration(s.Idle) < minIdle {
		bad("idle %v: use at least %v, or none", s.Idle, minIdle)
	}
	switch s.OnIdle {
	case "", sandbox.IdlePause, sandbox.IdleStop:
	case sandbox.IdleHibernate:
		if s.Runtime == sandbox.RunC {
			bad("onIdle %s: only gVisor (%s) writes memory down: use %s or %s", s.OnIdle, sandbox.GVisor, sandbox.IdlePause, sandbox.IdleStop)
		}
	default:
		bad("onIdle %q: use %s, %s or %s", s.OnIdle, sandbox.IdlePause, sandbox.IdleHibernate, sandbox.IdleStop)
	}
	return errors.Join(errs...)
}

// checkImage refuses an image of a new sandbox, before anything is made: a text that
// is no image's name and, for an owner, an image that is not among those of owners.
func (m *Manager) checkImage(s sandbox.Spec) error {
	name, err := image.Parse(s.Image)
	if err != nil {
		return fmt.Errorf("%w: image: %w", sandbox.ErrBadSpec, err)
	}
	own, _ := image.Parse(m.opt.Defaults.Image)
	if s.Owner == "" || name == own || m.opt.OwnerImages.Match(name) {
		return nil
	}
	return fmt.Errorf("%w: image %q: leave it out for %s, or ask the host's operators to list it under sandbox.tenantImages", sandbox.ErrImage, s.Image, m.opt.Defaults.Image)
}

// folderName tells whether a text can be a sandbox's working directory. The engine is
// told of it and begins the session there with root's rights: below the kernel's folders
// a path can lead to a file that the runtime holds open, on the host
// (CVE-2024-21626).
func folderName(s string) bool {
	top, _, _ := strings.Cut(strings.TrimPrefix(s, "/"), "/")
	return path.IsAbs(s) && (path.Clean(s) == s || path.Clean(s)+"/" == s) && len(s) <= wire.MaxPath && top != "proc" && top != "sys" && top != "dev" &&
		utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return unicode.Is(unicode.C, r) })
}

// userName tells whether a text can be a user's or a group's name or number.
func userName(s string) bool {
	return s != "" && len(s) <= maxUser && utf8.ValidString(s) &&
		!strings.ContainsFunc(s, func(r rune) bool { return r == ':' || unicode.IsSpace(r) || unicode.Is(unicode.C, r) })
}

// difference is a key of a spec that is asked for and that a sandbox has not.
type difference struct {
	what string
	when when
}

// When a difference of specs can come to hold.
type when int

const (
	atOnce when = iota
	nextSession
	newSandbox
)

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

// differences names what a second call asks for that the sandbox does not have.
// A field that the call leaves open agrees with anything.
func differences(s, have sandbox.Spec) []difference {
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

// applyChange gives the spec that a change makes of one, and what differs.
func applyChange(c sandbox.SpecChange, s sandbox.Spec) (sandbox.Spec, []difference) {
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

// checkChange refuses limits that a container cannot be given any more: without one is
// what only a new container can be.
func checkChange(c sandbox.SpecChange) error {
	var errs []error
	zero := func(is bool, what string) {
		if is {
			errs = append(errs, fmt.Errorf("%w: %s: use a limit above zero, or make a new sandbox", sandbox.ErrBadSpec, what))
		}
	}
	zero(c.CPUs != nil && *c.CPUs <= 0, "cpus")
	zero(c.Memory != nil && *c.Memory <= 0, "memory")
	zero(c.Pids != nil && *c.Pids <= 0, "pids")
	return errors.Join(errs...)
}

// sameSession says whether a session of one spec is as one of the other.
func sameSession(s, o sandbox.Spec) bool {
	return maps.Equal(s.Env, o.Env) && s.User == o.User && s.Workdir == o.Workdir && s.Offline == o.Offline &&
		s.CPUs == o.CPUs && s.Memory == o.Memory && s.Pids == o.Pids
}

// minIdle is several looks.
const minIdle = 4 * idleTick

// renewSpec gives a sandbox that does not run the spec of the session that begins.
// Should this be where we die, the next start does it again.
func (m *Manager) renewSpec(ctx context.Context, e *entry) error {
	next := e.Rec.Next
	if next == nil {
		return nil
	}
	if err := m.opt.Runtime.Update(ctx, e.Rec.ID, *next); err != nil {
		return err
	}
	return m.journal.Commit(&e.Stored, func(r *state.Record) { r.Spec, r.Next = *next, nil })
}

// Set changes the spec of a sandbox. It refuses a change that it cannot make, and then
// changes nothing.
func (m *Manager) Set(ctx context.Context, name string, c sandbox.SpecChange) (sandbox.Info, error) {
	return m.withLocked(ctx, name, "setting", noMemory, func(e *entry) error { return m.set(ctx, e, c) })
}

func (m *Manager) set(ctx context.Context, e *entry, c sandbox.SpecChange) error {
	if err := checkChange(c); err != nil {
		return err
	}
	next, all := applyChange(c, e.Rec.NextSpec())
	never := slices.DeleteFunc(slices.Clone(all), func(d difference) bool { return d.when != newSandbox })
	if len(never) > 0 {
		return fmt.Errorf("%w: %s", sandbox.ErrSpecMismatch, explain(never, e.Rec.Name))
	}
	if err := validate(next); err != nil {
		return err
	}
	if err := m.refuseSecrets(ctx, e.Rec.Name, next.Env); err != nil {
		return err
	}
	if len(all) > 0 {
		rec := e.Rec
		rec.Spec.Tags, rec.Spec.Labels, rec.Spec.Lifetime = next.Tags, next.Labels, next.Lifetime
		rec.Spec.Idle, rec.Spec.OnIdle = next.Idle, next.OnIdle
		rec.Next = nil
		if !sameSession(next, rec.Spec) {
			rec.Next = &next
		}
		ev := state.Lifecycle(rec, "changed", "")
		var words []string
		for _, d := range all {
			words = append(words, d.what)
		}
		ev.Detail = strings.Join(words, ", ")
		if err := m.journal.Transact(ctx, &e.Stored, ev, func(r *state.Record) { r.Spec, r.Next = rec.Spec, rec.Next }); err != nil {
			return err
		}
		if _, known := m.ByAddress(rec.Address); known {
			m.publish(rec.Address, m.info(e))
		}
	}
	if !c.Restart || e.Rec.Next == nil || !e.state.Live() {
		return nil
	}
	if err := m.halt(ctx, e, "to begin a session with another spec"); err != nil {
		return err
	}
	return m.start(ctx, e)
}
