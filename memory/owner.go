package memory

// Owner is the sandbox that a memory is of.
type Owner struct {
	ID, Name string
	Session  string // "": it does not run
	Tenant   string // "": the host's own
}

// Operation is the kind of a Cause.
type Operation string

// Operations after which a memory may have changed, or before which its state is kept.
const (
	ByCommand   Operation = "command"    // a command ran in the sandbox
	ByAPI       Operation = "api"        // a caller of the API wrote
	Found       Operation = "found"      // nothing is known of what wrote
	Stopped     Operation = "stop"       // before the sandbox stops
	Snapshot    Operation = "snapshot"   // before a snapshot
	Restoring   Operation = "restoring"  // before another state is restored
	Restored    Operation = "restore"    // after that
	Forked      Operation = "fork"       // before a fork in the parent, after it in the child
	RolledBack  Operation = "rollback"   // to an earlier version
	Compacted   Operation = "compact"    // old entries were made a summary
	Quarantined Operation = "quarantine" // entries were taken out
	Released    Operation = "release"    // and put back
	Discarded   Operation = "discard"    // or removed for good
	Rechecked   Operation = "recheck"    // earlier contents were compared with new secrets
	Checkpoint  Operation = "checkpoint" // a caller asks which files have changed
)

// Cause is why a memory may have changed.
type Cause struct {
	Operation Operation
	Command   string // name of the program, without arguments
	From      string // name of the snapshot, or of the sandbox that this is a fork of
}

// Files in a sandbox's own folder on the host, beside its disk.
const (
	HistoryFile = "memory-history.db"
	IndexFile   = "memory-index.db"
	// RecheckFile is there while contents are to be compared with secrets once more: they
	// were recorded when a secret could not be read, or was another one.
	RecheckFile = "memory-recheck"
)

// HostFiles are all that is kept on the host of a sandbox's memory.
func HostFiles() (names []string) {
	names = append(names, RecheckFile)
	for _, name := range []string{HistoryFile, IndexFile} {
		names = append(names, name, name+"-wal", name+"-shm")
	}
	return names
}
