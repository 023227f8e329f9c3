package manager

import (
	"context"
	"log/slog"
	"net/netip"

	"sallyport/internal/image"
	"sallyport/internal/seal"
	"sallyport/sandbox"
	"sallyport/sandbox/agent/channel"
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
