package sandbox

import (
	"fmt"
	"time"
)

// Spec is what the user asked for. Some of it can be changed later; see SpecChange.
type Spec struct {
	Image   string            `json:"image,omitempty"`   // default: the daemon's
	Runtime string            `json:"runtime,omitempty"` // runsc (default) or runc
	Env     map[string]string `json:"env,omitempty"`
	Tags    map[string]string `json:"tags,omitempty"`    // policies select by them
	Workdir string            `json:"workdir,omitempty"` // default of its commands; default: the image's
	CPUs    float64           `json:"cpus,omitempty"`    // processors, 0: no limit
	Memory  int64             `json:"memory,omitempty"`  // bytes, 0: no limit
	Pids    int64             `json:"pids,omitempty"`    // processes, 0: the daemon's default
	Disk    int64             `json:"disk,omitempty"`    // bytes that its files may take, /memory included, 0: the daemon's default
	Owner   string            `json:"owner,omitempty"`   // its tenant, set from the caller's key; see ForOwner

	// Idle is the time without activity after which OnIdle is done: pause,
	// hibernate (default) or stop (default for runc, which cannot hibernate).
	Idle   Duration          `json:"idle,omitempty"` // at least 20s; 0: never
	OnIdle string            `json:"onIdle,omitempty"`
	Labels map[string]string `json:"labels,omitempty"` // the user's; policies ignore them
	User   string            `json:"user,omitempty"`   // default of its commands: name or uid, or user:group; default: the image's
	// Lifetime is the time after its creation at which it is stopped, or removed if it
	// is ephemeral; 0: never.
	Lifetime  Duration `json:"lifetime,omitzero"`
	Ephemeral bool     `json:"ephemeral,omitempty"` // removed when its session ends
	Offline   bool     `json:"offline,omitempty"`   // no network but the host's own connection to its agent
}

// Runtimes that a Spec can name.
const (
	GVisor = "runsc"
	RunC   = "runc"
)

// Actions on a sandbox that has been idle for as long as its spec says.
const (
	IdlePause     = "pause"
	IdleHibernate = "hibernate"
	IdleStop      = "stop"
)

// Duration is a length of time in a spec, as [time.ParseDuration] reads it: "90s",
// "15m", "24h". 0 is none.
type Duration time.Duration

func (d Duration) String() string { return time.Duration(d).String() }

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("%q is no time: write one as 90s, 15m or 24h", text)
	}
	*d = Duration(v)
	return nil
}

// Set and Type make it the value of a flag.
func (d *Duration) Set(s string) error { return d.UnmarshalText([]byte(s)) }

// Type is its name in a usage text.
func (d *Duration) Type() string { return "duration" }

// SpecChange says what Set changes in a sandbox's spec; nil fields stay. Tags, labels,
// idle and lifetime hold at once. Image, runtime, disk and ephemeral cannot change. The
// rest holds from the next session on.
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
	// Restart ends a running session if the change is for the next one, and begins
	// that.
	Restart bool `json:"restart,omitempty"`
}
