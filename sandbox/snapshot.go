package sandbox

import "time"

// Snapshot is the state of a sandbox at one moment: its disk with its memory store and,
// with Memory, its processes. All of it lies sealed in the sandbox's folder, except where
// Unsealed says otherwise.
type Snapshot struct {
	Name      string    `json:"name"`
	Sandbox   string    `json:"sandbox"`
	SandboxID string    `json:"sandboxId"`
	Lineage   *Lineage  `json:"lineage,omitempty"` // the sandbox's
	Created   time.Time `json:"created"`
	Expires   time.Time `json:"expires,omitzero"` // zero: never
	Size      int64     `json:"size"`             // bytes on the host's disk
	Memory    bool      `json:"memory"`           // has the processes
	// Safety marks a snapshot that Restore made of the state before it.
	Safety bool `json:"safety,omitempty"`
	// Unsealed marks a safety snapshot that is the disk itself, as it lay there, because
	// no sealed copy could be made.
	Unsealed bool `json:"unsealed,omitempty"`
	// Session is the session in which it was made, if there was one.
	Session string `json:"session,omitempty"`
	// Build is the build of gVisor that wrote the memory, and that alone reads it.
	Build string `json:"build,omitempty"`
	// Mark says which policy was in force and how much was recorded.
	Mark Mark `json:"mark"`
	// PausedFor is how long the sandbox was paused for it, in nanoseconds.
	PausedFor time.Duration `json:"stood"`
	// Sums are the SHA-256 of the sealed files, by their names.
	Sums map[string]string `json:"sums"`
	// Flows are the connections that the memory holds.
	Flows []Flow `json:"flows,omitempty"`
	// Agent is the public key of the agent that is in the memory.
	Agent []byte `json:"agent,omitempty"`
}

// Mark is a place in the policy's and the audit log's history.
type Mark struct {
	Policy string `json:"policy,omitempty"` // revision in force
	Audit  uint64 `json:"audit,omitempty"`  // events on record
}

// SnapshotSpec says what snapshot to make.
type SnapshotSpec struct {
	// Name is unique among the sandbox's snapshots. Default: the time.
	Name string `json:"name,omitempty"`
	// Memory includes the processes. The sandbox must have a session.
	Memory bool `json:"memory,omitempty"`
	// KeepLast is how many snapshots the sandbox keeps, this one included: the oldest are
	// removed. Default: all.
	KeepLast int `json:"keepLast,omitempty"`
	// Expires is the time after which it is removed. Default: never.
	Expires Duration `json:"expires,omitempty"`
}

// RestoreSpec says which snapshot a sandbox goes back to.
type RestoreSpec struct {
	Snapshot string `json:"snapshot"`
	// Discard gives up the present state, which Restore keeps as a snapshot otherwise, and
	// needs no disk space for it.
	Discard bool `json:"discard,omitempty"`
}

// ForkSpec says what forks to make.
type ForkSpec struct {
	// Names of the children; "" for one that the manager picks, PARENT-1 and so on.
	// Default: Count names that the manager picks.
	Names []string `json:"names,omitempty"`
	// Count is the number of children, where there are no names. Default: 1.
	Count int `json:"count,omitempty"`
	// Snapshot is what to fork. Default: the sandbox as it is now.
	Snapshot string `json:"snapshot,omitempty"`
}

// MaxForks is the largest number of forks that one call makes.
const MaxForks = 64
