package manager

import (
	"context"
	"crypto/ed25519"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"time"

	"sallyport/audit"
	"sallyport/internal/image"
	"sallyport/internal/seal"
	"sallyport/sandbox"
	"sallyport/sandbox/agent/channel"
	"sallyport/sandbox/fsjail"
)

// Options of a Manager. Dir, Subnet, Defaults, Runtime, Network, Authority, Secrets,
// Recorder, Logger and Agent are needed.
type Options struct {
	Dir       string // one folder for each sandbox
	Subnet    netip.Prefix
	Defaults  sandbox.Spec
	Pool      int // how many of the defaults' spec are kept started, for who asks next
	Runtime   Runtime
	Disks     Disks // nil: nothing bounds what sandboxes write
	Network   Network
	Authority Authority
	Secrets   Secrets
	Recorder  Recorder
	// Recorded says whether the log has an event, by its ID. It is asked after a
	// crash. nil: what an earlier process may have recorded is recorded again.
	Recorded func(ctx context.Context, id string) (bool, error)
	Logger   *slog.Logger
	Agent    channel.Options // how agents are spoken to
	// Reserve is what is kept of Space for the host, in bytes. Space nil: nothing.
	Space   Space
	Reserve int64
	Layers  Layers // nil: Changes tells nothing
	// Images are the engine's. nil: none can be listed, fetched or removed.
	Images Images
	// Login says what is shown to a registry of images, by its host as names begin with
	// it: nil where there is no login. Default: none has one.
	Login func(ctx context.Context, registry string) (sandbox.Login, error)
	// Jail serves the files of a sandbox that cannot be started. nil: nobody does.
	Jail Jail
	// Forget is told the ID of a sandbox that is removed, for those who keep
	// something under it.
	Forget func(id string) error
	// Publish is told of each change of what ByAddress returns, in order: of a
	// sandbox before its packets may pass, of the zero Info after none passes
	// any more.
	Publish func(netip.Addr, sandbox.Info)
	// RAM is a folder in memory, that is never swapped (see ram.Mount), for what
	// is in the clear of sandboxes that hibernate; Key seals it for the disk. Where
	// one of them is missing none can. Owners share it (see ram.Room): what finds no
	// room within a minute is ErrMemoryBusy.
	RAM string
	Key *seal.Key
	// Gate holds the connections of sandboxes that sleep. Default: nobody does.
	Gate    Gate
	boot    string // a test's, in place of the host's
	ramSize int64  // a test's, in place of what RAM holds
	// Meter tells WatchIdle what goes on in a sandbox besides what is asked of the
	// manager, and its agent of commands, and how much RAM it takes. Default: nothing
	// does, and a sandbox may have all that it may have in RAM.
	Meter Meter
	busy  func(ctx context.Context, id string) (n int, ok bool) // a test's, in place of the agent's word
	// Inherit gives a fork what else it has of its parent, by their IDs: the names
	// that its memory knows addresses of. It is called while the parent stands still.
	Inherit func(parent, child string) error
	// Mark says what is in force and recorded now, for snapshots to note. Default:
	// nothing.
	Mark func() sandbox.Mark
	// PerOwner is how many sandboxes an owner may have; 0: no bound. Those of nobody
	// have none.
	PerOwner int
	// StoragePerOwner is how many bytes of the host's disk an owner's sandboxes may take,
	// with their snapshots and their memory on disk; 0: no bound. Those of nobody have
	// none.
	StoragePerOwner int64
	// OwnerImages are the images that owners may use besides Defaults.Image.
	OwnerImages image.Patterns
}

// Runtime runs containers. Its errors wrap ErrNoImage, ErrEngine and ErrNotFound.
type Runtime interface {
	// Create makes the container, says what image it is made of, and leaves nothing
	// behind when it fails.
	Create(context.Context, sandbox.Container) (sandbox.Image, error)
	Start(ctx context.Context, id string) (sandbox.Status, error)
	Stop(ctx context.Context, id string, grace time.Duration) error
	Remove(ctx context.Context, id string) error
	Status(ctx context.Context, id string) (sandbox.Status, error)
	// Update gives a container that does not run the limits of a spec: CPUs,
	// Memory and Pids.
	Update(ctx context.Context, id string, limits sandbox.Spec) error
	// Exits reports containers that ended by themselves until ctx is done.
	Exits(ctx context.Context) (<-chan string, error)

	// Pause stops all that runs in the container, where it is.
	Pause(ctx context.Context, id string) error
	Resume(ctx context.Context, id string) error
	// Checkpoint writes the memory of the container's processes into a folder
	// that it makes, which is there when it is whole, also where the caller has
	// ended meanwhile. Unless leaveRunning, they have ended when it returns; when it
	// fails they may have. It is ErrNoCheckpoint for a runtime that cannot, and ErrMemoryBusy
	// where they take more RAM than room, in bytes; nothing has begun then. If whole
	// is not nil it is called once the folder is there, and they write no more.
	Checkpoint(ctx context.Context, id, dir string, room int64, leaveRunning bool, whole func()) error
	// RestoreMemoryLimit gives the container back the limit of memory that Checkpoint raises,
	// as what it writes counts as the container's own. It is called when that has
	// been removed.
	RestoreMemoryLimit(ctx context.Context, id string) error
	// Restore is Start with the memory that Checkpoint wrote, which it takes
	// from the same build of the runtime only. If fill is not nil, the memory is in
	// dir when that has returned nil. It is called once, beside what takes time of a
	// start; nothing of the sandbox runs before its end, nor if it fails, in which
	// case its error is what Restore returns. Any other error is ErrRan unless nothing
	// has run. It must not ask for the container,
	// which the engine does not answer for while it starts that.
	Restore(ctx context.Context, id, dir string, fill func() error) (sandbox.Status, error)
	// CancelRestore has a Restore of which nobody heard, as engine or caller ended, not begin
	// any more. It is ErrRan where it may have. known is false where there is nothing
	// to tell that by: none was asked for, it went well, or the host began anew since.
	CancelRestore(ctx context.Context, id string) (known bool, err error)
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
	Attach(folder string) error                                // restartFromRAM, with room for a start on it
	Settle(folder string) error                                // takes the room back, before anything of the sandbox's runs
	Detach(folder string) error                                // once nothing runs
	Layer(folder string) string                                // as Make returns it

	// Freeze keeps a disk as it is until thaw, whole, which Thaw is of a process that
	// has ended: what is written to it waits.
	Freeze(folder string) (thaw func() error, err error)
	Thaw(folder string) error
	// Pack writes what is on a disk that is frozen or detached. Unpack makes one that is
	// detached what Pack wrote, and Copy what another is, while checkSpace returns nil. Nothing of
	// what a sandbox writes can make them fail.
	Pack(ctx context.Context, folder string, w io.Writer) error
	Unpack(ctx context.Context, folder string, r io.Reader, checkSpace func() error) error
	Copy(ctx context.Context, from, to string, checkSpace func() error) error
	// Move gives a disk that is detached to a folder without one, as it lies there, and
	// Drop removes it. Both may be called again.
	Move(from, to string) error
	Drop(folder string) error
	// Look opens the root of a disk that is the caller's, and removes its folder: the
	// layer's folder and "memory" are in it until it is closed.
	Look(folder string) (root *os.File, err error)
}

// Network vouches for packets. Until Attach has returned, nothing of a sandbox
// passes; after Detach, nothing of it passes.
type Network interface {
	Attach(sandbox.Endpoint) error
	Detach(generation uint32) error
	// Endpoints lists what is attached, also by an earlier process.
	Endpoints() ([]sandbox.Endpoint, error)
}

// Authority gives the certificate that a sandbox must trust.
type Authority interface {
	Root(sandboxID string) ([]byte, error) // PEM, made the first time
	Forget(sandboxID string) error
	// Adopt gives a fork an authority of its own that its parent's root vouches for.
	Adopt(childID, parentID string) error
}

// Gate holds the connections of sandboxes that sleep. None of its methods can keep
// a sandbox from sleeping or waking, so none fails, and each returns soon.
type Gate interface {
	// Sleep holds what goes to the sandbox, and returns what connections it has.
	// It is called while the sandbox still runs: what does not come to rest at
	// once is reset, which the sandbox is to see.
	Sleep(context.Context, netip.Addr) []sandbox.Flow
	// Wake lets go. It is called when the sandbox runs again: a connection that
	// nobody here has any more is ended in the sandbox.
	Wake(netip.Addr, []sandbox.Flow)
	// Flows lists the connections that a sandbox has now.
	Flows(netip.Addr) []sandbox.Flow
	// End closes the connections of a sandbox that will not wake.
	End(netip.Addr)
}

// noGate is of a manager that has none.
type noGate struct{}

func (noGate) Sleep(context.Context, netip.Addr) []sandbox.Flow { return nil }

func (noGate) Wake(netip.Addr, []sandbox.Flow) {}

func (noGate) Flows(netip.Addr) []sandbox.Flow { return nil }

func (noGate) End(netip.Addr) {}

// Space is the host's file system that sandboxes' disks take from. Both are in
// bytes, and count what was written and is not on the disk yet.
type Space interface {
	Free() (int64, error)
	Used(folder string) (int64, error) // by the disk in a sandbox's own folder
	// Yield gives up what Settle keeps back for the moment in which nothing is left.
	// Settle takes it again, or what there is of it. Both may be called again.
	Yield() error
	Settle() error
	// Cap keeps that disk from growing: what a sandbox writes to it ends as on a full
	// disk, at what it had when it was capped. It lasts until Uncap, or until the
	// sandbox ends. Both may be called again.
	Cap(folder string) error
	Uncap(folder string) error
}

// Layers says where a sandbox's files lie on the host.
type Layers interface {
	// Layers returns the folder of what the sandbox has changed of its image, and
	// those of the image, the uppermost first.
	Layers(ctx context.Context, id string) (upper string, lower []string, err error)
}

// Meter tells what sandboxes use. It is a Runtime's.
type Meter interface {
	Usage(ctx context.Context, id string) (sandbox.Usage, error)
	// Resident is how much RAM a sandbox takes now, in bytes: what would be in its
	// memory, were it written down.
	Resident(ctx context.Context, id string) (int64, error)
}

// Images are those of an engine. Names are as image.Parse gives them. Errors wrap
// ErrNoImage, ErrImageUsed, ErrRegistry, ErrArchive and ErrEngine.
type Images interface {
	List(context.Context) ([]sandbox.Image, error)
	Find(ctx context.Context, name string) (sandbox.Image, error)
	// Pull has the engine fetch an image from its registry, from the host's own network.
	// What it has fetched when it fails, or tell does, it gives up.
	Pull(ctx context.Context, name string, login sandbox.Login, tell func(sandbox.ImageStep) error) error
	// Load has the engine read images out of a tar archive, and returns their names, or
	// IDs of those without one.
	Load(ctx context.Context, tar io.Reader) (names []string, err error)
	// Remove takes a name away, and the image with its last one.
	Remove(ctx context.Context, name string) error
}

// Secrets says whether a value is a known secret, and which credential's.
type Secrets interface {
	// An error says that some credential could not be compared with.
	Contains(ctx context.Context, value string) (credential string, found bool, err error)
}

// Recorder is the audit log: Append returns when the events are durable.
type Recorder interface {
	Append(context.Context, ...*audit.Event) error
}

// Jail connects to an agent that has the files of a tree for its own and answers whoever
// has the key, until the connection is closed: see [fsjail.Open].
type Jail func(t fsjail.Tree, key ed25519.PublicKey) (net.Conn, error)
