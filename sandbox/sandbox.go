// Package sandbox keeps named, durable sandboxes: get or create, run commands in
// them, change, stop, remove; have them sleep, keep and fork them.
//
// The Manager owns the record of each sandbox (its spec, address, identity and
// state). What it drives it declares as interfaces, these above all: the Runtime
// that runs a sandbox, the Network that vouches for its packets, and the Authority
// whose certificate it trusts. A sandbox that is not attached to the Network
// runs but can reach nothing.
//
// It guarantees that a name stands for one sandbox, that its start is on record
// before it runs and its end afterwards, whoever ended it, and that what a
// crash leaves half-made is removed at the next Open. It does not decide what a
// sandbox may reach, and it does not keep the engine's root from anything.
package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"time"
)

// Errors to branch on.
var (
	ErrNotFound = errors.New("no such sandbox")
	ErrBadName  = errors.New("not a sandbox name")
	ErrBadSpec  = errors.New("not possible as asked")
	ErrNoImage  = errors.New("no such image")
	// ErrImageUsed refuses to remove an image that is needed.
	ErrImageUsed = errors.New("the image is in use")
	// ErrRegistry: a registry did not give an image; the error has its words.
	ErrRegistry = errors.New("the image cannot be fetched")
	// ErrArchive: the engine finds no image in what it was given.
	ErrArchive = errors.New("the archive cannot be loaded")
	ErrImage   = errors.New("not an image that tenants may use")
	ErrEngine  = errors.New("the container engine cannot be reached")
	// ErrRan: what Restore began with may have run, so that the disk may be ahead of
	// the memory.
	ErrRan       = errors.New("the sandbox's processes may have gone on")
	ErrConflict  = errors.New("the sandbox exists with another spec")
	ErrNoAddress = errors.New("no free address in the sandbox subnet")
	// ErrState: what is asked for cannot be done to a sandbox in its state.
	ErrState = errors.New("the sandbox's state does not allow that")
	// ErrExpired is ErrState of a sandbox that has outlived its lifetime.
	ErrExpired = fmt.Errorf("%w: its lifetime has ended", ErrState)
	// ErrNoCheckpoint: the runtime cannot write its processes' memory down.
	ErrNoCheckpoint = errors.New("no memory checkpoint of this sandbox can be made")
	ErrNoSnapshot   = errors.New("no such snapshot")
	// ErrDamaged: what a snapshot has of the disk is not what was written.
	ErrDamaged = errors.New("the snapshot is damaged")
)

// Spec is what the user asked for. Some of it can be changed; see SpecChange.
type Spec struct {
	Image   string            `json:"image,omitempty"`   // default: the daemon's
	Runtime string            `json:"runtime,omitempty"` // runsc (default) or runc
	Env     map[string]string `json:"env,omitempty"`
	Tags    map[string]string `json:"tags,omitempty"`    // that policies select by
	Workdir string            `json:"workdir,omitempty"` // of commands that name none; default: the image's
	CPUs    float64           `json:"cpus,omitempty"`    // processors, 0: no limit
	Memory  int64             `json:"memory,omitempty"`  // bytes, 0: no limit
	Pids    int64             `json:"pids,omitempty"`    // 0: the daemon's default
	Disk    int64             `json:"disk,omitempty"`    // bytes that all it writes may take, /memory too, 0: the daemon's default
	Owner   string            `json:"owner,omitempty"`   // tenant whose it is, set by who calls; see ForOwner

	// Idle is after how long without anything going on OnIdle is done: pause,
	// hibernate (default) or stop (default of runc, which cannot hibernate).
	Idle   Duration          `json:"idle,omitempty"` // at least 20s; 0: never
	OnIdle string            `json:"onIdle,omitempty"`
	Labels map[string]string `json:"labels,omitempty"` // the user's; they mean nothing to policies
	User   string            `json:"user,omitempty"`   // of commands that name none: name or uid, or user:group; default: the image's
	// Lifetime is how long after its creation it is stopped, or removed if it
	// is ephemeral; 0: never.
	Lifetime  Duration `json:"lifetime,omitzero"`
	Ephemeral bool     `json:"ephemeral,omitempty"` // removed when its session ends
	Offline   bool     `json:"offline,omitempty"`   // no network but the host's own way to its agent
}

// State of a sandbox.
type State string

const (
	Stopped State = "stopped"
	Running State = "running"
	Failed  State = "error" // cannot run, see Info.Reason
	// Paused: its processes stand still, in RAM. Any use wakes it.
	Paused State = "paused"
	// Hibernated: its memory is on disk, sealed, and takes no RAM. Any use wakes it.
	Hibernated State = "hibernated"
)

// Info is what a listing shows.
type Info struct {
	Name       string     `json:"name"`
	ID         string     `json:"id"`
	State      State      `json:"state"`
	Reason     string     `json:"reason,omitempty"` // of Failed, or why it was stopped to keep room for the host
	Spec       Spec       `json:"spec"`
	Address    netip.Addr `json:"address"`
	Session    string     `json:"session,omitempty"`
	Generation uint32     `json:"generation"`
	Created    time.Time  `json:"created"`
	Memory     string     `json:"memory,omitempty"` // folder on the host
	// Slept is when a sandbox that is paused or hibernated began to sleep.
	Slept time.Time `json:"slept,omitzero"`
	// Lost says why a sandbox had to start from its disk, without the memory that
	// it slept with. It is shown until it sleeps again.
	Lost string `json:"lost,omitempty"`
	// Lineage says what a fork was made of; nil of what is none.
	Lineage *Lineage `json:"lineage,omitempty"`
	Next    *Spec    `json:"next,omitempty"` // of the next session, where it differs
	Storage Storage  `json:"storage,omitzero"`
	// ImageID is the digest of the image that its container was made of, and ImageDigest
	// what registries have that as, NAME@sha256:…; "" where that is not known, as of an
	// image that came from a file. A name can stand for another image later.
	ImageID     string `json:"imageID,omitempty"`
	ImageDigest string `json:"imageDigest,omitempty"`
	// Capped says why its disk takes no more for now, and nothing is written down for it.
	Capped string `json:"capped,omitempty"`
}

// Container is what the Manager asks a Runtime for.
type Container struct {
	ID      string // the sandbox's ID; the container is named after it
	Name    string // the sandbox's name
	Spec    Spec
	Image   string       // ID of the image to make it of; empty: the one that Spec names
	Address netip.Prefix // the sandbox's address with the subnet's length
	Gateway netip.Addr
	MAC     string
	Env     []string
	Mounts  []Mount
	// Trust is the PEM certificate that the sandbox must trust besides its
	// image's own roots.
	Trust []byte
	// Layer is the folder of the host, empty at first, that what the container
	// writes lies on; empty: where the engine keeps it.
	Layer string
	// Like is the ID of a sandbox whose image this one has, and whose files it is
	// about to be given, what it trusts among them; empty: none.
	Like string
}

// Mount binds a folder or file of the host into a sandbox.
type Mount struct {
	Source, Target string
	ReadOnly       bool
}

// Status is what a Runtime sees of a container.
type Status struct {
	Running bool
	Paused  bool   // and Running
	PID     int    // of the container's first process as the host sees it
	Link    int    // interface index of the host's end of its veth, 0 when not running
	Exit    int    // of the last run
	Error   string // of the last start
	// Started is when the container was started last, by the engine's clock.
	Started time.Time
}

// Runtime runs containers. Its errors wrap ErrNoImage, ErrEngine and ErrNotFound.
type Runtime interface {
	// Create makes the container, says what image it is made of, and leaves nothing
	// behind when it fails.
	Create(context.Context, Container) (Image, error)
	Start(ctx context.Context, id string) (Status, error)
	Stop(ctx context.Context, id string, grace time.Duration) error
	Remove(ctx context.Context, id string) error
	Status(ctx context.Context, id string) (Status, error)
	// Update gives a container that does not run the limits of a spec: CPUs,
	// Memory and Pids.
	Update(ctx context.Context, id string, limits Spec) error
	// Exits reports containers that ended by themselves until ctx is done.
	Exits(ctx context.Context) (<-chan string, error)

	// Pause stops all that runs in the container, where it is.
	Pause(ctx context.Context, id string) error
	Resume(ctx context.Context, id string) error
	// Checkpoint writes the memory of the container's processes into a folder
	// that it makes, which is there when it is whole, also where the caller has
	// ended meanwhile. Unless leaveRunning, they have ended when it returns; when it
	// fails they may have. It is ErrNoCheckpoint for a runtime that cannot, and ErrNoRoom
	// where they take more RAM than room, in bytes; nothing has begun then. If whole
	// is not nil it is called once the folder is there, and they write no more.
	Checkpoint(ctx context.Context, id, dir string, room int64, leaveRunning bool, whole func()) error
	// Confine gives the container back the limit of memory that Checkpoint raises,
	// as what it writes counts as the container's own. It is called when that has
	// been removed.
	Confine(ctx context.Context, id string) error
	// Restore is Start with the memory that Checkpoint wrote, which it takes
	// from the same build of the runtime only. If fill is not nil, the memory is in
	// dir when that has returned nil. It is called once, beside what takes time of a
	// start; nothing of the sandbox runs before its end, nor if it fails, in which
	// case its error is what Restore returns. Any other error is ErrRan unless nothing
	// has run. It must not ask for the container,
	// which the engine does not answer for while it starts that.
	Restore(ctx context.Context, id, dir string, fill func() error) (Status, error)
	// Forgo has a Restore of which nobody heard, as engine or caller ended, not begin
	// any more. It is ErrRan where it may have. known is false where there is nothing
	// to tell that by: none was asked for, it went well, or the host began anew since.
	Forgo(ctx context.Context, id string) (known bool, err error)
	// Layer is the folder of the host with what the container has written, to be
	// read while it stands still and to be written before it starts.
	Layer(ctx context.Context, id string) (string, error)
	// Build names the build of the runtime that writes and reads memory.
	Build(ctx context.Context) (string, error)
}

// Disks give sandboxes file systems of their own, each in the sandbox's own
// folder. Layer is where what it changes of its image goes.
type Disks interface {
	Make(folder string, bytes int64) (layer string, err error) // attached
	Attach(folder string) error                                // again, with room for a start on it
	Settle(folder string) error                                // takes the room back, before anything of the sandbox's runs
	Detach(folder string) error                                // once nothing runs
	Layer(folder string) string                                // as Make returns it

	// Freeze keeps a disk as it is until thaw, whole, which Thaw is of a process that
	// has ended: what is written to it waits.
	Freeze(folder string) (thaw func() error, err error)
	Thaw(folder string) error
	// Pack writes what is on a disk that is frozen or detached. Unpack makes one that is
	// detached what Pack wrote, and Copy what another is, while roomy agrees. Nothing of
	// what a sandbox writes can make them fail.
	Pack(ctx context.Context, folder string, w io.Writer) error
	Unpack(ctx context.Context, folder string, r io.Reader, roomy func() error) error
	Copy(ctx context.Context, from, to string, roomy func() error) error
	// Move gives a disk that is detached to a folder without one, as it lies there, and
	// Drop removes it. Both may be called again.
	Move(from, to string) error
	Drop(folder string) error
	// Look opens the root of a disk that is the caller's, and removes its folder: the
	// layer's folder and "memory" are in it until it is closed.
	Look(folder string) (root *os.File, err error)
}

// Endpoint is a sandbox's place on the network: what its packets must show.
type Endpoint struct {
	Link       int // interface index of the host's end of the veth
	Sandbox    string
	ID         string
	Generation uint32 // unique, never reused: of each beginning and each waking
	Address    netip.Addr
	MAC        string
	Offline    bool // only the host's own connections to its agent pass
}

// Network vouches for packets. Until Attach has returned, nothing of a sandbox
// passes; after Detach, nothing of it passes.
type Network interface {
	Attach(Endpoint) error
	Detach(generation uint32) error
	// Endpoints lists what is attached, also by an earlier process.
	Endpoints() ([]Endpoint, error)
}

// Authority gives the certificate that a sandbox must trust.
type Authority interface {
	Root(sandboxID string) ([]byte, error) // PEM, made the first time
	Forget(sandboxID string) error
	// Adopt gives a fork an authority of its own that its parent's root vouches for.
	Adopt(childID, parentID string) error
}
