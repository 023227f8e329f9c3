package sandbox

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"sallyport/internal/image"
	"sallyport/internal/size"
	"sallyport/sandbox/agent/wire"
	"sallyport/sandbox/disk"
)

// Runtimes that a Spec can name.
const (
	GVisor = "runsc"
	RunC   = "runc"
)

var envForm = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// maxUser bounds the name of a user or a group, in bytes.
const maxUser = 64

// Bounds of labels.
const (
	maxLabels = 64
	maxLabel  = 1024 // bytes of a value
)

// What gVisor needs to start a shell: bytes, processes of the host, which its
// threads are, and the least share of a processor that the kernel gives.
const (
	minMemory = 32 << 20
	minPids   = 64
	minCPUs   = 0.01
)

// fill completes a spec with the daemon's defaults.
func (s Spec) fill(d Spec) Spec {
	if s.Image == "" {
		s.Image = d.Image
	}
	if s.Runtime == "" {
		s.Runtime = d.Runtime
	}
	if s.Pids == 0 {
		s.Pids = d.Pids
	}
	if s.CPUs == 0 {
		s.CPUs = d.CPUs
	}
	if s.Memory == 0 {
		s.Memory = d.Memory
	}
	if s.Disk == 0 {
		s.Disk = d.Disk
	}
	if s.Idle == 0 {
		s.Idle = d.Idle
	}
	if s.OnIdle == "" {
		s.OnIdle = d.OnIdle
	}
	if s.Idle != 0 && s.OnIdle == "" {
		if s.OnIdle = IdleHibernate; s.Runtime != GVisor {
			s.OnIdle = IdleStop
		}
	}
	if s.Lifetime == 0 {
		s.Lifetime = d.Lifetime
	}
	return s
}

func (s Spec) validate() error {
	var errs []error
	bad := func(format string, a ...any) {
		errs = append(errs, fmt.Errorf("%w: "+format, append([]any{ErrBadSpec}, a...)...))
	}
	if s.Image == "" {
		bad("no image: name one")
	}
	if s.Runtime != GVisor && s.Runtime != RunC {
		bad("runtime %q: use %s, or %s which shares the host's kernel", s.Runtime, GVisor, RunC)
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
		if strings.HasPrefix(k, ownTags) {
			bad("tag %q: what begins with %s is for Sallyport to say", k, ownTags)
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
	if s.Lifetime != 0 && s.Lifetime < Duration(time.Second) {
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
	case "", IdlePause, IdleStop:
	case IdleHibernate:
		if s.Runtime == RunC {
			bad("onIdle %s: only gVisor (%s) writes memory down: use %s or %s", s.OnIdle, GVisor, IdlePause, IdleStop)
		}
	default:
		bad("onIdle %q: use %s, %s or %s", s.OnIdle, IdlePause, IdleHibernate, IdleStop)
	}
	return errors.Join(errs...)
}

// checkImage refuses an image of a new sandbox, before anything is made: a text that
// is no image's name and, for an owner, an image that is not among those of owners.
func (m *Manager) checkImage(s Spec) error {
	name, err := image.Parse(s.Image)
	if err != nil {
		return fmt.Errorf("%w: image: %w", ErrBadSpec, err)
	}
	own, _ := image.Parse(m.opt.Defaults.Image)
	if s.Owner == "" || name == own || m.opt.OwnerImages.Match(name) {
		return nil
	}
	return fmt.Errorf("%w: image %q: leave it out for %s, or ask the host's operators to list it under sandbox.tenantImages", ErrImage, s.Image, m.opt.Defaults.Image)
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
