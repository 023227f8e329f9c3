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
	"sallyport/memory"
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
	Pool      int // how many sandboxes of the default spec are kept started
	Runtime   Runtime
	Disks     Disks // nil: sandboxes can fill the host's disk
	Network   Network
	Authority Authority
	Secrets   Secrets
	Recorder  Recorder
	// Recorded reports whether the log has an event, by its ID. It is called after a
	// crash. nil: events that an earlier process may have recorded are recorded again.
	Recorded func(ctx context.Context, id string) (bool, error)
	Logger   *slog.Logger
	Agent    channel.Options // of the connections to agents
	// Reserve is how much of Space is kept for the host, in bytes. Space nil: nothing.
	Space   Space
	Reserve int64
	Layers  Layers // nil: Changes tells nothing
	// Images are the engine's. nil: images cannot be listed, fetched or removed.
	Images Images
	// Login returns the login for a registry of images, named by its host as in names of
	// images, or nil if there is none. Default: there is none for any.
	Login func(ctx context.Context, registry string) (sandbox.Login, error)
	// Jail serves the files of a sandbox that cannot be started. nil: they are not served.
	Jail Jail
	// Forget is called with the ID of a sandbox that is removed, so that its owner's other
	// data can go.
	Forget func(id string) error
	// Publish is called for each change of what ByAddress returns, in order: with a
	// sandbox before its packets may pass, and with the zero Info when none passes any
	// more.
	Publish func(netip.Addr, sandbox.Info)
	// Placeholders returns the variables that a sandbox's commands get in the place of
	// credentials, and their texts by variable. Default: none.
	Placeholders func(sandbox.Info) ([]sandbox.Placeholder, map[string]string)
	// RAM is a folder in memory that is never swapped (tmpfs.Mount). It holds the memory
	// of sandboxes in the clear while it is written or read; Key seals it for the disk.
	// Without either, no sandbox can hibernate. Owners share the folder (tmpfs.Budget): a
	// call that finds no room within a minute gets ErrMemoryBusy.
	RAM string
	Key *seal.Key
	// Gate holds the connections of sandboxes that sleep. Default: they are not held.
	Gate    Gate
	boot    string // a test's, in place of the host's
	ramSize int64  // a test's, in place of what RAM holds
	// Meter tells WatchIdle what a sandbox does that no call shows, and how much RAM it
	// takes. Default: nothing is measured, and a sandbox counts with the most RAM that it
	// may have.
	Meter Meter
	busy  func(ctx context.Context, id string) (n int, ok bool) // a test's, in place of the agent's word
	// Inherit gives a fork more of its parent's data, by their IDs: the names of the
	// addresses that its memory holds. It is called while the parent is paused.
	Inherit func(parent, child string) error
	// Memories keeps the versions of what is in /memory. Default: nobody does.
	Memories Memories
	// Stores returns the mounts of the stores that a sandbox of a name and tags shares with
	// others. It is asked when the sandbox's container is made. Default: none.
	Stores func(name string, tags map[string]string) []sandbox.Mount
	// Mark returns the policy and the audit's position of now, for snapshots. Default:
	// nothing.
	Mark func() sandbox.Mark
	// PerOwner is how many sandboxes an owner may have; 0: no limit. Sandboxes without an
	// owner have no limit.
	PerOwner int
	// StoragePerOwner is how many bytes of the host's disk an owner's sandboxes may take,
	// with their snapshots and their memory on disk; 0: no limit. Sandboxes without an
	// owner have no limit.
	StoragePerOwner int64
	// OwnerImages are the images that owners may use besides Defaults.Image.
	OwnerImages image.Patterns
}

// Runtime runs containers. Its errors wrap ErrNoImage, ErrEngine and ErrNotFound.
type Runtime interface {
	// Create makes the container and returns the image that it is made of. When it fails,
	// it leaves nothing.
	Create(context.Context, sandbox.Container) (sandbox.Image, error)
	Start(ctx context.Context, id string) (sandbox.Status, error)
	Stop(ctx context.Context, id string, grace time.Duration) error
	Remove(ctx context.Context, id string) error
	Status(ctx context.Context, id string) (sandbox.Status, error)
	// Update gives a container that does not run the CPUs, Memory and Pids of a spec.
	Update(ctx context.Context, id string, limits sandbox.Spec) error
	// Exits reports containers that ended by themselves until ctx is done.
	Exits(ctx context.Context) (<-chan string, error)

	// Pause freezes the container's processes.
	Pause(ctx context.Context, id string) error
	Resume(ctx context.Context, id string) error
	// Checkpoint writes the memory of the container's processes into a folder that it
	// makes. The folder is there once it is whole, even if the caller has ended meanwhile.
	// Unless leaveRunning, the processes have ended when Checkpoint returns; when it fails
	// they may have. The error is ErrNoCheckpoint for a runtime that cannot, and
	// ErrMemoryBusy, with nothing begun, if the memory takes more than room bytes. whole,
	// unless nil, is called once the folder is there and nothing more is written.
	Checkpoint(ctx context.Context, id, dir string, room int64, leaveRunning bool, whole func()) error
	// RestoreMemoryLimit undoes the raise of the container's memory limit by Checkpoint,
	// whose files count as the container's memory. It is called when the files are
	// removed.
	RestoreMemoryLimit(ctx context.Context, id string) error
	// Restore is Start with the memory that Checkpoint wrote with the same build of the
	// runtime. fill, unless nil, puts the memory into dir. It is called once, while the
	// container is made, and must not call the runtime for that container: the engine does
	// not answer then. Nothing of the sandbox runs before fill returns, nor if fill fails;
	// then Restore returns its error. Any other error is ErrRan unless nothing has run.
	Restore(ctx context.Context, id, dir string, fill func() error) (sandbox.Status, error)
	// CancelRestore makes sure that a Restore does not begin whose result is not known,
	// since the engine or the caller ended. The error is ErrRan if processes may have run.
	// known is false if there is no Restore to cancel: none was asked for, it succeeded,
	// or the host rebooted.
	CancelRestore(ctx context.Context, id string) (known bool, err error)
	// Layer is the host's folder of the files that the container has written. It may be
	// read while the container is paused, and written before it starts.
	Layer(ctx context.Context, id string) (string, error)
	// Build names the build of the runtime that writes and reads memory.
	Build(ctx context.Context) (string, error)
}

// Disks give sandboxes file systems of their own, each in the sandbox's own folder. A
// layer holds a sandbox's changes of its image.
type Disks interface {
	Make(folder string, bytes int64) (layer string, err error) // attached
	Attach(folder string) error                                // mounts it, with room for a start
	Settle(folder string) error                                // takes that room back, before the sandbox runs
	Detach(folder string) error                                // once nothing runs
	Layer(folder string) string                                // as Make returns it

	// Freeze keeps a disk unchanged until thaw: writes wait. Thaw ends the freeze of an
	// earlier process.
	Freeze(folder string) (thaw func() error, err error)
	Thaw(folder string) error
	// Pack writes the contents of a disk that is frozen or detached. Unpack gives a
	// detached disk the contents that Pack wrote, and Copy those of another disk, as long
	// as checkSpace returns nil. Nothing that a sandbox writes makes them fail.
	Pack(ctx context.Context, folder string, w io.Writer) error
	Unpack(ctx context.Context, folder string, r io.Reader, checkSpace func() error) error
	Copy(ctx context.Context, from, to string, checkSpace func() error) error
	// Move gives a detached disk to a folder without one. Drop removes a disk. Both can be
	// repeated.
	Move(from, to string) error
	Drop(folder string) error
	// Look opens the root of a disk and removes the disk's folder. Until root is closed,
	// the layer's folder and "memory" are in it.
	Look(folder string) (root *os.File, err error)
}

// Network vouches for packets. Packets of a sandbox pass from Attach to Detach only.
type Network interface {
	Attach(sandbox.Endpoint) error
	Detach(generation uint32) error
	// Endpoints lists what is attached, by earlier processes too.
	Endpoints() ([]sandbox.Endpoint, error)
}

// Authority gives the certificate that a sandbox must trust.
type Authority interface {
	Root(sandboxID string) ([]byte, error) // PEM, made the first time
	Forget(sandboxID string) error
	// Adopt gives a fork an authority of its own that its parent's root vouches for.
	Adopt(childID, parentID string) error
}

// Gate holds the connections of sandboxes that sleep. Its methods return soon and cannot
// fail, so that they never keep a sandbox from sleeping or waking.
type Gate interface {
	// Sleep holds the connections to the sandbox and returns its own. It is called while
	// the sandbox runs, so that the sandbox sees the reset of a connection that does not
	// come to rest at once.
	Sleep(context.Context, netip.Addr) []sandbox.Flow
	// Wake releases the connections. It is called when the sandbox runs again. A
	// connection that is gone on the host is ended in the sandbox.
	Wake(netip.Addr, []sandbox.Flow)
	// Flows lists the connections that a sandbox has now.
	Flows(netip.Addr) []sandbox.Flow
	// End closes the connections of a sandbox whose session ends.
	End(netip.Addr)
}

// noGate is the Gate of a manager without one.
type noGate struct{}

func (noGate) Sleep(context.Context, netip.Addr) []sandbox.Flow { return nil }

func (noGate) Wake(netip.Addr, []sandbox.Flow) {}

func (noGate) Flows(netip.Addr) []sandbox.Flow { return nil }

func (noGate) End(netip.Addr) {}

// Memories keeps the versions of what sandboxes have in /memory.
type Memories interface {
	// Changed tells that a sandbox's memory may have changed. It returns at once.
	Changed(context.Context, memory.Owner, memory.Cause)
	// Record returns when what has changed is recorded.
	Record(context.Context, memory.Owner, memory.Cause) error
	// Replace calls replace, which gives a memory other contents, and records the version
	// after it: to whoever looks at the memory the two are one step. Its error is that of ctx
	// before replace is called, or replace's.
	Replace(ctx context.Context, o memory.Owner, c memory.Cause, replace func() error) error
	// Inherit gives a child the versions of its parent.
	Inherit(ctx context.Context, parent, child memory.Owner) error
	// Interrupt ends what goes on with the memory of a sandbox, by its ID, which holds the
	// sandbox's disk.
	Interrupt(id string)
}

// noMemories keeps nothing.
type noMemories struct{}

func (noMemories) Changed(context.Context, memory.Owner, memory.Cause)      {}
func (noMemories) Record(context.Context, memory.Owner, memory.Cause) error { return nil }
func (noMemories) Replace(_ context.Context, _ memory.Owner, _ memory.Cause, replace func() error) error {
	return replace()
}
func (noMemories) Inherit(context.Context, memory.Owner, memory.Owner) error { return nil }
func (noMemories) Interrupt(string)                                          {}

// Space is the host's file system that holds the disks of sandboxes. Free and Used count
// bytes that are written but not on the disk yet.
type Space interface {
	Free() (int64, error)
	Used(folder string) (int64, error) // by the disk in a sandbox's own folder
	// Yield frees what Settle keeps back for a full disk. Settle takes it back, or as much
	// as there is. Both can be repeated.
	Yield() error
	Settle() error
	// Cap keeps a disk from growing beyond its size at the first call: more writes fail as
	// on a full disk. It lasts until Uncap, or until the sandbox ends. Both can be
	// repeated.
	Cap(folder string) error
	Uncap(folder string) error
}

// Layers says where a sandbox's files lie on the host.
type Layers interface {
	// Layers returns the folder of the sandbox's changes of its image, and the folders of
	// the image, the uppermost first.
	Layers(ctx context.Context, id string) (upper string, lower []string, err error)
}

// Meter measures sandboxes. A Runtime is one.
type Meter interface {
	Usage(ctx context.Context, id string) (sandbox.Usage, error)
	// Resident is how much RAM a sandbox takes now, in bytes: about the size of its memory
	// in a checkpoint.
	Resident(ctx context.Context, id string) (int64, error)
}

// Images are those of an engine. Names are as image.Parse gives them. Errors wrap
// ErrNoImage, ErrImageUsed, ErrRegistry, ErrArchive and ErrEngine.
type Images interface {
	List(context.Context) ([]sandbox.Image, error)
	Find(ctx context.Context, name string) (sandbox.Image, error)
	// Pull has the engine fetch an image from its registry, over the host's own network.
	// When it or tell fails, what it has fetched is given up.
	Pull(ctx context.Context, name string, login sandbox.Login, tell func(sandbox.ImageStep) error) error
	// Load has the engine read images from a tar archive. It returns their names, or the
	// IDs of images without one.
	Load(ctx context.Context, tar io.Reader) (names []string, err error)
	// Remove removes a name, and the image with its last name.
	Remove(ctx context.Context, name string) error
}

// Secrets says whether a value is a known secret, and which credential's.
type Secrets interface {
	// The error says that a credential could not be compared.
	Contains(ctx context.Context, value string) (credential string, found bool, err error)
}

// Recorder is the audit log: Append returns when the events are durable, Enqueue at once.
type Recorder interface {
	Append(context.Context, ...*audit.Event) error
	Enqueue(*audit.Event) error
}

// Jail connects to an agent that serves the files of a tree, to the holder of the key,
// until the connection is closed: see [fsjail.Open].
type Jail func(t fsjail.Tree, key ed25519.PublicKey) (net.Conn, error)
