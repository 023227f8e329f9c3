package sandbox

import (
	"errors"
	"fmt"

	"sallyport/internal/tmpfs"
	"sallyport/sandbox/agent/channel"
)

// Errors to branch on with errors.Is.
var (
	ErrNotFound     = errors.New("no such sandbox")
	ErrBadName      = errors.New("not a sandbox name")
	ErrBadSpec      = errors.New("not possible as asked")
	ErrSpecMismatch = errors.New("the sandbox exists with another spec")
	// ErrTaken refuses a name that another owner has. It does not say which owner.
	ErrTaken = errors.New("the name is taken on this host")
	// ErrState: a sandbox in this state cannot do what is asked for.
	ErrState = errors.New("the sandbox's state does not allow that")
	// ErrExpired is an ErrState: the sandbox's lifetime has ended.
	ErrExpired   = fmt.Errorf("%w: its lifetime has ended", ErrState)
	ErrNoAddress = errors.New("no free address in the sandbox subnet")
	ErrEngine    = errors.New("the container engine cannot be reached")
	// ErrCompared refuses a caller that has had too many new values compared with secrets.
	ErrCompared = errors.New("too many new environment values")
)

// Errors of limits.
var (
	// ErrDiskFull refuses an action because the host's disk is nearly full.
	ErrDiskFull = errors.New("the host's disk is nearly full")
	// ErrQuota refuses an owner one sandbox more.
	ErrQuota = errors.New("this owner has as many sandboxes as it may")
	// ErrStorageQuota refuses an action after which an owner's sandboxes could take more of
	// the host's disk than they may.
	ErrStorageQuota = errors.New("there is no more of the host's disk for this")
	// ErrMemoryBusy: other sandboxes' memory fills the RAM that is reserved for it. Trying
	// again later helps.
	ErrMemoryBusy = tmpfs.ErrBusy
	// ErrTooLarge: the host has too little RAM for the sandbox's memory.
	ErrTooLarge = tmpfs.ErrTooLarge
)

// Errors of images.
var (
	ErrNoImage = errors.New("no such image")
	// ErrImage refuses a tenant an image that is not listed for tenants.
	ErrImage = errors.New("not an image that tenants may use")
	// ErrImageUsed refuses to remove an image that a sandbox, or the host, needs.
	ErrImageUsed = errors.New("the image is in use")
	// ErrRegistry: a registry did not deliver an image; the error has the registry's words.
	ErrRegistry = errors.New("the image cannot be fetched")
	// ErrArchive: the engine finds no image in an archive.
	ErrArchive = errors.New("the archive cannot be loaded")
)

// Errors of snapshots and of memory on disk.
var (
	ErrNoSnapshot = errors.New("no such snapshot")
	// ErrDamaged: a snapshot's disk differs from what was written.
	ErrDamaged = errors.New("the snapshot is damaged")
	// ErrNoCheckpoint: the runtime cannot write the memory of the sandbox's processes.
	ErrNoCheckpoint = errors.New("no memory checkpoint of this sandbox can be made")
	// ErrRan: processes may have run from the memory that a restore began with, so that the
	// disk may be ahead of that memory.
	ErrRan = errors.New("the sandbox's processes may have gone on")
)

// Errors of commands, files and ports.
var (
	// ErrNoCommand: the session has no such command, or has forgotten it.
	ErrNoCommand = errors.New("no such command")
	// ErrCommandState: a command in this state cannot do what is asked for.
	ErrCommandState = errors.New("it cannot be done to this command")
	ErrNoFile       = errors.New("no such file in the sandbox")
	ErrFileDenied   = errors.New("the sandbox's user may not do that to the file")
	ErrFileState    = errors.New("it cannot be done to this file")
	ErrNoSpace      = errors.New("the sandbox has no room for it")
	// ErrNoPort: nothing in the sandbox accepts the connection.
	ErrNoPort = errors.New("no connection")
	// ErrEarlier: an earlier version started the session, and that version's agent cannot
	// do what is asked for.
	ErrEarlier = channel.ErrEarlier
)

// SecretError refuses an environment variable that holds a secret, or for which that
// cannot be checked now. It is an ErrBadSpec. Its text names no credential, since only
// some callers may list those.
type SecretError struct {
	Variable   string
	Credential string // whose secret it holds
	Err        error  // why it cannot be checked, which names credentials; nil: it holds a secret
}

func (e *SecretError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("%v: whether environment variable %s holds a secret cannot be told now: leave it out, or try again when all sources of secrets answer", ErrBadSpec, e.Variable)
	}
	return fmt.Sprintf("%v: environment variable %s holds a secret: leave it out, the gateway injects it", ErrBadSpec, e.Variable)
}

func (*SecretError) Unwrap() error { return ErrBadSpec }

// Whose names the credential, or says why values cannot be compared now.
func (e *SecretError) Whose() string {
	if e.Err != nil {
		return e.Err.Error()
	}
	return fmt.Sprintf("the secret is that of credential %q", e.Credential)
}
